"""Guard rails: whatever the policy wants, within the limits, with exact probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.selection.ab import AB
from streamserve.core.selection.base import Policy
from streamserve.core.selection.epsilon_greedy import EpsilonGreedy
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.guarded import Guarded, ShareLimits, scaled_within
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.rewards import RewardSums
from streamserve.core.selection.sums import LossSums
from streamserve.core.selection.ucb import UCB
from streamserve.errors import ConfigError
from streamserve.testing.policy_checks import (
    POLICY_LAWS,
    PolicyLaw,
    law_any_number_of_models,
    law_distribution_is_exact,
    law_models_may_change,
)
from tests.effort import check_law

MODELS = ("a@1", "b@1", "c@1", "d@1")
#: A probability is a multiple of 2**-32.
UNIT = 2.0 / PROBABILITY_ONE


def guarded(policy: Policy, **limits: object) -> Guarded:
    return Guarded(policy=policy, limits=ShareLimits(**limits))  # type: ignore[arg-type]


#: They ask for so few models, or so many, that the limits cannot hold.
OTHER_NUMBERS = {law_any_number_of_models, law_distribution_is_exact, law_models_may_change}


@pytest.mark.parametrize("law", [law for law in POLICY_LAWS if law not in OTHER_NUMBERS], ids=lambda law: law.__name__)
@pytest.mark.parametrize(
    "policy",
    [
        guarded(Exp3(), least_share=0.05, most_share=0.8),
        guarded(UCB(), least_share=0.02, most_explored=0.3),
        guarded(Hedge(), most_share=0.7, least_share=0.01),
        guarded(Hedge(), control=None, control_share=0.0),
    ],
    ids=lambda policy: f"{policy.name} {policy.limits}",
)
def test_a_guarded_policy_is_a_policy(policy: Policy, law: PolicyLaw) -> None:
    check_law(law, policy)


losses = st.lists(st.floats(0.0, 1e6), min_size=4, max_size=4)


@given(losses, st.floats(0.0, 0.25), st.floats(0.3, 1.0), st.floats(0.75, 1.0))
def test_shares_of_requests_stay_within(found: list[float], least: float, most: float, explored: float) -> None:
    state = LossSums(models=MODELS, losses=tuple(found), events=9)
    policy = guarded(Exp3(), least_share=least, most_share=most, most_explored=explored)
    given_ = policy.distribution(state, MODELS)
    shares = given_.probabilities / PROBABILITY_ONE
    assert given_.probabilities.sum() == PROBABILITY_ONE
    assert shares.min() >= least - UNIT or len(shares) < 4
    assert shares.max() <= most + UNIT
    assert 1.0 - shares.max() <= explored + UNIT


@given(losses, st.floats(0.0, 0.25), st.floats(0.3, 1.0))
def test_weights_of_a_combination_stay_within(found: list[float], least: float, most: float) -> None:
    state = LossSums(models=MODELS, losses=tuple(found), events=9)
    given_ = guarded(Hedge(), least_share=least, most_share=most).distribution(state, MODELS)
    assert given_.masks.tolist() == [0b1111]
    assert given_.weights.min() >= least - 1e-9
    assert given_.weights.max() <= most + 1e-9
    assert abs(given_.weights.sum() - 1.0) < 1e-12


@given(losses, st.floats(0.0, 0.9), st.sampled_from(MODELS))
def test_the_controls_share_is_pinned(found: list[float], share: float, control: str) -> None:
    state = LossSums(models=MODELS, losses=tuple(found), events=9)
    for policy in (Exp3(), Hedge()):
        given_ = guarded(policy, control=control, control_share=share).distribution(state, MODELS)
        alone = np.uint64(1 << MODELS.index(control))
        assert abs(given_.probabilities[given_.masks == alone].sum() / PROBABILITY_ONE - share) <= 4 * UNIT
        assert given_.probabilities.sum() == PROBABILITY_ONE


@given(
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=64),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_what_no_limit_touches_keeps_its_proportions(shares: list[float], down: float, up: float) -> None:
    n = len(shares)
    low, high = down / n, 1.0 / n + up * (1.0 - 1.0 / n)
    found = scaled_within(shares, [low] * n, [high] * n)
    assert abs(sum(found) - 1.0) < 1e-12
    assert min(found) >= low - 1e-9
    assert max(found) <= high + 1e-9
    inside = [(a, b) for a, b in zip(shares, found, strict=True) if low * 1.001 < b < high * 0.999 and a > 1e-6]
    ratios = [b / a for a, b in inside]
    assert not ratios or max(ratios) <= min(ratios) * (1.0 + 1e-6)


def test_limits_that_do_not_bind_change_nothing() -> None:
    state = LossSums(models=MODELS, losses=(1.0, 2.0, 3.0, 4.0), events=9)
    plain = Exp3().distribution(state, MODELS).probabilities
    assert np.abs(guarded(Exp3()).distribution(state, MODELS).probabilities - plain).max() <= 1


def test_exploration_is_capped_and_the_rest_is_the_leaders() -> None:
    state = RewardSums(models=MODELS, counts=(9.0,) * 4, rewards=(8.0, 1.0, 1.0, 1.0), events=9)
    found = guarded(EpsilonGreedy(epsilon=0.8), most_explored=0.12).distribution(state, MODELS)
    assert np.allclose(found.probabilities / PROBABILITY_ONE, [0.88, 0.04, 0.04, 0.04], atol=1e-8)


def test_the_control_beside_a_leader_with_shadows() -> None:
    state = RewardSums(models=MODELS, counts=(90.0,) * 4, rewards=(80.0, 1.0, 1.0, 1.0), events=9)
    found = guarded(Leader(shadow=0.1), control="b", control_share=0.2).distribution(state, MODELS)
    assert found.masks.tolist() == [0b0001, 0b1111, 0b0010]
    assert np.allclose(found.probabilities / PROBABILITY_ONE, [0.72, 0.08, 0.2], atol=1e-8)
    led = guarded(Leader(shadow=0.1), control="a@1", control_share=0.2).distribution(state, MODELS)
    assert led.masks.tolist() == [0b0001, 0b1111]
    assert np.allclose(led.probabilities / PROBABILITY_ONE, [0.92, 0.08], atol=1e-8)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (guarded(Exp3(), least_share=0.3), "cannot hold for 4 models"),
        (guarded(Exp3(), most_share=0.2), "cannot hold for 4 models"),
        (guarded(Exp3(), most_share=0.5, most_explored=0.1), "cannot hold"),
        (guarded(Exp3(), control="z", control_share=0.1), "is no model of the route"),
        (guarded(Leader(), least_share=0.1), "limits by itself"),
        (guarded(AB(), least_share=0.1), "for policies that learn"),
    ],
)
def test_limits_that_cannot_hold_are_refused_at_the_start(policy: Guarded, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy.initial(MODELS)
