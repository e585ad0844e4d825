"""How long before a deadline answers are decided."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.effects import EmitAnswers
from streamserve.core.events import Produced, ProduceFailed
from streamserve.core.headroom import Headroom
from tests.core.test_aggregator import answers

BLOCK = answers("a@1", [0], [1]).blocks[0]

ways = st.lists(st.integers(-50, 100_000), max_size=60)


def sent_and_appended(headroom: Headroom, way_ms: int, token: int = 0, now_ms: int = 1_000_000) -> None:
    headroom.emitted([EmitAnswers(token=token, answers=BLOCK)], now_ms)
    headroom.heard(Produced(token=token, append_ms=now_ms + way_ms))


@given(ways, ways, st.integers(0, 200), st.integers(1, 5_000))
def test_it_stays_between_the_guard_and_half_of_the_budget(
    sent: list[int], calls: list[int], least_ms: int, budget_ms: int
) -> None:
    headroom = Headroom(least_ms, budget_ms)
    for token, way_ms in enumerate(sent):
        sent_and_appended(headroom, way_ms, token)
    for way_ms in calls:
        headroom.noticed(0, 10.0, 10 + way_ms)
    assert least_ms <= headroom.guard_ms <= headroom.guard_of_calls_ms <= max(least_ms, budget_ms // 2)
    assert headroom.fill() == (headroom.guard_ms, max(least_ms, budget_ms // 2))


def test_a_slow_way_is_known_after_a_few_records_and_forgotten_after_some_hundreds() -> None:
    headroom = Headroom(15, 200)
    for token in range(15):
        sent_and_appended(headroom, 50, token)
    assert headroom.guard_ms >= 40
    for token in range(300):
        sent_and_appended(headroom, 2, token)
    assert headroom.guard_ms == 15


def test_it_lies_among_the_slowest() -> None:
    random = np.random.default_rng(1)
    headroom, took = Headroom(0, 1_000), random.gamma(2.0, 10.0, 5_000)
    for token, way_ms in enumerate(took):
        sent_and_appended(headroom, int(way_ms), token)
    assert 0.8 <= np.mean(took <= headroom.guard_ms) <= 0.99


def test_an_outage_is_no_way() -> None:
    headroom = Headroom(15, 1_000)
    for token in range(5):
        sent_and_appended(headroom, 60_000, token)
    assert headroom.guard_ms == 15


def test_what_was_not_written_tells_nothing() -> None:
    headroom = Headroom(15, 1_000)
    headroom.emitted([EmitAnswers(token=3, answers=BLOCK)], 0)
    headroom.heard(ProduceFailed(token=3, error="no broker"))
    headroom.heard(Produced(token=3, append_ms=900))
    headroom.emitted([EmitAnswers(token=4, answers=BLOCK)], 0)
    headroom.heard(Produced(token=4))
    headroom.emitted([EmitAnswers(token=-1, answers=BLOCK)], 0)
    headroom.heard(Produced(token=-1, append_ms=900))
    assert headroom.guard_ms == 15


def test_what_passes_before_an_ended_call_is_heard_of_counts_for_calls_alone() -> None:
    headroom = Headroom(15, 1_000)
    for _ in range(40):
        headroom.noticed(began_ms=100, duration_ms=30.0, now_ms=170)
    assert (headroom.guard_ms, headroom.guard_of_calls_ms) == (15, 40)
