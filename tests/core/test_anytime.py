"""Bounds that hold at every moment: how often they fail, and how wide they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.anytime import RunningMean, boundary


def ever_outside(values: np.ndarray, truth: np.ndarray, error: float) -> bool:
    """Whether one of the two bounds fails at any moment; `truth`: the mean of expectations until then."""
    mean = RunningMean()
    for value, true in zip(values.tolist(), truth.tolist(), strict=True):
        mean = mean.seen(value)
        if not mean.below(error) <= true <= mean.above(error):
            return True
    return False


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_the_bounds_fail_in_no_more_runs_than_they_say(share: float) -> None:
    """200 runs of 1,000 values, looked at after each; at 10 % a bound, twice 10 % may fail, and far fewer do."""
    rng = np.random.default_rng(3)
    runs = rng.random((200, 1_000)) < share
    failed = sum(ever_outside(run.astype(float), np.full(1_000, share), 0.1) for run in runs)
    assert failed <= 0.2 * 200


def test_they_hold_while_the_mean_drifts_and_the_next_value_depends_on_the_past() -> None:
    rng = np.random.default_rng(4)
    failed = 0
    for _ in range(100):
        expected, values, last = np.empty(600), np.empty(600), 0.0
        for turn in range(600):
            expected[turn] = 0.1 + 0.5 * (turn > 300) + 0.3 * last
            last = values[turn] = float(rng.random() < expected[turn])
        failed += ever_outside(values, np.cumsum(expected) / np.arange(1, 601), 0.1)
    assert failed <= 20


@given(st.lists(st.floats(0.0, 1.0), max_size=60), st.sampled_from([0.001, 0.05, 0.3]))
def test_a_bound_is_within_0_and_1_around_the_mean_and_wider_where_it_may_fail_less(
    values: list[float], error: float
) -> None:
    mean = RunningMean()
    for value in values:
        mean = mean.seen(value)
    low, high = mean.below(error), mean.above(error)
    assert 0.0 <= low <= mean.mean + 1e-12
    assert mean.mean - 1e-12 <= high <= 1.0
    assert mean.below(error / 10) <= low
    assert mean.above(error / 10) >= high
    assert not values or mean.mean == pytest.approx(sum(values) / len(values))


def test_what_varies_little_is_known_sooner() -> None:
    assert boundary(100.0, 0.01) < boundary(1_000.0, 0.01)
    always, torn = RunningMean(), RunningMean()
    for turn in range(2_000):
        always, torn = always.seen(0.0), torn.seen(float(turn % 2))
    assert always.above(0.01) < 0.02
    assert 0.05 < torn.above(0.01) - torn.mean < 0.1
