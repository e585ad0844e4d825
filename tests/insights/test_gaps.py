"""Whatever is lost on its way is read again, once; what is not in the log is not waited for."""

from __future__ import annotations

from collections import deque
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from streamserve.insights.gaps import Gaps, Verdict


@given(
    offsets=st.sets(st.integers(0, 60), min_size=1).map(sorted),
    lost=st.sets(st.integers(0, 60)),
    on_their_way=st.integers(0, 20),
    again=st.integers(0, 5),
)
def test_each_record_of_the_log_is_taken_once_and_in_order(
    offsets: list[int], lost: set[int], on_their_way: int, again: int
) -> None:
    gaps, taken, expected, turns_back = Gaps(), list[int](), 0, 0
    reading = deque(offset for offset in offsets if offset not in lost or offset == offsets[-1])
    while reading:
        offset = reading.popleft()
        verdict = gaps.verdict("p", offset, expected)
        if verdict is Verdict.GO_BACK:
            turns_back += 1
            # Some were fetched before; and a client may begin a little below.
            reading = deque([*islice(reading, on_their_way), *(one for one in offsets if one >= expected - again)])
        elif verdict is Verdict.TAKE and offset >= expected:
            taken.append(offset)
            expected = offset + 1
    assert taken == offsets
    assert turns_back <= 1 + sum(one + 1 != other for one, other in zip([-1, *offsets], offsets, strict=False))


def test_partitions_are_apart_and_forgotten_together() -> None:
    gaps = Gaps()
    assert gaps.verdict(0, 5, 3) is Verdict.GO_BACK
    assert gaps.verdict(1, 7, 7) is Verdict.TAKE
    assert gaps.verdict(0, 6, 3) is Verdict.DROP
    gaps.clear()
    assert gaps.verdict(0, 6, 6) is Verdict.TAKE
