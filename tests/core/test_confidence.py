"""Calibrated probabilities and conformal sets: they mean what they say, whatever drifts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.confidence import Calibration, QuantileTracking, Tracked, calibration_error, levels_of
from streamserve.errors import ConfigError, ContractError

FIVE = Calibration(levels=6)


def test_before_feedback_the_probability_is_the_share_that_agrees() -> None:
    assert FIVE.probabilities(FIVE.initial()).tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    agrees = np.array([[1, 1, 0, 1, 1], [0, 0, 0, 0, 1]], np.bool_)
    assert FIVE.of(FIVE.initial(), levels_of(agrees)).tolist() == [0.8, 0.2]


def test_a_levels_probability_is_what_was_right_lately() -> None:
    state = FIVE.initial()
    for turn in range(4_000):
        state = FIVE.learn(state, 4, float(turn % 10 == 0))
    assert FIVE.probabilities(state)[4] == pytest.approx(0.9, abs=0.01)
    for turn in range(1_500):  # a member breaks: the same level means something else
        state = FIVE.learn(state, 4, float(turn % 2 == 0))
    assert FIVE.probabilities(state)[4] == pytest.approx(0.5, abs=0.03)


def test_a_part_of_the_rows_counts_in_part_and_nonsense_not_at_all() -> None:
    state = FIVE.learn(FIVE.initial(), 3, 0.25)
    assert (state.right[3], state.wrong[3]) == (0.75, 0.25)
    for level, loss in ((3, math.nan), (3, math.inf), (3, -0.1), (3, 1.1), (6, 0.0), (-1, 0.0)):
        assert FIVE.learn(state, level, loss) is state


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), max_size=200))
def test_probabilities_are_probabilities(labels: list[tuple[int, float]]) -> None:
    state = FIVE.initial()
    for level, loss in labels:
        state = FIVE.learn(state, level, loss)
    found = FIVE.probabilities(state)
    assert ((found >= 0.0) & (found <= 1.0)).all()
    assert FIVE.load(json.loads(json.dumps(FIVE.dump(state)))) == state


TRACKING = QuantileTracking(miss=0.1, step=0.02)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=400))
def test_the_share_of_misses_is_bounded_for_any_scores(scores: list[float]) -> None:
    state = TRACKING.initial()
    for score in scores:
        state = TRACKING.learn(state, score)
    share = state.missed / len(scores)
    assert abs(share - TRACKING.miss) <= (1.0 + TRACKING.step) / (TRACKING.step * len(scores)) + 1e-12
    assert TRACKING.load(json.loads(json.dumps(TRACKING.dump(state)))) == state


def test_coverage_follows_a_drift() -> None:
    random, state = np.random.default_rng(1), TRACKING.initial()
    missed = []
    for turn in range(6_000):
        score = float(np.clip(random.normal(0.3 if turn < 3_000 else 0.7, 0.1), 0, 1))
        missed.append(score > state.threshold)
        state = TRACKING.learn(state, score)
    assert np.mean(missed[1_000:3_000]) == pytest.approx(0.1, abs=0.02)
    assert np.mean(missed[4_000:]) == pytest.approx(0.1, abs=0.02)


def test_a_set_holds_what_scores_at_most_the_threshold_and_is_never_empty() -> None:
    probabilities = np.array([[0.7, 0.2, 0.1], [0.34, 0.33, 0.33]])
    assert TRACKING.classes(Tracked(threshold=0.85), probabilities).tolist() == [[True, True, False], [True] * 3]
    assert TRACKING.classes(Tracked(threshold=-0.5), probabilities).sum(axis=1).tolist() == [1, 1]
    assert TRACKING.classes(TRACKING.initial(), probabilities).sum(axis=1).tolist() == [1, 1]


def test_an_interval_reaches_as_far_as_the_threshold() -> None:
    low, high = TRACKING.interval(Tracked(threshold=0.5), np.array([1.0, 2.0]), scale=4.0)
    assert (low.tolist(), high.tolist()) == ([-1.0, 0.0], [3.0, 4.0])
    assert TRACKING.learn(Tracked(threshold=0.5), math.nan).events == 0


def test_calibration_error_is_the_mean_gap() -> None:
    assert calibration_error(np.array([0.9] * 10), np.array([1.0] * 9 + [0.0])) == pytest.approx(0.0)
    assert calibration_error(np.array([0.9] * 10), np.array([1.0] * 5 + [0.0] * 5)) == pytest.approx(0.4)
    assert calibration_error(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0.0
    assert calibration_error(np.zeros(0), np.zeros(0)) == 0.0


@pytest.mark.parametrize("data", [{}, {"v": 2}, {"v": 1}, {"v": 1, "right": [1], "wrong": [1], "events": 1}, 3])
def test_a_state_that_cannot_be_read_is_refused(data: object) -> None:
    for thing in (FIVE, TRACKING):
        with pytest.raises(ContractError):
            thing.load(data)  # type: ignore[arg-type]


def test_states_that_cannot_be_are_refused() -> None:
    with pytest.raises(ContractError):
        FIVE.load({"v": 1, "right": [math.nan] * 6, "wrong": [0] * 6, "events": 1})
    with pytest.raises(ContractError):
        TRACKING.load({"v": 1, "threshold": math.inf, "events": 1, "missed": 0})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Calibration(levels=1),
        lambda: Calibration(levels=6, half_life_events=0.5),
        lambda: Calibration(levels=6, prior=0.0),
        lambda: QuantileTracking(miss=0.0),
        lambda: QuantileTracking(step=2.0),
    ],
)
def test_impossible_parameters_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
