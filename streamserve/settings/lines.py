"""Where each key of a TOML document stands: `tomllib` reads values and forgets their lines.

Only for documents that `tomllib` has accepted, so this scanner need not judge: it skips what it does not need. Of one
that gives a key twice it says which.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress

#: Keys and list positions from the top of the document: `("routes", "digits", "models", 1)`.
KeyPath = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_FILLER = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\(?:.|\n)|"(?!""))*"""(?:""|")?'
    r"|'''(?:[^']|'(?!''))*'''(?:''|')?"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line (from 1) of every key, table header and list item of a valid TOML document.

    A table that only a longer header implies (`[a.b]` implies `a`) has the line of the first such header.
    """
    return _Scanner(text).scan()


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of `path`, or of the nearest thing above it that the document holds; 1 at the top."""
    for length in range(len(path), 0, -1):
        line = lines.get(path[:length])
        if line is not None:
            return line
    return 1


def repeated_key(text: str) -> tuple[KeyPath, int, int] | None:
    """The key or table that is given again: its path, its line, and the line of the first.

    `text`: a document up to the place where `tomllib` refused it for that.
    """
    scanner = _Scanner(text)
    with suppress(ValueError):  # it may end inside an inline table
        scanner.scan()
    if not scanner.noted:
        return None
    seen: dict[KeyPath, int] = {}
    for path, line in scanner.noted:
        if path in seen:
            return path, line, seen[path]
        seen[path] = line
    # Not the same words: the last one reaches into a value, or declares what a longer key has made.
    *before, (path, line) = scanner.noted
    for length in range(len(path), 0, -1):
        first = next((earlier for other, earlier in before if other[:length] == path[:length]), None)
        if first is not None:
            return path[:length], line, first
    return None


class _Scanner:
    """One pass over the text; `position` only grows."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._counted_to = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}
        #: Each key and header as it comes, and its line.
        self.noted: list[tuple[KeyPath, int]] = []
        #: Number of items seen of each array of tables.
        self._array_sizes: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while not self._at_end():
            if self._text.startswith("[[", self._position):
                table = self._array_header()
            elif self._peek() == "[":
                table = self._table_header()
            else:
                self._pair(table)
        return self._lines

    def _table_header(self) -> KeyPath:
        line = self._line_here()
        self._position += 1
        path = self._resolve(self._key())
        self._position += 1
        self._note_key(path, line)
        return path

    def _array_header(self) -> KeyPath:
        line = self._line_here()
        self._position += 2
        key = self._key()
        self._position += 2
        array = (*self._resolve(key[:-1]), key[-1])
        index = self._array_sizes.get(array, 0)
        self._array_sizes[array] = index + 1
        self._note_key((*array, index), line)
        return (*array, index)

    def _resolve(self, key: tuple[str, ...]) -> KeyPath:
        """A header's key as a path: inside an array of tables it means the array's last item."""
        path: KeyPath = ()
        for part in key:
            path = (*path, part)
            if path in self._array_sizes:
                path = (*path, self._array_sizes[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line_here()
        path = (*table, *self._key())
        self._position += 1  # the equals sign
        self._note_key(path, line)
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> tuple[str, ...]:
        """A dotted key, and the white space around it."""
        parts = [self._key_part()]
        while self._peek() == ".":
            self._position += 1
            parts.append(self._key_part())
        return tuple(parts)

    def _key_part(self) -> str:
        self._skip(_SPACE)
        if self._peek() in "\"'":
            quoted = self._take(_STRING)
            part = str(tomllib.loads(f"k = {quoted}")["k"])
        else:
            part = self._take(_BARE_KEY)
        self._skip(_SPACE)
        return part

    def _value(self, path: KeyPath) -> None:
        first = self._peek()
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif first in "\"'":
            self._take(_STRING)
        else:
            self._take(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._position += 1
        self._skip(_FILLER)
        index = 0
        while self._peek() != "]":
            self._note((*path, index), self._line_here())
            self._value((*path, index))
            self._comma()
            index += 1
        self._position += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._position += 1
        self._skip(_FILLER)
        while self._peek() != "}":
            self._pair(path)
            self._comma()
        self._position += 1

    def _comma(self) -> None:
        self._skip(_FILLER)
        if self._peek() == ",":
            self._position += 1
            self._skip(_FILLER)

    def _note_key(self, path: KeyPath, line: int) -> None:
        self.noted.append((path, line))
        self._note(path, line)

    def _note(self, path: KeyPath, line: int) -> None:
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)

    def _at_end(self) -> bool:
        self._skip(_FILLER)
        return self._position >= len(self._text)

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._take(pattern)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            raise ValueError(f"cannot follow the TOML document at line {self._line_here()}")
        self._position = match.end()
        return match.group()

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._position)
        self._counted_to = self._position
        return self._line
