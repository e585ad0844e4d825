"""All partitions of one app together: rows that have changed, windows that are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamserve.core.bounds import Fill, fullest
from streamserve.core.epochs import outcome_partition
from streamserve.insights.cells import Row, added, value_of
from streamserve.insights.slices import OUTCOMES, PREDICTIONS, Changes, InsightRules, Slice
from streamserve.topics.internal_values import InsightValue

#: How long after the end of the join window an outcome may still come: the join waits, and may be behind.
SLACK_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is to be written, then published."""

    changes: dict[int, Changes]
    """Partition -> what its changelog is to hold."""
    rows: dict[Row, InsightValue]


class Board:
    """The slices of an app, by partition, and the rows of them all."""

    def __init__(self, rules: InsightRules, partitions: int, join_window_ms: int) -> None:
        self._rules, self._partitions = rules, partitions
        self._kept_ms = rules.window_ms + join_window_ms + SLACK_MS
        self.slices: dict[int, Slice] = {}

    def row(self, row: Row, *, final: bool = False) -> InsightValue:
        """One row, added up over all partitions."""
        parts = [self.slices[number].cells.get(row) for number in sorted(self.slices)]
        total = added(cell for cell in parts if cell is not None)
        return value_of(row, total, self._rules.window_ms, final=final)

    def rows(self) -> list[Row]:
        """Every row that is there, oldest window first."""
        found = {row for slice_ in self.slices.values() for row in slice_.cells}
        return sorted(found, key=lambda row: (row.from_ms, row))

    def fills(self) -> dict[str, Fill]:
        """How full its bound is."""
        return {
            "insight_rows": fullest(
                [Fill(len(slice_.cells), self._rules.most_cells) for slice_ in self.slices.values()]
            )
        }

    def home(self, row: Row) -> int:
        """Partition of the insights topic where a row belongs."""
        return outcome_partition(row.route, row.context, self._partitions)

    def closing_ms(self, drained: Mapping[int, tuple[bool, bool]]) -> int:
        """For windows that begin before this no feedback can come any more.

        `drained`: partition -> whether its predictions, and its outcomes, have been read to the end: then nothing older
        than what was read anywhere is still to come from it. What is behind keeps windows open.
        """
        horizon_ms = max((ms for slice_ in self.slices.values() for ms in slice_.newest_ms), default=-1)
        for number, slice_ in self.slices.items():
            at_end = drained.get(number, (False, False))
            for source in (PREDICTIONS, OUTCOMES):
                if not at_end[source]:
                    horizon_ms = min(horizon_ms, slice_.newest_ms[source])
        return horizon_ms - self._kept_ms

    def turn(self, drained: Mapping[int, tuple[bool, bool]]) -> Turn:
        """What has changed since the last turn, and the last values of windows that are over: those are dropped."""
        closed_ms = self.closing_ms(drained)
        over = [row for row in self.rows() if row.from_ms < closed_ms]
        changes = {number: slice_.changes() for number, slice_ in self.slices.items()}
        changed = {Row(*key[1:]) for one in changes.values() for key in one.cells}  # type: ignore[arg-type]  # a key is text or a number, as its columns
        rows = {row: self.row(row, final=row.from_ms < closed_ms) for row in sorted(changed | set(over))}
        for slice_ in self.slices.values():
            slice_.close(over, closed_ms)
        return Turn(changes=changes, rows=rows)
