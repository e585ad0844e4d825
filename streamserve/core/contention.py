"""Who goes first when not all can make it: the rule of a model's queue under overload.

1. A higher priority goes first.
2. Within a priority, those who have time to spare before those for whom the call may last a little too long.
3. Within these, the keys take turns, by rows: the oldest request of each key, then the next of each, ... So a client
   that floods the queue competes with itself, and one that sends little is served as if the flood were not there.
   Requests without a key are one client. (Max-min fairness; start-time fair queueing, Goyal et al., SIGCOMM 1996,
   with one batch as its horizon.)
4. Then the earlier deadline.

A batch is made smaller, down to half, where it would otherwise last too long for those who by rule 1 or 3 come before
all that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from streamserve.core.fast import every, indices
from streamserve.core.messages import F64, I64, Flags
from streamserve.core.values import unchanging

#: Those go first whom a call so much longer than predicted would not make late.
SPARE = 1.25


@unchanging(eq=False)
class Queued:
    """Requests of one queue, `[n]` each, in order of deadline."""

    slacks_ms: F64
    """Increasing: from now to the deadline less the guard."""
    priority: I64
    keys: Sequence[bytes | None]
    rows: I64
    """0 where not known yet."""


@unchanging(eq=False)
class Plan:
    """What becomes of a queue now; positions in it, increasing. The rest stays."""

    first: I64
    """The next batch."""
    hopeless: I64
    """Too late even for this batch."""
    outranked: I64
    """Too late for any batch after it."""


def plan_batch(count: int, queued: Queued, predict_ms: Callable[[int], float]) -> Plan | None:
    """The next batch of an overloaded queue, at most `count` requests; None where nobody makes it in a batch of half
    that size (then the plain rule holds)."""
    before = rows_before(queued.keys, queued.priority, np.maximum(queued.rows, 1))
    slacks, ahead = queued.slacks_ms, _ahead(count, queued, before)
    count = _small_enough(count, slacks[ahead], predict_ms)
    call_ms = predict_ms(count)
    start = int(np.searchsorted(slacks, call_ms))
    if start == len(slacks):
        return None
    spare = (slacks >= SPARE * call_ms)[start:] | ahead[start:]
    first = start + first_served(count, queued.priority[start:], before[start:], spare)
    stays = slacks >= call_ms + predict_ms(1)
    stays[first] = True
    stays[:start] = True
    return Plan(first=first, hopeless=np.arange(start), outranked=np.flatnonzero(~stays))


def first_served(count: int, priority: I64, before: I64, spare: Flags) -> I64:
    """Positions of the `count` requests that go first, increasing. before: `rows_before`; spare: has time to spare."""
    n = len(priority)
    if count >= n:
        return np.arange(n, dtype=np.int64)
    if every(before == 0) and every(priority == priority[0]) and every(spare == spare[0]):
        return np.arange(count, dtype=np.int64)
    # The last key of `lexsort` is the first to count; equal ones stay in order of deadline.
    order = np.lexsort((before, ~spare, -priority))
    return np.sort(order[:count]).astype(np.int64)


def _ahead(count: int, queued: Queued, before: I64) -> Flags:
    """`[n]`: who comes before all that a batch leaves out: by priority, or as its key asks for less than its turn."""
    n = len(before)
    ahead = np.zeros(n, np.bool_)
    if count >= n:
        return ahead
    chosen = np.zeros(n, np.bool_)
    chosen[first_served(count, queued.priority, before, np.ones(n, np.bool_))] = True
    top = int(queued.priority[~chosen].max())
    rivals = ~chosen & (queued.priority == top)
    crowded = {queued.keys[i] for i in indices(rivals).tolist()}
    ahead |= chosen & (queued.priority > top)
    for i in indices(chosen & (queued.priority == top) & (before < before[rivals].min())).tolist():
        ahead[i] = queued.keys[i] not in crowded
    return ahead


def _small_enough(count: int, slacks_ms: F64, predict_ms: Callable[[int], float]) -> int:
    """The size of a batch that ends in time for all of these whom one of half the size would suit."""
    low, high = max(1, count // 2), count
    start = int(np.searchsorted(slacks_ms, predict_ms(low)))
    if start == len(slacks_ms):
        return count
    while low < high:
        middle = (low + high + 1) // 2
        if predict_ms(middle) <= slacks_ms[start]:
            low = middle
        else:
            high = middle - 1
    return low


def rows_before(keys: Sequence[bytes | None], priority: I64, rows: I64) -> I64:
    """`[n]`: rows of the same key and priority that stand before each request."""
    numbers: dict[tuple[bytes | None, int], int] = {}
    flow = np.array(
        [numbers.setdefault(pair, len(numbers)) for pair in zip(keys, priority.tolist(), strict=True)], np.int64
    )
    if len(numbers) == len(flow):
        return np.zeros(len(flow), np.int64)
    order = np.argsort(flow, kind="stable")
    ends = np.cumsum(rows[order])
    starts = ends - rows[order]
    sorted_flow = flow[order]
    is_first = np.ones(len(flow), np.bool_)
    is_first[1:] = sorted_flow[1:] != sorted_flow[:-1]
    first_of = np.maximum.accumulate(np.where(is_first, np.arange(len(flow)), 0))
    before = np.empty(len(flow), np.int64)
    before[order] = starts - starts[first_of]
    return before
