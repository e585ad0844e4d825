from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from river.drift import PageHinkley

from streamserve.insights.drift import Drift, DriftRule, DriftState

RULE = DriftRule()


def losses(seed: int, *shares: tuple[int, float]) -> list[float]:
    """Zeros and ones: so many, with such a share of ones, one after the other."""
    chance = random.Random(seed)
    return [float(chance.random() < share) for n, share in shares for _ in range(n)]


def alarms(stream: list[float]) -> list[int]:
    drift = Drift(RULE)
    return [at for at, loss in enumerate(stream) if drift.update(loss)]


@given(seed=st.integers(0, 1 << 32), cuts=st.sets(st.integers(0, 399), max_size=20))
def test_written_and_taken_up_it_goes_on_as_rivers_own(seed: int, cuts: set[int]) -> None:
    stream = losses(seed, (150, 0.1), (250, 0.9))
    whole = PageHinkley(min_instances=30, delta=RULE.tolerance, threshold=RULE.threshold, alpha=1.0, mode="up")
    drift = Drift(RULE)
    for at, loss in enumerate(stream):
        whole.update(loss)
        assert drift.update(loss) == whole.drift_detected
        if at in cuts:
            written = msgspec.json.encode(drift.state())
            drift = Drift(RULE, msgspec.json.decode(written, type=DriftState))


def test_what_stays_as_it_is_raises_no_alarm() -> None:
    assert sum(len(alarms(losses(seed, (10_000, share)))) for seed in range(3) for share in (0.05, 0.1, 0.25)) == 0


def test_a_rise_is_found_soon_and_once() -> None:
    for seed in range(20):
        found = alarms(losses(seed, (1_000, 0.1), (500, 0.3)))
        assert len(found) == 1
        assert 1_000 < found[0] <= 1_300


def test_a_fall_is_no_alarm() -> None:
    assert alarms(losses(1, (1_000, 0.5), (1_000, 0.1))) == []
