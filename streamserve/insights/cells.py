"""What is counted of one (route, model, context) in one window, and the row that is published of it.

A cell holds sums and counts only, so cells of several partitions are added up, in any order, to the cell of all. Delays
are counted in the logarithmic bins of DDSketch (Masson, Rim, Lee: VLDB 2019): a quantile is off by at most 1 % of its
value, and the bins of two cells add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import fsum
from typing import Literal, NamedTuple

import msgspec
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

from streamserve.topics.internal_values import InsightValue

#: Of a quantile of the delays.
RELATIVE_ERROR = 0.01
_VERSION: Literal[1] = 1
_mapping = LogarithmicMapping(RELATIVE_ERROR)


class Row(NamedTuple):
    """Whose figures, and of which window."""

    route: str
    model: str
    """Empty: the route itself, by what it served."""
    context: str
    from_ms: int


def _nothing() -> list[float]:
    return [0.0, 0.0]


def _unread() -> list[int]:
    return [0, 0]


class Cell(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts of one row, from one partition of predictions and of outcomes."""

    predictions: int = 0
    answered: int = 0
    outcomes: dict[str, int] = {}
    agreement: list[float] = msgspec.field(default_factory=_nothing)
    """Sum and number of what was compared."""
    feedback: int = 0
    delays: dict[int, int] = {}
    """Bin of DDSketch -> how many delays are in it."""
    loss: list[float] = msgspec.field(default_factory=_nothing)
    """Sum and number of losses."""
    alarms: int = 0
    alarm_ms: int = -1
    read: list[int] = msgspec.field(default_factory=_unread)
    """Offsets of predictions and of outcomes below which all is in it: what is read again changes nothing."""

    def predicted(self, outcome: str, *, answered: bool, agreement: float | None) -> None:
        self.predictions += 1
        self.answered += answered
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if agreement is not None:
            self.agreement = [self.agreement[0] + agreement, self.agreement[1] + 1]

    def told(self, delay_ms: int | None, loss: float | None) -> None:
        """Feedback has come; `loss` None: it says nothing of this row. `delay_ms` None: not known."""
        self.feedback += 1
        if delay_ms is not None:
            bin_ = bin_of(delay_ms)
            self.delays[bin_] = self.delays.get(bin_, 0) + 1
        if loss is not None:
            self.loss = [self.loss[0] + loss, self.loss[1] + 1]

    def alarmed(self, at_ms: int) -> None:
        self.alarms += 1
        self.alarm_ms = max(self.alarm_ms, at_ms)


@lru_cache(maxsize=4096)
def bin_of(delay_ms: int) -> int:
    """The bin of a delay; what took no time counts as 1 ms."""
    return int(_mapping.key(float(max(1, delay_ms))))


def quantile_ms(delays: dict[int, int], q: float) -> float | None:
    """The q-quantile (of n delays the one of rank q (n - 1)), within `RELATIVE_ERROR`; None where there are none."""
    if not delays:
        return None
    store = DenseStore()
    for bin_, n in delays.items():
        store.add(bin_, n)
    return float(_mapping.value(store.key_at_rank(q * (store.count - 1))))


def added(cells: Iterable[Cell]) -> Cell:
    """The cell of all; the same to the last bit in whatever order they come."""
    total, parts = Cell(), list(cells)
    for cell in parts:
        total.predictions += cell.predictions
        total.answered += cell.answered
        total.feedback += cell.feedback
        total.alarms += cell.alarms
        total.alarm_ms = max(total.alarm_ms, cell.alarm_ms)
        for outcome, n in cell.outcomes.items():
            total.outcomes[outcome] = total.outcomes.get(outcome, 0) + n
        for bin_, n in cell.delays.items():
            total.delays[bin_] = total.delays.get(bin_, 0) + n
    total.agreement = [fsum(cell.agreement[0] for cell in parts), fsum(cell.agreement[1] for cell in parts)]
    total.loss = [fsum(cell.loss[0] for cell in parts), fsum(cell.loss[1] for cell in parts)]
    return total


def value_of(row: Row, cell: Cell, window_ms: int, *, final: bool) -> InsightValue:
    """What is published of a row."""
    return InsightValue(
        v=_VERSION,
        route=row.route,
        model=row.model,
        context=row.context,
        from_ms=row.from_ms,
        until_ms=row.from_ms + window_ms,
        final=final,
        predictions=cell.predictions,
        answered=cell.answered,
        outcomes=dict(sorted(cell.outcomes.items())),
        agreement=_mean(*cell.agreement),
        feedback=cell.feedback,
        join_rate=min(1.0, cell.feedback / cell.predictions) if cell.predictions else None,
        judged=int(cell.loss[1]),
        accuracy=None if (loss := _mean(*cell.loss)) is None else 1.0 - loss,
        delay_p50_ms=quantile_ms(cell.delays, 0.50),
        delay_p90_ms=quantile_ms(cell.delays, 0.90),
        delay_p99_ms=quantile_ms(cell.delays, 0.99),
        drift_alarms=cell.alarms,
        drift_ms=None if cell.alarm_ms < 0 else cell.alarm_ms,
    )


def _mean(total: float, n: float) -> float | None:
    return min(1.0, max(0.0, total / n)) if n else None
