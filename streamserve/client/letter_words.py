"""Dead letters in words: one line each, counted, or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from streamserve.client.dead_letters import Letter, Marks, Survey
from streamserve.client.lines import as_text, excerpt
from streamserve.client.purge import Removal
from streamserve.client.redrive import Result
from streamserve.client.times import age, local_time
from streamserve.kafka.codecs.redrives import times_redriven

_HEX_WIDTH = 16


def lines(found: Survey, letters: Sequence[Letter], now_ms: int) -> list[str]:
    """Place, age, source, reason, model and words, in columns."""
    cells = [
        (
            letter.place,
            age(max(0, now_ms - letter.append_ms)),
            source_words(letter),
            letter.said.reason or "unknown",
            letter.said.model or "-",
        )
        for letter in letters
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), _words(letter, found.marks)]
        ).rstrip()
        for row, letter in zip(cells, letters, strict=True)
    ]


def source_words(letter: Letter) -> str:
    """Kind and place of the original."""
    return f"{visible(letter.kind)} {letter.said.source.ref}" if letter.said.source.topic else "nowhere"


def _words(letter: Letter, marks: Marks) -> str:
    state = marks.state(letter)
    notes = [] if state == "new" else ["redriven"] if state == "redriven" else ["its redrive has not ended"]
    notes += ["cut"] if letter.is_cut else []
    told = visible(excerpt(letter.said.message))
    return f"[{', '.join(notes)}] {told}" if notes else told


def counts(found: Survey) -> list[dict[str, Any]]:
    """By source, reason and model, the most frequent first."""
    table: dict[tuple[str, str, str], dict[str, Any]] = {}
    for letter in found.letters:  # newest last
        named = (letter.kind, letter.said.reason, letter.said.model)
        row = table.setdefault(
            named,
            {
                **dict(zip(("source", "reason", "model"), named, strict=True)),
                "count": 0,
                "redriven": 0,
                "first_ms": letter.append_ms,
            },
        )
        row["count"] += 1
        row["redriven"] += found.marks.state(letter) == "redriven"
        row["last_ms"] = letter.append_ms
    return sorted(table.values(), key=lambda row: (-row["count"], row["source"], row["reason"], row["model"]))


def count_lines(rows: Sequence[dict[str, Any]], now_ms: int) -> list[str]:
    """`counts` as a table."""
    head = ("count", "source", "reason", "model", "redriven", "oldest", "newest")
    cells = [head] + [
        (
            str(row["count"]),
            visible(row["source"]) or "-",
            row["reason"],
            row["model"] or "-",
            str(row["redriven"]),
            age(max(0, now_ms - row["first_ms"])),
            age(max(0, now_ms - row["last_ms"])),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def plain(letter: Letter, marks: Marks, *, with_value: bool = False) -> dict[str, Any]:
    """For a program."""
    said = letter.said
    told = {
        "place": letter.place,
        "append_ms": letter.append_ms,
        "source": {"kind": letter.kind, "topic": said.source.topic, "ref": said.source.ref},
        "stage": said.stage,
        "reason": said.reason,
        "message": said.message,
        "model": said.model,
        "attempts": said.attempts,
        "exception": said.exception,
        "stack": said.stack,
        "id": letter.id,
        "state": marks.state(letter),
        "redriven": marks.done[said.source],
        "cut": letter.is_cut,
        "sha256": said.sha256,
        "key": None if letter.key is None else as_text(letter.key),
        "headers": [[name, None if text is None else as_text(text)] for name, text in said.headers],
        "size": letter.size,
    }
    if with_value:
        told["value"] = None if letter.value is None else as_text(letter.value)
    return told


def whole(letter: Letter, found: Survey, now_ms: int) -> list[str]:
    """Everything that a dead letter holds."""
    said = letter.said
    calls = f", {said.attempts} calls with it" if said.attempts else ""
    rows = [
        ("from", f"{source_words(letter)} of {visible(said.source.topic)}" if said.source.topic else "nowhere"),
        ("by", said.stage),
        ("reason", said.reason),
        ("message", said.message),
        ("model", f"{said.model}{calls}" if said.model else ""),
        ("exception", said.exception),
        ("id", _id_words(letter)),
        ("redriven", _redriven_words(letter, found.marks)),
        ("key", "none" if letter.key is None else as_text(letter.key)),
    ]
    when = f"appended {local_time(letter.append_ms)}, {age(max(0, now_ms - letter.append_ms))} ago"
    text = [f"dead letter {letter.place} of {found.topic}, {when}"]
    text += [f"{name:<10} {visible(words)}" for name, words in rows if words]
    for name, content in said.headers:
        text.append(f"{'header':<10} {visible(name)}: {'null' if content is None else visible(as_text(content))}")
    text += ["stack", *(f"  {visible(line)}" for line in said.stack.splitlines())] if said.stack else []
    return [*text, *_value(letter)]


def _id_words(letter: Letter) -> str:
    if letter.body_id:
        return letter.body_id
    return f"{letter.id} (ce_id)" if letter.id else "none of its own"


def _redriven_words(letter: Letter, marks: Marks) -> str:
    before = times_redriven(letter.said.headers)
    came = f"; had been redriven {before} times before it came here" if before else ""
    state = marks.state(letter)
    if state == "unsure":
        return f"a redrive of it began and has not said that it is done; the next one finds out{came}"
    return ("not yet" if state == "new" else f"{marks.done[letter.said.source]} times") + came


def _value(letter: Letter) -> list[str]:
    value = letter.value
    if value is None:
        return ["value      null"]
    cut = f", the beginning of a longer one with SHA-256 {letter.said.sha256}" if letter.is_cut else ""
    size = f"{len(value):,} bytes{cut}"
    try:
        shown = orjson.dumps(orjson.loads(value), option=orjson.OPT_INDENT_2).decode()
        return [f"value      {size}, JSON", *(f"  {visible(line)}" for line in shown.splitlines())]
    except orjson.JSONDecodeError:
        pass
    text = _as_words(value, letter.is_cut)
    if text is not None:
        return [f"value      {size}, text", *(f"  {line}" for line in text.split("\n"))]
    return [f"value      {size}", *hex_lines(value)]


def _as_words(value: bytes, is_cut: bool) -> str | None:
    """As text, where it is nothing else; a character that was cut through is left out."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(value) - 3:
            return None
        text = value[: error.start].decode("utf-8")
    return text if visible(text.replace("\n", "").replace("\t", "").replace("\r", "")).count("\\x") == 0 else None


def hex_lines(value: bytes) -> list[str]:
    """Offset, bytes, and the characters that can be shown."""
    rows = []
    for start in range(0, len(value), _HEX_WIDTH):
        part = value[start : start + _HEX_WIDTH]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        rows.append(f"  {start:06x}  {part.hex(' '):<{3 * _HEX_WIDTH}} {shown}")
    return rows


def visible(text: str) -> str:
    """Without what moves a terminal's cursor or colours it: a sender may have put it there."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def result_line(result: Result) -> str:
    """What becomes, or became, of one dead letter."""
    letter = result.letter
    head = f"{letter.place}  {source_words(letter)}: {result.fate}"
    if result.to is not None and result.fate in ("to send", "redriven"):
        head += f" to {result.to.topic}" + (f" as {result.ref}" if result.ref else f", partition {result.to.partition}")
    if result.ce_id and result.fate != "failed":
        head += f"; it has no id: its ref {result.ce_id} is kept as ce_id"
    return f"{head}; {result.why}" if result.why and result.fate == "redriven" else head + _because(result)


def _because(result: Result) -> str:
    return f": {result.why}" if result.why else ""


def result_plain(result: Result) -> dict[str, Any]:
    """For a program."""
    source, to = result.letter.said.source, result.to
    return {
        "place": result.letter.place,
        "source": {"kind": result.letter.kind, "topic": source.topic, "ref": source.ref},
        "result": result.fate.replace(" ", "_"),
        "topic": None if to is None else to.topic,
        "partition": None if to is None else to.partition,
        "ref": result.ref or None,
        "ce_id": result.ce_id,
        "why": result.why,
    }


def removal_lines(removal: Removal, dry_run: bool) -> list[str]:
    """What becomes, or became, of one partition."""
    where = f"partition {removal.at.partition} of {removal.at.topic}"
    if removal.error:
        return [f"{where}: nothing removed: {removal.error}"]
    text = []
    if removal.removed:
        last = removal.removed[-1].place
        verb = "would be removed" if dry_run else "removed"
        text.append(f"{where}: {len(removal.removed)} {verb}, up to {last}; it begins at offset {removal.before} then")
    if removal.kept:
        first = min(removal.kept, key=lambda letter: letter.offset).place
        text.append(
            f"{where}: {len(removal.kept)} cannot be removed singly, the first being {first}: "
            "one that is not meant stands before them"
        )
    return text


def removal_plain(removal: Removal, dry_run: bool) -> dict[str, Any]:
    """For a program."""
    return {
        "topic": removal.at.topic,
        "partition": removal.at.partition,
        "before": removal.before if removal.removed else None,
        "removed": 0 if dry_run else len(removal.removed),
        "to_remove": len(removal.removed),
        "kept": [letter.place for letter in removal.kept],
        "error": removal.error,
    }
