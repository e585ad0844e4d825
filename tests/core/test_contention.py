"""Who goes first when not all can make it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.contention import first_served, rows_before

requests = st.lists(
    st.tuples(st.integers(-2, 2), st.sampled_from([None, b"a", b"b", b"c"]), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=40,
)


def _served(queue: list[tuple[int, bytes | None, int, bool]], count: int) -> list[int]:
    priority, keys, rows, spare = zip(*queue, strict=True)
    before = rows_before(list(keys), np.array(priority), np.maximum(np.array(rows), 1))
    picked = first_served(count, np.array(priority), before, np.array(spare)).tolist()
    assert picked == sorted(set(picked))
    assert len(picked) == min(count, len(queue))
    return picked


@given(queue=requests, count=st.integers(1, 45))
def test_nobody_is_passed_over_for_a_lower_priority(
    queue: list[tuple[int, bytes | None, int, bool]], count: int
) -> None:
    picked = set(_served(queue, count))
    left_out = [i for i in range(len(queue)) if i not in picked]
    for i in left_out:
        assert all(queue[i][0] <= queue[j][0] for j in picked)


@given(queue=requests, count=st.integers(1, 45))
def test_keys_of_one_priority_take_turns(queue: list[tuple[int, bytes | None, int, bool]], count: int) -> None:
    queue = [(0, key, 1, True) for _, key, _, _ in queue]
    picked = set(_served(queue, count))
    got: dict[bytes | None, int] = {}
    left: set[bytes | None] = set()
    for i, (_, key, _, _) in enumerate(queue):
        got.setdefault(key, 0)
        if i in picked:
            got[key] += 1
        else:
            left.add(key)
    for key in left:  # whoever had to leave one out got as much as anybody, give or take one
        assert got[key] >= max(got.values()) - 1


@given(queue=requests, count=st.integers(1, 45))
def test_of_one_key_and_priority_the_oldest_go_first(
    queue: list[tuple[int, bytes | None, int, bool]], count: int
) -> None:
    queue = [(0, b"one", rows, True) for _, _, rows, _ in queue]
    assert _served(queue, count) == list(range(min(count, len(queue))))


def test_large_requests_count_by_their_rows() -> None:
    before = rows_before([b"a", b"b", b"a", b"b"], np.zeros(4, np.int64), np.array([10, 1, 1, 1]))
    assert before.tolist() == [0, 0, 10, 1]
