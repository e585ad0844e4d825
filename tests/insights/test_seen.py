from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamserve.insights.seen import PAGE, SeenFeedback, SeenRefs
from tests.insights.kit import outcome


@given(offsets=st.lists(st.integers(0, 60), max_size=200))
def test_refs_are_known_as_a_set_knows_them(offsets: list[int]) -> None:
    seen, known = SeenRefs(), set[int]()
    for offset in offsets:
        assert seen.first_time(offset) == (offset not in known)
        known.add(offset)
        assert all(begin < end for begin, end in zip(seen.begins, seen.ends, strict=True))
        assert all(end < begin for end, begin in zip(seen.ends, seen.begins[1:], strict=False))


def test_of_too_many_ranges_the_lowest_gap_is_closed() -> None:
    seen = SeenRefs(most=3)
    assert all(seen.first_time(offset) for offset in (0, 10, 20, 30))
    assert (seen.begins, seen.ends) == ([0, 20, 30], [11, 21, 31])
    assert not seen.first_time(5)
    assert seen.first_time(25)


@given(feedback=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), max_size=120), below=st.integers(0, 130))
def test_feedback_is_known_as_a_set_knows_it_and_after_a_restart(feedback: list[tuple[int, int]], below: int) -> None:
    seen, known = SeenFeedback(), set[tuple[int, int]]()
    pages = {}
    for offset, place in enumerate(feedback):
        if offset == below:
            break
        assert seen.first_time(outcome(offset, feedback=place)) == (place not in known)
        known.add(place)
        pages.update(seen.changes())
    again = SeenFeedback()
    again.restore(pages.values(), below)
    again.clocks = dict(seen.clocks)
    for offset, place in enumerate(feedback[below:], below):
        one = outcome(offset, feedback=place)
        assert again.first_time(one) == seen.first_time(one)


def test_the_same_feedback_teaches_each_state_once() -> None:
    seen = SeenFeedback()
    assert seen.first_time(outcome(0, context=""))
    assert seen.first_time(outcome(1, context="eu", feedback=(0, 0)))
    assert not seen.first_time(outcome(2, context="eu", feedback=(0, 0)))


def test_what_was_written_behind_the_mark_is_read_again() -> None:
    seen = SeenFeedback()
    for offset in range(3):
        seen.first_time(outcome(offset))
    again = SeenFeedback()
    again.restore(seen.changes().values(), 2)
    assert [again.first_time(outcome(offset)) for offset in (1, 2)] == [False, True]


def test_what_its_join_has_settled_for_a_minute_is_forgotten_page_by_page() -> None:
    seen = SeenFeedback()
    for offset in range(PAGE + 10):
        seen.first_time(outcome(offset, append_ms=1_000, open_offset=0))
    assert set(seen.changes()) == {0, 1}
    for step in range(1, 20):  # of 5 s: more between two outcomes does not count, the join may have been down
        seen.first_time(outcome(10_000 + step, append_ms=1_000 + 50_000 * step, open_offset=10_000))
    assert len(seen) == 19
    assert seen.changes()[0] == []


def test_what_its_join_has_open_is_kept() -> None:
    seen = SeenFeedback()
    seen.first_time(outcome(0))
    for step in range(1, 40):
        seen.first_time(outcome(step, append_ms=1_000 + 5_000 * step, open_offset=0))
    assert not seen.first_time(outcome(99, feedback=(0, 0), append_ms=400_000, open_offset=0))


def test_the_oldest_is_forgotten_above_the_bound() -> None:
    seen = SeenFeedback(most=5)
    for offset in range(10):
        assert seen.first_time(outcome(offset))
        assert len(seen) <= 5
    assert not seen.first_time(outcome(20, feedback=(0, 9)))
    assert seen.first_time(outcome(21, feedback=(0, 0)))
