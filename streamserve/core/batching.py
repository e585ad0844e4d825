"""Batch size: how many rows the next call of a model takes, and why.

`auto` fits the service time S(n) = a + b n online and takes the largest batch that still meets the oldest kept row's
deadline, but never less than what the arrivals need: without that floor an overloaded worker shrinks its batches until
it serves nobody. `aimd` and `quantile` are Clipper's (NSDI 2017, section 4.3), `fixed` and `none` the plain ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from streamserve.core.messages import F64
from streamserve.core.values import unchanging

#: Backlog is to be gone in this time: the floor counts it as arrivals.
DRAIN_MS = 500.0
_DECAY = 0.97
_SPIKE = 2.5
_FIRST_CALLS = 8
_ARRIVAL_WINDOW_MS = 250
_NEVER_MS = 1e12


@unchanging()
class Load:
    """What a batcher may look at."""

    queued_rows: int
    backlog_rows: int
    """Rows known to wait in the log behind the queue (lag)."""
    rows_per_ms: float
    """Arrivals."""
    slack_ms: float
    """From now to the deadline (less guard) of the oldest row that is kept."""
    budget_ms: float
    """The route's whole budget: what `aimd` and `quantile` hold half of."""


@unchanging()
class Size:
    """A decision: at most `rows`, because of `why` (a metric label)."""

    rows: int
    why: str
    target: int
    """What it would have been had more been queued."""


class Batcher(Protocol):
    """One per model and process."""

    def size(self, load: Load) -> Size:
        """The next batch's size, at least 1."""
        ...

    def observe(self, rows: int, duration_ms: float, limited: bool) -> None:
        """A call of `rows` rows took `duration_ms`. `limited`: the batcher, not the queue, set its size."""
        ...

    def predict_ms(self, rows: int) -> float:
        """Predicted time of a call, on the safe side; 0 while nothing is known."""
        ...


class CostModel:
    """S(n) = a + b n by decayed least squares weighted 1/S^2, with a tracked 95 % margin and a fast drift ratio."""

    def __init__(self) -> None:
        self._w = self._n = self._nn = self._t = self._nt = 0.0
        self._margin = 1.1
        self._drift = 1.0
        self._calls = 0
        self.a_ms = 0.0
        self.b_ms = 0.0

    @property
    def known(self) -> bool:
        return self._w > 0

    def observe(self, rows: int, duration_ms: float) -> None:
        self._calls += 1
        if self._calls > _FIRST_CALLS:  # what the first calls say is no spike: there is nothing yet to compare it with
            ratio = duration_ms / max(self._mean_ms(rows), 1e-6)
            clipped = min(ratio, _SPIKE)
            self._drift += 0.3 * (clipped - self._drift)
            # Quantile tracking: up 19 times as fast as down settles where 5 % are above.
            self._margin += 0.02 * (0.95 if ratio > self._margin else -0.05)
            self._margin = min(max(self._margin, 1.02), 2.0)
            duration_ms = min(duration_ms, _SPIKE * max(self._mean_ms(rows), 1e-6))
        weight = 1.0 / max(duration_ms, 0.05) ** 2
        for name, value in (("_w", 1.0), ("_n", rows), ("_nn", rows * rows), ("_t", duration_ms)):
            setattr(self, name, getattr(self, name) * _DECAY + weight * value)
        self._nt = self._nt * _DECAY + weight * rows * duration_ms
        self._fit()

    def _fit(self) -> None:
        mean_n, mean_t = self._n / self._w, self._t / self._w
        spread = self._nn / self._w - mean_n * mean_n
        slope = (self._nt / self._w - mean_n * mean_t) / spread if spread > 1e-9 * max(1.0, mean_n * mean_n) else -1.0
        if slope < 0:  # one size only so far, or noise: keep the shape seen before, scaled to the mean
            share = self.b_ms * mean_n / (self.a_ms + self.b_ms * mean_n) if self.a_ms + self.b_ms > 0 else 0.0
            slope = share * mean_t / mean_n
        self.b_ms, self.a_ms = slope, mean_t - slope * mean_n
        if self.a_ms < 1e-9 * mean_t:  # no call takes less than nothing: the best line through the origin
            self.b_ms, self.a_ms = self._nt / self._nn, 0.0

    def _mean_ms(self, rows: int) -> float:
        return self.a_ms + self.b_ms * rows

    def predict_ms(self, rows: int) -> float:
        return self._mean_ms(rows) * self._safety() if self.known else 0.0

    def rows_within(self, ms: float) -> int:
        """Largest batch whose predicted time is at most `ms`; 0 if not even one row fits."""
        room = ms / self._safety() - self.a_ms
        if room < self.b_ms:
            return 0
        return int(room / self.b_ms) if self.b_ms > 1e-9 else 1 << 30

    def _safety(self) -> float:
        return self._margin * max(1.0, self._drift)


class Auto:
    """Largest batch in the slack, floored by what the arrivals need, capped by `max_batch`."""

    def __init__(self, max_batch: int) -> None:
        self._max = max_batch
        self._cost = CostModel()

    def size(self, load: Load) -> Size:
        cost = self._cost
        if not cost.known:
            return _first(load, self._max)
        floor = self._floor(load)
        fits = cost.rows_within(load.slack_ms)
        target = max(1, min(max(fits, floor), self._max))
        if fits >= self._max and load.queued_rows >= self._max:
            return Size(rows=self._max, why="cap", target=target)
        if load.queued_rows <= max(fits, floor):
            return Size(rows=max(1, min(load.queued_rows, self._max)), why="drained", target=target)
        if fits >= floor:
            return Size(rows=max(1, min(fits, self._max)), why="slack", target=target)
        return Size(rows=floor, why="floor", target=target)

    def _floor(self, load: Load) -> int:
        """The smallest batch whose throughput meets the demand, but never one that takes half the budget."""
        cost = self._cost
        demand = load.rows_per_ms + (load.queued_rows + load.backlog_rows) / DRAIN_MS
        room = 1.0 - cost.b_ms * demand
        need = self._max if room < 0.1 else math.ceil(cost.a_ms * demand / room)
        half = cost.rows_within(load.budget_ms / 2)
        return max(1, min(need, half, self._max))

    def observe(self, rows: int, duration_ms: float, limited: bool) -> None:
        self._cost.observe(rows, duration_ms)

    def predict_ms(self, rows: int) -> float:
        return self._cost.predict_ms(rows)


class Aimd:
    """Clipper's additive increase, multiplicative decrease on the call's latency, with slow start.

    Grows only after a batch that the cap limited: at light load the cap would otherwise collapse to the load.
    """

    def __init__(self, max_batch: int, step: int = 2, backoff: float = 0.9, guard: float = 0.1) -> None:
        self._max = max_batch
        self._step = step
        self._backoff = backoff
        self._guard = guard
        self._cap = 1
        self._slow_start = True
        self._objective_ms = _NEVER_MS
        self._cost = CostModel()

    def size(self, load: Load) -> Size:
        self._objective_ms = load.budget_ms / 2
        return _up_to(self._cap, load, "aimd")

    def observe(self, rows: int, duration_ms: float, limited: bool) -> None:
        self._cost.observe(rows, duration_ms)
        if duration_ms >= self._objective_ms:
            # A slow call that the queue kept small says little of the cap: one hiccup must not undo it.
            self._cap = max(1, int((min(rows, self._cap) if limited else self._cap) * self._backoff))
            self._slow_start = False
        elif duration_ms < self._objective_ms * (1 - self._guard) and limited:
            self._cap = min(self._max, self._cap * 2 if self._slow_start else self._cap + self._step)

    def predict_ms(self, rows: int) -> float:
        return self._cost.predict_ms(rows)


class Quantile:
    """Clipper's quantile regression, refitted over a sliding window instead of frozen after the first fit.

    latency = alpha * rows + beta at the 0.99 quantile of the last calls; explores with `Aimd` until there are enough.
    """

    def __init__(self, max_batch: int, window: int = 500, quantile: float = 0.99) -> None:
        self._max = max_batch
        self._quantile = quantile
        self._calls: deque[tuple[int, float]] = deque(maxlen=window)
        self._explore = Aimd(max_batch)
        self._cost = CostModel()
        self._since_fit = 0
        self._line: tuple[float, float] | None = None

    def size(self, load: Load) -> Size:
        explored = self._explore.size(load)
        if self._line is None:
            return explored
        alpha, beta = self._line
        objective = load.budget_ms / 2
        cap = int((objective - beta) / alpha) if alpha > 1e-9 else self._max
        return _up_to(max(1, min(cap, self._max)), load, "quantile")

    def observe(self, rows: int, duration_ms: float, limited: bool) -> None:
        self._cost.observe(rows, duration_ms)
        self._explore.observe(rows, duration_ms, limited)
        self._calls.append((rows, duration_ms))
        self._since_fit += 1
        if len(self._calls) >= 50 and self._since_fit >= 50:
            self._since_fit = 0
            self._line = self._fit()

    def _fit(self) -> tuple[float, float] | None:
        """Least squares through the calls, lifted so that the stated share of calls lies below."""
        calls = list(self._calls)
        n = len(calls)
        mean_rows = sum(rows for rows, _ in calls) / n
        mean_ms = sum(ms for _, ms in calls) / n
        spread = sum((rows - mean_rows) ** 2 for rows, _ in calls)
        if spread < 1e-9:
            return None
        alpha = max(0.0, sum((rows - mean_rows) * (ms - mean_ms) for rows, ms in calls) / spread)
        rests = sorted(ms - alpha * rows for rows, ms in calls)
        return alpha, rests[min(n - 1, int(self._quantile * n))]

    def predict_ms(self, rows: int) -> float:
        return self._cost.predict_ms(rows)


class Fixed:
    """Up to a constant; `none` is a constant of 1."""

    def __init__(self, rows: int, why: str = "fixed") -> None:
        self._rows = rows
        self._why = why
        self._cost = CostModel()

    def size(self, load: Load) -> Size:
        return _up_to(self._rows, load, self._why)

    def observe(self, rows: int, duration_ms: float, limited: bool) -> None:
        self._cost.observe(rows, duration_ms)

    def predict_ms(self, rows: int) -> float:
        return self._cost.predict_ms(rows)


def hopeless(slacks_ms: F64, rows: int, predict_ms: Callable[[int], float]) -> int:
    """How many heads of the queue to give up, so that the next one makes it in a batch of `rows`; one is always kept.

    `slacks_ms`: `[n]`, increasing. Without it the floor runs batches that are too late for all who are in them: 99 %
    missed in sustained overload at 1.25 times the capacity, against 37 % with it.
    """
    n = len(slacks_ms)
    low, high = 0, n - 1
    while low < high:  # with each head given up the next slack is longer and the rest of the queue shorter
        middle = (low + high) // 2
        if slacks_ms[middle] >= predict_ms(min(rows, n - middle)):
            high = middle
        else:
            low = middle + 1
    return low


def _up_to(cap: int, load: Load, why: str) -> Size:
    if load.queued_rows < cap:
        return Size(rows=max(1, load.queued_rows), why="drained", target=cap)
    return Size(rows=cap, why=why, target=cap)


def _first(load: Load, cap: int) -> Size:
    """Nothing is known of the model yet: a small batch tells, without staking many requests on it."""
    return _up_to(min(16, cap), load, "first")


BATCHINGS = ("auto", "aimd", "quantile", "fixed", "none")


def make_batcher(batching: str, max_batch: int, batch_size: int) -> Batcher:
    """One of `BATCHINGS`; `batch_size` is that of `fixed`."""
    match batching:
        case "auto":
            return Auto(max_batch)
        case "aimd":
            return Aimd(max_batch)
        case "quantile":
            return Quantile(max_batch)
        case "fixed":
            return Fixed(batch_size)
        case "none":
            return Fixed(1, "none")
        case _:
            raise ValueError(f"no batching {batching!r}; there is {', '.join(BATCHINGS)}")


class Arrivals:
    """Rows per millisecond over the last quarter of a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()
        self._rows = 0

    def add(self, rows: int, now_ms: int) -> None:
        self._forget(now_ms)  # here too: nobody asks while a call hangs
        self._seen.append((now_ms, rows))
        self._rows += rows

    def rows_per_ms(self, now_ms: int) -> float:
        self._forget(now_ms)
        return self._rows / _ARRIVAL_WINDOW_MS

    def _forget(self, now_ms: int) -> None:
        while self._seen and self._seen[0][0] < now_ms - _ARRIVAL_WINDOW_MS:
            self._rows -= self._seen.popleft()[1]
