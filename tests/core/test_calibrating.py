"""Three ways from agreement to probability: each learns what is true, and none is moved by nonsense."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.calibrating import METHODS, Calibrating, Learnt, Method, rising
from streamserve.errors import ConfigError, ContractError


@pytest.mark.parametrize("method", METHODS)
def test_what_was_right_lately_is_what_is_said(method: Method) -> None:
    """A member is right in agreement: at 0.8 in 6 cases of 10, at 1.0 in 9."""
    calibrating = Calibrating(levels=6, method=method)
    state, chance = calibrating.initial(), np.random.default_rng(3)
    for _ in range(6_000):
        agreement, share = ((0.8, 0.6), (1.0, 0.9))[int(chance.random() < 0.5)]
        state = calibrating.learn(state, agreement, float(chance.random() >= share))
    said = calibrating.probabilities(state, np.array([0.8, 1.0]))
    assert said == pytest.approx([0.6, 0.9], abs=0.06)
    assert calibrating.error(state) < 0.06


@pytest.mark.parametrize("method", METHODS)
@given(learnt=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=60))
def test_probabilities_are_probabilities_and_survive_the_log(method: Method, learnt: list[tuple[float, float]]) -> None:
    calibrating = Calibrating(levels=4, method=method)
    state = calibrating.initial()
    for agreement, loss in learnt:
        state = calibrating.learn(state, agreement, loss)
    said = calibrating.probabilities(state, np.linspace(0.0, 1.0, 21))
    assert ((said >= 0.0) & (said <= 1.0)).all()
    if method != "counts":
        assert (np.diff(said) >= -1e-12).all()
    assert calibrating.load(json.loads(json.dumps(calibrating.dump(state)))) == state
    assert 0.0 <= calibrating.error(state) <= 1.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, 1.1])
def test_nonsense_changes_nothing(method: Method, bad: float) -> None:
    calibrating = Calibrating(levels=4, method=method)
    state = calibrating.learn(calibrating.initial(), 0.5, 0.0)
    assert calibrating.learn(state, bad, 0.0) is state
    assert calibrating.learn(state, 0.5, bad) is state


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_rising_values_rise_and_keep_their_weighted_mean(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array([value for value, _ in pairs]), np.array([weight for _, weight in pairs])
    found = rising(values, weights)
    assert (np.diff(found) >= 0.0).all()
    assert (found * weights).sum() == pytest.approx((values * weights).sum())
    assert rising(np.sort(values), weights) == pytest.approx(np.sort(values))


def test_a_state_of_another_number_of_members_begins_anew_and_a_broken_one_is_refused() -> None:
    four, five = Calibrating(levels=4), Calibrating(levels=5)
    state = four.learn(four.initial(), 1.0, 0.0)
    assert five.load(four.dump(state)) == five.initial()
    for broken in ({}, {**four.dump(state), "said": [1.0]}, {**four.dump(state), "slope": math.nan}):
        with pytest.raises(ContractError):
            four.load(broken)
    with pytest.raises(ConfigError, match="no method"):
        Calibrating(levels=4, method="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_a_level_of_contexts_begins_with_what_the_one_above_says_and_comes_to_its_own(method: Method) -> None:
    calibrating = Calibrating(levels=6, method=method)
    chance, at = np.random.default_rng(5), np.array([1.0])

    def taught(n: int, share: float) -> Learnt:
        state = calibrating.initial()
        for _ in range(n):
            state = calibrating.learn(state, 1.0, float(chance.random() >= share))
        return state

    above = taught(3_000, 0.8)
    before = calibrating.probabilities(above, at)[0]
    said = [calibrating.probabilities(calibrating.pooled(above, taught(n, 0.4), 100.0), at)[0] for n in (0, 50, 3_000)]
    assert said[0] == pytest.approx(before)
    assert before > said[1] > said[2]
    assert said[2] == pytest.approx(0.4, abs=0.13)  # of some 500 that count, drawn towards 100


@given(
    above=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=40),
    own=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=40),
    strength=st.floats(0.01, 1e4),
    method=st.sampled_from(METHODS),
)
def test_pooled_probabilities_are_probabilities(
    above: list[tuple[float, float]], own: list[tuple[float, float]], strength: float, method: Method
) -> None:
    calibrating = Calibrating(levels=4, method=method)
    states = []
    for learnt in (above, own):
        state = calibrating.initial()
        for agreement, loss in learnt:
            state = calibrating.learn(state, agreement, loss)
        states.append(state)
    said = calibrating.probabilities(calibrating.pooled(states[0], states[1], strength), np.linspace(0.0, 1.0, 21))
    assert ((said >= -1e-12) & (said <= 1.0 + 1e-12)).all()
