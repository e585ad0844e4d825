"""Plain lines and JSON lines. Whoever does not read them stalls nobody: then lines are dropped, and counted."""

from __future__ import annotations

import json
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from streamserve.supervisor.news import ChildFacts, News, Snapshot

MOST_QUEUED = 2_000
_CLOSE_S = 0.5
_PLAIN_STATUS_EVERY_S = 5.0
_READY = "ready"
_WAITING = "waiting"


class LineWriter:
    """Writes lines to a file descriptor from a thread of its own. `write` never waits."""

    def __init__(self, descriptor: int, dropped: Callable[[int], str], most_queued: int = MOST_QUEUED) -> None:
        """`dropped`: the line that tells how many were lost, written before the first one after a gap."""
        self._descriptor = os.dup(descriptor)
        self._notice = dropped
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._most = most_queued
        self._lost = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"writes to {descriptor}", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one line (without its end), or drop it where the queue is full."""
        with self._lock:
            if self._queue.qsize() >= self._most:
                self._lost += 1
                return
            if self._lost:
                self._queue.put(self._notice(self._lost))
                self._lost = 0
            self._queue.put(line)

    def close(self) -> None:
        """Write what is queued, as far as a reader takes it at once."""
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        with suppress(OSError):  # the reader has gone: nobody is told anything any more
            while (line := self._queue.get()) is not None:
                self._write(line.encode("utf-8", "replace") + b"\n")
        os.close(self._descriptor)

    def _write(self, content: bytes) -> None:
        while content:
            try:
                content = content[os.write(self._descriptor, content) :]
            except BlockingIOError:  # somebody made the pipe non-blocking
                select.select([], [self._descriptor], [])


class JsonLines:
    """One JSON object a line on standard output: `ready`, and what comes after it; before it only `waiting`, where a
    start takes long. What else is told before `ready`, and the children's output, on standard error."""

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._out = LineWriter(out, lambda lost: json.dumps({"event": "dropped", "lines": lost}))
        self._err = _error_lines(err)
        self._is_ready = False

    def news(self, news: News) -> None:
        self._is_ready |= news.event == _READY
        if self._is_ready or news.event == _WAITING:
            self._out.write(json.dumps({"event": news.event, "time_ms": _now_ms(), **news.facts, "words": news.words}))
        else:
            self._err.write(news.words)

    def status(self, snapshot: Snapshot) -> None:
        if self._is_ready:
            roles = [facts.as_json() | {"status": facts.status} for facts in snapshot.children]
            self._out.write(json.dumps({"event": "status", "time_ms": _now_ms(), "roles": roles}))

    def heard(self, name: str, line: str) -> None:
        self._err.write(f"[{name}] {line}")

    def close(self) -> None:
        self._out.close()
        self._err.close()


class PlainLines:
    """Words on standard output, one line a process every 5 s; the children's output on standard error."""

    def __init__(self, out: int = 1, err: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = LineWriter(out, lambda lost: f"({lost} lines were dropped: nobody read them)")
        self._err = _error_lines(err)
        self._clock = clock
        self._next_s = 0.0
        self._is_ready = False

    def news(self, news: News) -> None:
        self._is_ready |= news.event == _READY
        self._out.write(news.words)

    def status(self, snapshot: Snapshot) -> None:
        if not self._is_ready or self._clock() < self._next_s:
            return
        self._next_s = self._clock() + _PLAIN_STATUS_EVERY_S
        for facts in snapshot.children:
            self._out.write(plain_status(facts))
        for route, weights in newest_weights(snapshot.children).items():
            self._out.write(f"weights of {route}: {weight_words(weights)}")

    def heard(self, name: str, line: str) -> None:
        self._err.write(f"[{name}] {line}")

    def close(self) -> None:
        self._out.close()
        self._err.close()


def plain_status(facts: ChildFacts) -> str:
    """One process in one line."""
    if facts.status is None:
        return f"{facts.plan.name}: {facts.state}"
    status = facts.status
    parts = [
        f"reads {number(status.get('consumed_per_s'))}/s",
        f"lag {number(status.get('lag_records'))}",
        *(f"{model} batch {size_words(batch)}" for model, batch in status.get("batches", {}).items()),
        *(f"{route} {_route_words(figures)}" for route, figures in status.get("routes", {}).items()),
    ]
    return f"{facts.plan.name}: {', '.join(parts)}"


def newest_weights(children: Iterable[ChildFacts]) -> dict[str, Mapping[str, float]]:
    """The weights of each route that learns; every process follows the same."""
    newest: dict[str, Mapping[str, float]] = {}
    for facts in children:
        newest |= (facts.status or {}).get("weights", {})
    return newest


def _route_words(figures: Mapping[str, Any]) -> str:
    latency = f"p50 {number(figures.get('latency_p50_ms'))} ms p99 {number(figures.get('latency_p99_ms'))} ms"
    return f"{number(figures.get('rate_per_s'))}/s {latency} {outcome_words(figures.get('outcomes', {}))}"


def number(value: Any) -> str:
    """A figure for people; `-` where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def size_words(batch: Mapping[str, Any]) -> str:
    """`12 (drained)`: rows of the last batch, and what decided it."""
    return f"{batch['size']} ({batch['why']})"


def outcome_words(outcomes: Mapping[str, int]) -> str:
    """`ok 1,003 partial 2`, those that occurred."""
    return " ".join(f"{outcome} {count:,}" for outcome, count in outcomes.items() if count)


def weight_words(weights: Mapping[str, float]) -> str:
    """`forest@1 0.71 linear@1 0.29`, the heaviest first."""
    return " ".join(f"{model} {weight:.2f}" for model, weight in sorted(weights.items(), key=lambda pair: -pair[1]))


def _error_lines(descriptor: int) -> LineWriter:
    return LineWriter(descriptor, lambda lost: f"({lost} lines were dropped here; the log files have them)")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
