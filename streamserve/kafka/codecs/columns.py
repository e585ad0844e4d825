"""Collects what single values hold into the columns of `Decoded`. Shared by all input codecs."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamserve.core.codec import Decoded, Rows
from streamserve.core.messages import I64, AnyArray
from streamserve.core.reasons import Reason
from streamserve.core.values import unchanging

TEXT = np.dtype(object)
FLOAT64 = np.dtype(np.float64)
_JSON_WORDS = {None: "null", False: "false", True: "true"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a value cannot be used, in words for a person. A value, not an exception: bad input is expected."""

    reason: Reason
    words: str


@unchanging(eq=False)
class Tensor:
    """The rows of one value, checked: `payload` holds exactly `n_rows * prod(trailing)` elements."""

    dtype: np.dtype[Any]
    trailing: tuple[int, ...]
    n_rows: int
    payload: bytes | memoryview | list[str]
    """Raw native elements; a list of strings where dtype is `TEXT`."""


class Group:
    """The rows of one (dtype, trailing shape), in order of arrival."""

    __slots__ = ("dtype", "index", "numbers", "texts", "trailing")

    def __init__(self, index: int, dtype: np.dtype[Any], trailing: tuple[int, ...]) -> None:
        self.index = index
        self.dtype = dtype
        self.trailing = trailing
        self.numbers: array[Any] = array("d" if dtype == FLOAT64 else "B")
        self.texts: list[str] = []

    def extend(self, payload: bytes | memoryview | list[str]) -> None:
        if isinstance(payload, list):
            self.texts += payload
        else:
            self.numbers.frombytes(payload)

    def finish(self) -> Rows:
        elements: AnyArray
        if self.dtype == TEXT:
            elements = np.empty(len(self.texts), TEXT)
            elements[:] = self.texts
        else:
            elements = np.frombuffer(self.numbers, self.dtype)
        return Rows(array=elements.reshape(-1, *self.trailing))


class ColumnsBuilder:
    """One `add` or `refuse` for each value, in order; then `finish`."""

    __slots__ = ("errors", "group_of", "groups", "ids", "n_rows")

    def __init__(self) -> None:
        self.groups: dict[tuple[np.dtype[Any], tuple[int, ...]], Group] = {}
        self.group_of: list[int] = []
        self.n_rows: list[int] = []
        self.ids: list[str | None] = []
        self.errors: dict[int, tuple[Reason, str]] = {}

    def group(self, dtype: np.dtype[Any], trailing: tuple[int, ...]) -> Group:
        found = self.groups.get((dtype, trailing))
        if found is None:
            found = self.groups[dtype, trailing] = Group(len(self.groups), dtype, trailing)
        return found

    def add(self, tensor: Tensor, request_id: str | None) -> None:
        group = self.group(tensor.dtype, tensor.trailing)
        group.extend(tensor.payload)
        self.group_of.append(group.index)
        self.n_rows.append(tensor.n_rows)
        self.ids.append(request_id)

    def refuse(self, refusal: Refusal, request_id: str | None = None) -> None:
        self.errors[len(self.ids)] = (refusal.reason, refusal.words)
        self.group_of.append(-1)
        self.n_rows.append(0)
        self.ids.append(request_id)

    def finish(self) -> Decoded:
        group_of = np.array(self.group_of, np.int64)
        n_rows = np.array(self.n_rows, np.int64)
        return Decoded(
            groups=tuple(group.finish() for group in self.groups.values()),
            group=group_of,
            first_row=_first_rows(group_of, n_rows, len(self.groups)),
            n_rows=n_rows,
            ids=self.ids,
            errors=self.errors,
        )


def _first_rows(group_of: I64, n_rows: I64, groups: int) -> I64:
    """Running count of the rows before each value in its own group."""
    if groups <= 1:  # refused values hold no rows, so they do not move the count
        return np.cumsum(n_rows) - n_rows
    first = np.zeros_like(n_rows)
    for index in range(groups):
        of_group = group_of == index
        counts = n_rows[of_group]
        first[of_group] = np.cumsum(counts) - counts
    return first


def unreadable(value: bytes | None, max_request_bytes: int) -> Refusal:
    """The reason of a value that is refused without parsing: nothing is there, or too much."""
    if value is None:
        return Refusal(Reason.EMPTY_VALUE, "a tombstone: the record has no value")
    if not value:
        return Refusal(Reason.EMPTY_VALUE, "the value is empty")
    words = f"the value has {len(value)} bytes, above max_request_bytes = {max_request_bytes} of [app]"
    return Refusal(Reason.TOO_LARGE, words)


def id_text(value: object) -> str | None:
    """An id is a string; a number is taken as its text; anything else is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return None


def excerpt(value: object, limit: int = 60) -> str:
    """A short, printable form of something that a user sent, in JSON's words."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return _JSON_WORDS[value]
    text = ascii(value[:limit] if isinstance(value, str | bytes) else value)
    return text if len(text) <= limit else f"{text[:limit]}..."
