"""How much each thing that grows may hold, and how full it is. What happens at each bound: docs/reference/bounds.md."""

from __future__ import annotations

from typing import NamedTuple

from streamserve.core.values import unchanging


class Fill(NamedTuple):
    """How much of a bound is used."""

    used: int
    limit: int

    @property
    def ratio(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def fullest(fills: list[Fill]) -> Fill:
    """Of several things with one bound each, the one that is nearest to it."""
    return max(fills, key=lambda fill: fill.ratio, default=Fill(0, 0))


@unchanging()
class Bounds:
    """Of one process; the names are those of `[bounds]` in the config, which has the words."""

    fetched_records: int = 20_000
    fetched_bytes: int = 128 << 20
    queue_requests: int = 10_000
    queue_bytes: int = 256 << 20
    open_requests: int = 200_000
    open_bytes: int = 1 << 30
    early_answers: int = 50_000
    unacknowledged_records: int = 50_000
    waiting_feedback: int = 10_000
    remembered_feedback: int = 100_000
    learnt_states: int = 1_000

    @property
    def most_queued_requests(self) -> int:
        """Of one model's queue. Reading stops at `queue_requests`, but what was fetched by then still comes; only where
        others have room, so that reading goes on, does a queue grow beyond."""
        return self.queue_requests + 2 * self.fetched_records

    @property
    def most_queued_bytes(self) -> int:
        """The same of their bytes."""
        return self.queue_bytes + 2 * self.fetched_bytes
