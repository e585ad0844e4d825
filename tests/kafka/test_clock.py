from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamserve.kafka.clock import BrokerClock
from streamserve.testing.log import ManualClock


def clocks() -> tuple[ManualClock, BrokerClock]:
    ours = ManualClock()
    return ours, BrokerClock(monotonic=ours.monotonic, epoch=ours.epoch)


def epoch_ms(clock: ManualClock) -> int:
    return int(clock.epoch() * 1000)


def test_before_any_acknowledgement_it_is_our_own_time() -> None:
    ours, clock = clocks()
    ours.advance(1234)
    assert abs(clock.now_ms() - epoch_ms(ours)) <= 1
    assert clock.bound_ms == float("inf")


def test_it_finds_a_broker_that_is_ahead() -> None:
    ours, clock = clocks()
    for _ in range(5):
        sent = clock.monotonic_ms()
        ours.advance(2)
        stamp = epoch_ms(ours) + 500
        ours.advance(2)
        clock.acknowledged(sent, stamp)
    assert abs(clock.offset_ms - 500) <= 3
    assert clock.bound_ms <= 3


def test_a_setting_of_the_brokers_clock_is_followed() -> None:
    ours, clock = clocks()
    for ahead in [0] * 3 + [80] * 200:
        sent = clock.monotonic_ms()
        ours.advance(1)
        clock.acknowledged(sent, epoch_ms(ours) + ahead)
        ours.advance(100)
    assert abs(clock.offset_ms - 80) <= 2


def test_until_is_the_time_left() -> None:
    ours, clock = clocks()
    deadline = clock.now_ms() + 50
    ours.advance(20)
    assert abs(clock.until_ms(deadline) - 30) <= 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-2_000, 2_000)), max_size=60))
def test_it_never_goes_back(steps: list[tuple[int, int]]) -> None:
    ours, clock = clocks()
    before = clock.now_ms()
    for passed, ahead in steps:
        sent = clock.monotonic_ms()
        ours.advance(passed)
        clock.acknowledged(sent, epoch_ms(ours) + ahead)
        now = clock.now_ms()
        assert now >= before
        before = now


def test_a_time_that_says_nothing_is_left_aside() -> None:
    _, clock = clocks()
    clock.acknowledged(clock.monotonic_ms(), -1)
    assert clock.bound_ms == float("inf")


def test_what_a_slow_broker_told_is_corrected_at_once() -> None:
    """An answer after seconds leaves the offset open within seconds: it is set anew when it is known better."""
    ours, clock = clocks()
    sent = clock.monotonic_ms()
    ours.advance(300)
    stamp = epoch_ms(ours) - 5_000
    ours.advance(300)
    clock.acknowledged(sent, stamp)
    sent = clock.monotonic_ms()
    ours.advance(2)
    clock.acknowledged(sent, epoch_ms(ours) - 5_000)
    assert abs(clock.offset_ms + 5_000) <= 3


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400), st.integers(0, 3_000)), min_size=1, max_size=30),
    st.integers(-30_000, 30_000),
)
def test_the_earliest_time_is_never_ahead_of_the_brokers_however_slow_its_answers(
    answers: list[tuple[int, int, int]], ahead: int
) -> None:
    ours, clock = clocks()
    assert clock.earliest_ms() is None
    for there, back, pause in answers:
        sent = clock.monotonic_ms()
        ours.advance(there)
        stamp = epoch_ms(ours) + ahead
        ours.advance(back)
        clock.acknowledged(sent, stamp)
        ours.advance(pause)
        earliest, truth = clock.earliest_ms(), epoch_ms(ours) + ahead
        assert earliest is not None
        assert earliest <= truth
        assert earliest >= truth - max(back for _, back, _ in answers) - 10
