"""From what was acknowledged and what stands in the predictions topic to what was lost, repeated and late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

_OFFSET_BITS = 44
#: Service is called normal where at least this share of a slot's requests is answered in time.
_NORMAL_SHARE = 0.99
_SLOT_MS = 250
#: How long service is timed before the fault; what comes earlier is warm-up.
_BEFORE_MS = 2_000
_ANSWERED = ("ok", "partial")


def ref_key(partition: int, offset: int) -> int:
    """One number for a request."""
    return (partition << _OFFSET_BITS) + offset


def key_of_ref(ref: bytes) -> int:
    """The same from the text that a prediction's header has."""
    partition, _, offset = ref.partition(b"-")
    return ref_key(int(partition), int(offset))


@dataclass(slots=True)
class Acknowledged:
    """Requests that the broker has said it has."""

    keys: list[int] = field(default_factory=list)
    append_ms: list[int] = field(default_factory=list)
    failed: int = 0
    """Sends that ended with an error: the record may be in the log all the same."""


@dataclass(slots=True)
class Terminal:
    """Terminal records in the order in which they were read: of a partition, that of the log."""

    keys: list[int] = field(default_factory=list)
    append_ms: list[int] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the requests of a run."""

    acknowledged: int
    unknown: int
    """Terminal records of requests that were never acknowledged."""
    failed_sends: int
    lost: int
    """Acknowledged, without a terminal record."""
    deleted: int
    """Of those without one: deleted from the log before a role read them."""
    twice: int
    """Requests with more than one terminal record."""
    in_time: int
    """`ok` or `partial` before the deadline."""
    late: int
    """`ok` or `partial` after it."""
    default: int
    expired: int
    error: int
    longest_gap_s: float
    """Longest time without an answer in time, in any partition, from the fault on."""
    normal_after_s: float
    """From the fault until all are answered in time again."""
    p50_ms: float
    p99_ms: float
    """Of what came in the two seconds before the fault."""
    not_answered_after_s: float
    """The last terminal record, counted from the end of the fault."""


def settle(
    acknowledged: Acknowledged,
    terminal: Terminal,
    *,
    deadline_ms: int,
    fault_ms: tuple[float, float],
    end_ms: float,
    deleted: Iterable[int] = (),
    partitions: int,
) -> Account:
    """`fault_ms`: when it began and ended; `end_ms`: of the load. `partitions`: those whose service is timed.

    `deleted`: requests that were deleted from the log on purpose.
    """
    asked, asked_ms = _sorted(acknowledged.keys, acknowledged.append_ms)
    keys = np.array(terminal.keys, np.int64)
    at_ms = np.array(terminal.append_ms, np.int64)
    outcomes = np.array(terminal.outcomes, dtype=object)
    known = np.isin(keys, asked)
    first_of, index, counts = np.unique(keys[known], return_index=True, return_counts=True)
    first_ms, first_outcome = at_ms[known][index], outcomes[known][index]
    request_ms = asked_ms[np.searchsorted(asked, first_of)]
    answered = np.isin(first_outcome, _ANSWERED)
    good = answered & (first_ms - request_ms <= deadline_ms)
    missing = np.setdiff1d(asked, first_of, assume_unique=True)
    gone = np.isin(missing, np.fromiter(deleted, np.int64))
    before = (request_ms < fault_ms[0]) & (request_ms >= fault_ms[0] - _BEFORE_MS) & good
    spent_ms = (first_ms - request_ms)[before]
    timed = first_of >> _OFFSET_BITS < partitions
    late_ms = first_ms.max() - fault_ms[1] if len(first_ms) else 0.0
    in_slots = np.isin(asked, first_of[good])
    return Account(
        acknowledged=len(asked),
        unknown=int((~known).sum()),
        failed_sends=acknowledged.failed,
        lost=int((~gone).sum()),
        deleted=int(gone.sum()),
        twice=int((counts > 1).sum()),
        in_time=int(good.sum()),
        late=int((answered & ~good).sum()),
        default=int((first_outcome == "default").sum()),
        expired=int((first_outcome == "expired").sum()),
        error=int((first_outcome == "error").sum()),
        longest_gap_s=_longest_gap_s(first_of[good & timed], first_ms[good & timed], fault_ms[0], end_ms, partitions),
        normal_after_s=_normal_after_s(asked, asked_ms, in_slots, fault_ms[0], partitions),
        p50_ms=float(np.percentile(spent_ms, 50)) if len(spent_ms) else 0.0,
        p99_ms=float(np.percentile(spent_ms, 99)) if len(spent_ms) else 0.0,
        not_answered_after_s=max(0.0, float(late_ms) / 1000),
    )


def _sorted(keys: list[int], stamps: list[int]) -> tuple[I64, I64]:
    known = np.array(keys, np.int64)
    order = np.argsort(known)
    return known[order], np.array(stamps, np.int64)[order]


def _longest_gap_s(keys: I64, at_ms: I64, from_ms: float, end_ms: float, partitions: int) -> float:
    longest = 0.0
    for partition in range(partitions):
        stamps = np.sort(at_ms[keys >> _OFFSET_BITS == partition])
        marks = np.concatenate([stamps[stamps < end_ms], [end_ms]])
        gaps = np.diff(marks)[marks[1:] >= from_ms]
        longest = max(longest, float(gaps.max()) if len(gaps) and len(stamps) else end_ms - from_ms)
    return longest / 1000


def _normal_after_s(asked: I64, asked_ms: I64, good: NDArray[np.bool_], from_ms: float, partitions: int) -> float:
    """Until the end of the last slot of time, after the fault, of which too few requests were answered in time."""
    told = (asked_ms >= from_ms) & (asked >> _OFFSET_BITS < partitions)
    slots = ((asked_ms[told] - from_ms) // _SLOT_MS).astype(np.int64)
    if not len(slots):
        return 0.0
    all_of, good_of = np.bincount(slots), np.bincount(slots, weights=good[told])
    # The load is steady: a slot without a request is one in which nobody could send.
    bad = np.flatnonzero((all_of == 0) | (good_of < all_of * _NORMAL_SHARE))
    return float(bad[-1] + 1) * _SLOT_MS / 1000 if len(bad) else 0.0
