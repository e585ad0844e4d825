"""The arithmetic of a measurement: pure functions over what the driver saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

#: A drain is timed between these shares of its answers, so that start-up and tail do not count.
DRAIN_FROM, DRAIN_TO = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """`count` answers had come in by `at_s`."""

    at_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """What was wrong with the answers; all zero is right. `not_ok`: late, refused or failed, by its own outcome."""

    missing: int
    duplicates: int
    wrong: int
    not_ok: int

    @property
    def clean(self) -> bool:
        return not (self.missing or self.duplicates or self.wrong or self.not_ok)


def drained_rate_per_s(arrivals: Sequence[Arrival], expected: int) -> float:
    """Answers a second between the 10 % and the 90 % answer; 0.0 where 90 % never came."""
    first = next((each for each in arrivals if each.count >= DRAIN_FROM * expected), None)
    last = next((each for each in arrivals if each.count >= DRAIN_TO * expected), None)
    if first is None or last is None or last.at_s <= first.at_s:
        return 0.0
    return (last.count - first.count) / (last.at_s - first.at_s)


def percentiles_ms(latencies_ms: NDArray[np.float64]) -> tuple[float, float, float]:
    """p50, p99 and p99.9; NaN where there is no answer."""
    if not len(latencies_ms):
        return float("nan"), float("nan"), float("nan")
    p50, p99, p999 = np.percentile(latencies_ms, [50, 99, 99.9])
    return float(p50), float(p99), float(p999)


def growth(latencies_ms: NDArray[np.float64]) -> float:
    """p50 of the last third over p50 of the first, in the order of sending: far above 1, the queue grew."""
    third = len(latencies_ms) // 3
    if not third:
        return float("nan")
    return float(np.median(latencies_ms[-third:]) / np.median(latencies_ms[:third]))


def counted_latencies_ms(
    sent_at_s: NDArray[np.float64],
    answers: Iterable[tuple[int, float, bool]],
    deadline_ms: float,
) -> NDArray[np.float64]:
    """`[sent]` from (index, arrival, is ok): first answer minus `produce()`; NaN where there was none.

    An answer that is not `ok` counts as at least the deadline: giving up early must not look fast.
    """
    latencies = np.full(len(sent_at_s), np.nan)
    for index, at_s, is_ok in answers:
        if np.isnan(latencies[index]):
            latency_ms = 1_000 * (at_s - sent_at_s[index])
            latencies[index] = latency_ms if is_ok else max(latency_ms, deadline_ms)
    return latencies


def outcome_is_ok(body: dict[str, Any]) -> bool:
    """Peers without outcomes answer or they do not: no word counts as `ok`."""
    return bool((body.get("parameters") or {}).get("outcome", "ok") == "ok")


def read_answer(value: bytes) -> tuple[int, int | None, bool]:
    """Index of the request, label (None where there is none), and whether the outcome is `ok` or not given.

    Raises ValueError, KeyError or TypeError where the value is not an answer of this benchmark.
    """
    body: dict[str, Any] = orjson.loads(value)
    own = [output for output in body.get("outputs", ()) if not output["name"].startswith("member.")]
    label = int(own[0]["data"][0]) if own else None
    return int(body["id"]), label, outcome_is_ok(body)


def check_labels(values: Sequence[bytes], expected: int, right: dict[int, int]) -> Correctness:
    """Compare answers with the right labels of a sample (index -> label); every id is looked at."""
    seen: set[int] = set()
    duplicates = wrong = not_ok = 0
    for value in values:
        try:
            index, label, is_ok = read_answer(value)
        except (ValueError, KeyError, TypeError, IndexError):
            wrong += 1
            continue
        duplicates += index in seen
        seen.add(index)
        not_ok += not is_ok
        # Without a label it is not `ok` either, and counted there.
        wrong += label is not None and index in right and right[index] != label
    return Correctness(missing=expected - len(seen), duplicates=duplicates, wrong=wrong, not_ok=not_ok)


def check_copies(values: Sequence[bytes], requests: Sequence[bytes]) -> Correctness:
    """For the loops without a model: each answer is its request, byte for byte."""
    unique = set(values)
    wrong = len(unique.difference(requests))
    return Correctness(
        missing=len(requests) - (len(unique) - wrong), duplicates=len(values) - len(unique), wrong=wrong, not_ok=0
    )
