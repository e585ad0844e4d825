"""Pairing by ref in every order of acknowledgement and answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.client import matching
from streamserve.client.matching import Matcher
from streamserve.client.prediction import TerminalRecord


def record(partition: int, offset: int) -> TerminalRecord:
    return TerminalRecord(partition, offset, 0, None, b"%d" % offset)


@given(st.data())
def test_each_request_gets_its_record_once_whatever_comes_first(data: st.DataObject) -> None:
    matcher: Matcher[int] = Matcher()
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    others = data.draw(st.lists(st.integers(0, 30), max_size=6))
    # Somebody else's requests stand between ours; the log gives each batch consecutive offsets.
    starts, at = [], 0
    for size in sizes:
        at += data.draw(st.integers(0, 3))
        starts.append(at)
        at += size
    ours = {offset for start, size in zip(starts, sizes, strict=True) for offset in range(start, start + size)}
    answers = [*sorted(ours), *(offset for offset in others if offset not in ours)]
    answers += data.draw(st.lists(st.sampled_from(answers), max_size=4))  # a zombie's second records
    got: dict[int, list[int]] = {}
    for start, size in zip(starts, sizes, strict=True):
        owners = list(range(start, start + size))
        matcher.sending(0)
        early = data.draw(st.integers(0, len(answers)))
        reachable = [offset for offset in answers[:early] if offset < start + size]
        for offset in reachable:
            take(matcher, offset, got)
            answers.remove(offset)
        for owner, found in matcher.placed(0, start, owners):
            got.setdefault(owner, []).append(found.request_offset)
    for offset in answers:
        take(matcher, offset, got)
    assert got == {offset: [offset] for offset in ours}
    assert len(matcher) == 0
    assert matcher._early == {}


def take(matcher: Matcher[int], offset: int, got: dict[int, list[int]]) -> None:
    _, owner = matcher.seen(record(0, offset))
    if owner is not None:
        got.setdefault(owner, []).append(offset)


def test_early_records_are_kept_only_while_something_is_on_its_way() -> None:
    matcher: Matcher[str] = Matcher()
    assert matcher.seen(record(0, 1)) == (True, None)
    assert matcher._early == {}
    matcher.sending(0)
    matcher.seen(record(0, 2))
    matcher.seen(record(1, 2))
    assert {partition: list(early) for partition, early in matcher._early.items()} == {0: [2]}
    matcher.failed(0)
    assert matcher._early == {}


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    matcher: Matcher[str] = Matcher()
    for offset in range(3 * matching.REMEMBERED):
        matcher.sending(0)
        matcher.placed(0, offset, ["owner"])
        matcher.give_up(0, offset)
        matcher.seen(record(1, offset))
    assert len(matcher._seen[1]) == matching.REMEMBERED
    assert len(matcher._given_up) == matching.REMEMBERED
    assert len(matcher) == 0
    matcher.sending(2)  # and is never acknowledged, while others are answered
    for offset in range(3 * matching.REMEMBERED):
        matcher.seen(record(2, offset))
    assert len(matcher._early[2]) == matching.REMEMBERED
    assert matcher.seen(record(0, 3 * matching.REMEMBERED - 1)) == (True, "owner")
