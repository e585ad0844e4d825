"""Recorded requests side by side with their terminal records and labels, whatever order those stand in.

Predictions of a partition come in the order in which they were settled, labels whenever somebody knew them and in the
partition of what they teach. So requests are read in windows; the predictions topic is followed just far enough to
settle a window, and what was read on the way for later windows waits on a scratch pad, as all labels do. The pad is a
private file of SQLite's: its memory is bounded, and it is gone with the process.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import Any

from streamserve.client.scanning import LogRecord, Scanner
from streamserve.core.records import OutcomeRecord
from streamserve.kafka.codecs import decode_prediction_record
from streamserve.kafka.ports import At

_PAD_KIB = 32 << 10
_WINDOW_BYTES = 32 << 20
#: Predictions are put on the pad in blocks of so many.
_BLOCK = 500


class Pad:
    """Predictions of one partition and labels of all, by request offset, until they are taken."""

    def __init__(self) -> None:
        # An empty name: a file without a name, made only when the memory below is full.
        self._db = sqlite3.connect("")
        self._db.execute(f"PRAGMA cache_size = -{_PAD_KIB}")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE said (offset INTEGER PRIMARY KEY, value BLOB)")
        self._db.execute(
            "CREATE TABLE known (partition INTEGER, offset INTEGER, given_ms INTEGER, given_partition INTEGER, "
            "given_offset INTEGER, label TEXT, PRIMARY KEY (partition, offset)) WITHOUT ROWID"
        )

    def close(self) -> None:
        self._db.close()

    def keep_said(self, said: Collection[tuple[int, bytes]]) -> None:
        """The first of an offset counts."""
        self._db.executemany("INSERT OR IGNORE INTO said VALUES (?, ?)", said)

    def take_said(self, below: int) -> dict[int, bytes]:
        """Request offset -> terminal record, of those below an offset, which are then forgotten."""
        found = dict(self._db.execute("SELECT offset, value FROM said WHERE offset < ?", (below,)))
        self._db.execute("DELETE FROM said WHERE offset < ?", (below,))
        return found

    def forget_said(self) -> None:
        self._db.execute("DELETE FROM said")

    def keep_label(self, outcome: OutcomeRecord) -> None:
        """Of several labels of one request the one given last counts: it corrects the others."""
        self._db.execute(
            "INSERT INTO known VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET given_ms = excluded.given_ms, "
            "given_partition = excluded.given_partition, given_offset = excluded.given_offset, label = excluded.label "
            "WHERE (excluded.given_ms, excluded.given_partition, excluded.given_offset) > "
            "(given_ms, given_partition, given_offset)",
            (*outcome.ref, outcome.feedback_ms, *outcome.feedback, json.dumps(outcome.label)),
        )

    def labels(self, partition: int, start: int, end: int) -> dict[int, Any]:
        """Request offset -> label, of a stretch of requests [start, end)."""
        found = self._db.execute(
            "SELECT offset, label FROM known WHERE partition = ? AND offset >= ? AND offset < ?",
            (partition, start, end),
        )
        return {offset: json.loads(label) for offset, label in found}


class Said:
    """The terminal records of a stretch of requests of one partition, found in the order of the requests."""

    def __init__(self, pad: Pad, records: AsyncIterator[LogRecord], end: int) -> None:
        """`records`: of the predictions partition, from the earliest that may answer; `end`: of the requests."""
        self._pad, self._records, self._end = pad, records, end
        self._is_over = False
        self.unreadable = 0
        """Records that cannot be terminal records."""

    async def of(self, offsets: Collection[int], below: int) -> dict[int, bytes]:
        """Request offset -> terminal record, for those that have one. Later calls ask for later offsets.

        `below`: the offset at which the next call's may begin.
        """
        found = self._pad.take_said(below)
        missing = set(offsets) - found.keys()
        later: list[tuple[int, bytes]] = []
        while missing and not self._is_over:
            record = await anext(self._records, None)
            if record is None:
                self._is_over = True
                break
            said = decode_prediction_record(
                record.value, record.headers, partition=record.at.partition, append_ms=record.append_ms
            )
            if said is None:
                self.unreadable += 1
            elif said.request_offset in missing:
                missing.discard(said.request_offset)
                found[said.request_offset] = said.raw
            elif below <= said.request_offset < self._end:
                later.append((said.request_offset, said.raw))
                if len(later) >= _BLOCK:
                    self._pad.keep_said(later)
                    later.clear()
        self._pad.keep_said(later)
        return found


async def windows(scanner: Scanner, at: At, start: int, end: int, most: int) -> AsyncGenerator[list[LogRecord], None]:
    """Requests of a stretch, up to `most` at a time, fewer where their values are large."""
    window: list[LogRecord] = []
    n_bytes = 0
    async with aclosing(scanner.read(at, start, end)) as records:
        async for record in records:
            window.append(record)
            n_bytes += len(record.value or b"")
            if len(window) >= most or n_bytes >= _WINDOW_BYTES:
                yield window
                window, n_bytes = [], 0
    if window:
        yield window
