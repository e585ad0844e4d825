"""Policies that read features: LinUCB beside mabwiser's, SquareCB's probabilities, and both on a stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mabwiser.mab import MAB, LearningPolicy

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.selection.linear import CENTRE, KeepsLinear
from streamserve.core.selection.linucb import LinUCB
from streamserve.core.selection.squarecb import SquareCB
from streamserve.errors import ConfigError
from streamserve.testing.policy_checks import outcome_of

MODELS = ("a@1", "b@1", "c@1", "d@1", "e@1")
FEATURES = 5


def text_of(x: np.ndarray) -> str:
    return ",".join(map(repr, x.tolist()))


def learnt(policy: KeepsLinear, state: object, x: np.ndarray, model: int, loss: float) -> object:
    outcome = outcome_of({MODELS[model]: loss}, chosen=(MODELS[model],), probability=0.5)
    outcome = replace(outcome, decision=replace(outcome.decision, context=text_of(x)))
    return policy.learn(state, outcome)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_linucb_asks_the_model_that_mabwiser_asks_on_ten_thousand_steps() -> None:
    """The same constant 1 behind the features, the same centred rewards."""
    random = np.random.default_rng(3)
    truth = random.normal(size=(len(MODELS), FEATURES))
    policy = LinUCB(features=FEATURES, alpha=0.5)
    state = policy.initial(MODELS)
    peer = MAB(list(range(len(MODELS))), LearningPolicy.LinUCB(alpha=0.5, l2_lambda=1.0))
    peer_started, differing = False, 0
    for _ in range(10_000):
        x = random.normal(size=FEATURES)
        rewards = (random.random(len(MODELS)) < 1 / (1 + np.exp(-truth @ x))).astype(float)
        mask = int(policy.distribution_at(state, MODELS, x.tolist()).masks[0])
        mine = mask.bit_length() - 1
        row = np.array([[*x, 1.0]])
        if peer_started:
            differing += int(peer.predict(row)) != mine
        state = learnt(policy, state, x, mine, 1.0 - rewards[mine])
        seen = ([mine], [rewards[mine] - CENTRE], row)
        if peer_started:
            peer.partial_fit(*seen)
        else:
            peer.fit(*seen)
            peer_started = True
    assert differing == 0


@pytest.mark.parametrize("policy", [LinUCB(features=FEATURES), SquareCB(features=FEATURES)], ids=repr)
def test_on_a_stream_of_features_the_right_models_are_found(policy: KeepsLinear) -> None:
    """A random choice loses 0.42 a step against the best model; these less than 0.1 in the second half."""
    random = np.random.default_rng(5)
    truth = 2.0 * random.normal(size=(len(MODELS), FEATURES))
    state, regrets = policy.initial(MODELS), []
    for _ in range(3_000):
        x = random.normal(size=FEATURES)
        means = 1 / (1 + np.exp(-truth @ x))
        found = policy.distribution_at(state, MODELS, x.tolist())
        edges = np.cumsum(found.probabilities) / PROBABILITY_ONE
        mine = int(found.masks[int(np.searchsorted(edges, random.random(), side="right"))]).bit_length() - 1
        regrets.append(means.max() - means[mine])
        state = learnt(policy, state, x, mine, float(random.random() >= means[mine]))  # type: ignore[assignment]
    assert np.mean(regrets[1_500:]) < 0.1 < np.mean(regrets[:50])


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=FEATURES, max_size=FEATURES),
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1)), max_size=40),
)
def test_squarecb_gives_exact_probabilities_by_the_gap(x: list[float], seen: list[tuple[int, float]]) -> None:
    policy = SquareCB(features=FEATURES, gamma=0.0)
    state = policy.initial(MODELS)
    for model, loss in seen:
        state = learnt(policy, state, np.ones(FEATURES), model, loss)  # type: ignore[assignment]
    found = policy.distribution_at(state, MODELS, x)
    assert int(found.probabilities.sum()) == PROBABILITY_ONE
    shares = dict(zip(found.masks.tolist(), (found.probabilities / PROBABILITY_ONE).tolist(), strict=True))
    assert max(shares.values()) >= 1 / len(MODELS) - 1e-9
    assert all(share <= 1 / len(MODELS) + 1e-9 for share in sorted(shares.values())[:-1])


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=FEATURES, max_size=FEATURES))
def test_whatever_features_come_the_sums_stay_finite(x: list[float]) -> None:
    policy = LinUCB(features=FEATURES)
    state = learnt(policy, policy.initial(MODELS), np.array(x), 0, 0.0)
    assert np.isfinite(state.squares).all() and np.isfinite(state.products).all()  # type: ignore[attr-defined]


def test_a_state_of_another_number_of_features_begins_anew() -> None:
    three, two = LinUCB(features=3), LinUCB(features=2)
    state = learnt(three, three.initial(MODELS), np.ones(3), 0, 0.0)
    assert two.load(three.dump(state), MODELS).events == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("features", [0, 65, True, 1.5])
def test_features_are_counted_in_whole_numbers(features: int) -> None:
    with pytest.raises(ConfigError, match="features must be a whole number from 1 to 64"):
        LinUCB(features=features)
