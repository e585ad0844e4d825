"""Policies: the conformance list, their own rules, and recovery from a model that fails in the middle of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.selection.ab import AB
from streamserve.core.selection.base import Policy, pick
from streamserve.core.selection.epsilon_greedy import EpsilonGreedy
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.exp3ix import Exp3IX
from streamserve.core.selection.exp4 import Exp4
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.linucb import LinUCB
from streamserve.core.selection.registry import POLICIES
from streamserve.core.selection.squarecb import SquareCB
from streamserve.core.selection.stack import Stack
from streamserve.core.selection.static import Static
from streamserve.core.selection.sums import LossSums, fixed_point
from streamserve.core.selection.thompson import Thompson
from streamserve.core.selection.ucb import UCB
from streamserve.errors import ConfigError, ContractError
from streamserve.settings.policies import BUILT_IN as BUILT_IN_SETTINGS
from streamserve.testing.policy_checks import (
    MODELS,
    POLICY_LAWS,
    PolicyLaw,
    check_policy,
    law_any_number_of_models,
    law_bad_losses_teach_nothing,
    law_distribution_is_exact,
    law_draws_follow_the_probabilities,
    law_dump_is_json_and_load_brings_it_back,
    law_extreme_losses_stay_finite,
    law_models_may_change,
    outcome_of,
)
from tests.effort import check_law

BUILT_IN = [
    Static(),
    AB(),
    Leader(),
    Leader(shadow=0.0, half_life_events=None, prior=0.0),
    EpsilonGreedy(),
    EpsilonGreedy(epsilon=0.0, half_life_events=None),
    Exp3IX(),
    Exp4(),
    Exp4(eta=1.0, gamma=0.0, half_life_events=None),
    Exp3IX(eta=1.0, gamma=0.0, half_life_events=None),
    Thompson(),
    Thompson(gamma=0.0, half_life_events=None),
    UCB(),
    UCB(width=2.0, half_life_events=None),
    UCB(half_life_events=1.0),
    Hedge(),
    Stack(),
    Stack(rate=1.0),
    Hedge(eta=2.0, half_life_events=None),
    Hedge(least=0.0),
    Exp3(),
    Exp3(eta=0.5, gamma=0.0, half_life_events=50),
    LinUCB(),
    LinUCB(features=5, half_life_events=50),
    SquareCB(),
    SquareCB(features=5, gamma=0.0, half_life_events=50),
]
#: Static weights name the models of one route, so they are not asked about others.
OF_OTHER_MODELS = {law_distribution_is_exact, law_models_may_change, law_any_number_of_models}


@pytest.mark.parametrize("law", POLICY_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("policy", BUILT_IN, ids=repr)
def test_law(policy: Policy, law: PolicyLaw) -> None:
    check_law(law, policy)


@pytest.mark.parametrize(
    "law", [law for law in POLICY_LAWS if law not in OF_OTHER_MODELS], ids=lambda law: law.__name__
)
def test_law_for_static_weights(law: PolicyLaw) -> None:
    check_law(law, Static(weights={"a": 3, "c@1": 1}))
    check_law(law, AB(shares={"a": 3, "c@1": 1, "b": 0}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [Hedge(), Exp3(gamma=0.0), Exp3(), Exp3IX(gamma=0.0), EpsilonGreedy(), Leader(), Thompson(gamma=0.0), UCB()],
    ids=repr,
)
def test_a_million_extreme_losses_stay_finite(policy: Policy) -> None:
    law_extreme_losses_stay_finite(policy, n=250_000)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("policy", [cls() for name, cls in POLICIES.items() if name not in ("static", "ab")], ids=repr)
def test_ten_million_extreme_losses_stay_finite(policy: Policy) -> None:
    law_extreme_losses_stay_finite(policy, n=2_500_000)


# -- the list itself can fail: one planted fault for each law -----


class Grows(Hedge):
    """Multiplies what it keeps, as policies with linear weights do: it ends at infinity and NaN."""

    def learn(self, state: LossSums, outcome: Any) -> LossSums:
        after = Hedge.learn(self, state, outcome)
        return dataclasses.replace(after, losses=tuple(2.0 * loss for loss in after.losses))


class RoundsAlone(Exp3):
    def distribution(self, state: LossSums, models: Any) -> Any:
        right = Exp3.distribution(self, state, models)
        rounded = np.round(right.weights * PROBABILITY_ONE * 0.999999999).astype(np.int64)
        return dataclasses.replace(right, probabilities=rounded)


class Forgets(Hedge):
    def dump(self, state: LossSums) -> Mapping[str, Any]:
        return {
            "losses": {model: round(loss) for model, loss in zip(state.models, state.losses, strict=True)},
            "events": 0,
        }


class TakesAll(Hedge):
    def learn(self, state: LossSums, outcome: Any) -> LossSums:
        losses = [outcome.losses.get(model, 0.0) for model in state.models]
        sums = tuple(total + loss for total, loss in zip(state.losses, losses, strict=True))
        return dataclasses.replace(state, losses=sums)


@pytest.mark.parametrize(
    ("faulty", "law"),
    [
        (Grows(), law_extreme_losses_stay_finite),
        (RoundsAlone(), law_distribution_is_exact),
        (Forgets(), law_dump_is_json_and_load_brings_it_back),
        (TakesAll(), law_bad_losses_teach_nothing),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_list_catches(faulty: Policy, law: PolicyLaw) -> None:
    with pytest.raises(AssertionError):
        law(faulty)


def test_the_list_catches_draws_that_do_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pick

    def shifted(distribution: Any, partition: int, offsets: Any, salt: int) -> Any:
        masks, logged = right(distribution, partition, offsets, salt)
        return np.where(offsets % 10 == 0, distribution.masks[-1], masks), logged

    monkeypatch.setattr("streamserve.testing.policy_checks.pick", shifted)
    with pytest.raises(AssertionError, match="do not follow"):
        law_draws_follow_the_probabilities(Exp3())


# -- own rules -----


def test_registry_holds_the_built_ins_by_name() -> None:
    assert {name: cls().name for name, cls in POLICIES.items()} == {name: name for name in BUILT_IN_SETTINGS}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Hedge(eta=0), "hedge: eta must be a number above 0"),
        (lambda: Hedge(eta=math.nan), "eta"),
        (lambda: Hedge(half_life_events=0.5), "half_life_events must be a number of at least 1"),
        (lambda: Hedge(least=-0.1), "hedge: least"),
        (lambda: Exp3(gamma=1.0), "exp3: gamma must be at least 0 and below 1"),
        (lambda: Exp3(eta=-1), "exp3: eta"),
        (lambda: Exp3IX(gamma=-0.1), "exp3ix: gamma"),
        (lambda: Leader(shadow=1.0), "leader: shadow"),
        (lambda: Leader(prior=math.nan), "leader: prior"),
        (lambda: EpsilonGreedy(epsilon=2), "epsilon_greedy: epsilon"),
        (lambda: Thompson(gamma=True), "thompson: gamma"),
        (lambda: UCB(width=0), "ucb: width"),
        (lambda: AB(shares={"a": math.inf}), "ab: the share of a"),
        (lambda: AB(shares={"a": 0}).initial(MODELS), "every share is 0"),
        (lambda: AB(shares={"z": 1}).initial(MODELS), "shares for unknown models"),
        (lambda: Static(weights={"a": -1}), "the weight of a"),
        (lambda: Static(weights={"z": 1}).initial(MODELS), "unknown models"),
        (lambda: Static(weights={"a": 0}).initial(MODELS), "every weight is 0"),
    ],
)
def test_impossible_parameters_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_static_asks_only_models_with_a_weight() -> None:
    distribution = Static(weights={"a": 3, "c@1": 1}).distribution(None, MODELS)
    assert distribution.masks.tolist() == [0b101]
    assert distribution.weights.tolist() == [0.75, 0.0, 0.25, 0.0, 0.0]


def test_fixed_point_shares_sum_exactly() -> None:
    assert fixed_point([1 / 3, 1 / 3, 1 / 3]).sum() == PROBABILITY_ONE
    assert fixed_point([1.0, 0.0], at_least=1).tolist() == [PROBABILITY_ONE - 1, 1]


def test_hedge_neither_rewards_nor_punishes_a_model_for_being_absent() -> None:
    policy = Hedge(half_life_events=None)
    state = policy.initial(("a", "b", "c"))
    for _ in range(20):
        state = policy.learn(state, outcome_of({"a": 0.0, "b": 1.0, "c": 0.2}, chosen=("a", "b", "c")))
    before = policy.distribution(state, ("a", "b", "c")).weights[2]
    for turn in range(200):
        state = policy.learn(state, outcome_of({"a": float(turn % 5 == 0), "b": 1.0}, chosen=("a", "b", "c")))
    after = policy.distribution(state, ("a", "b", "c")).weights[2]
    assert before / 3 < after < before * 3


def test_hedge_keeps_a_model_that_is_always_wrong_within_reach() -> None:
    policy = Hedge(eta=0.5, half_life_events=None, least=1e-3)
    state = policy.initial(("a", "b"))
    for _ in range(1_000):
        state = policy.learn(state, outcome_of({"a": 0.0, "b": 1.0}, chosen=("a", "b")))
    assert policy.distribution(state, ("a", "b")).weights[1] == pytest.approx(1e-3, rel=2e-3)
    for _ in range(20):
        state = policy.learn(state, outcome_of({"a": 1.0, "b": 0.0}, chosen=("a", "b")))
    assert policy.distribution(state, ("a", "b")).weights[1] > 0.9


def test_exp3_divides_by_the_logged_probability() -> None:
    policy = Exp3(eta=0.1, gamma=0.0)
    state = policy.learn(policy.initial(("a", "b")), outcome_of({"a": 1.0}, chosen=("a",), probability=0.125))
    assert state.losses == (8.0, 0.0)


@pytest.mark.parametrize(
    "outcome",
    [
        outcome_of({"a": 1.0}, chosen=("a",), probability=0.5, off_epoch=True),
        outcome_of({"a": 1.0}, chosen=("a",), probability=1.0),  # the request named its model: nothing was drawn
        outcome_of({"a": 1.0, "b": 0.0}, chosen=("a", "b"), probability=0.5),
        outcome_of({"a": 1.0}, chosen=("a",), probability=0.0),
        outcome_of({}, chosen=("a",), probability=0.5),
    ],
)
def test_exp3_leaves_out_what_no_draw_of_its_own_explains(outcome: Any) -> None:
    policy = Exp3()
    state = policy.initial(("a", "b"))
    assert policy.learn(state, outcome) is state


def test_exp3_learns_from_requests_that_asked_all_models() -> None:
    policy = Exp3()
    state = policy.learn(policy.initial(("a", "b")), outcome_of({"a": 1.0, "b": 0.0}, chosen=("a", "b")))
    assert state.losses == (1.0, 0.0)


def test_a_new_model_enters_at_the_mean() -> None:
    policy = Hedge()
    loaded = policy.load({"losses": {"a": 4.0, "b": 2.0, "old": 9.0}, "events": 7}, ("b", "a", "new"))
    assert loaded == LossSums(models=("b", "a", "new"), losses=(2.0, 4.0, 3.0), events=7)


@pytest.mark.parametrize(
    "data", [{}, {"losses": {"a": "x"}, "events": 1}, {"losses": {"a": -1.0}, "events": 1}, {"losses": [], "events": 1}]
)
def test_a_state_that_cannot_be_read_stops_loudly(data: Mapping[str, Any]) -> None:
    with pytest.raises(ContractError):
        Hedge().load(data, ("a",))


def test_check_policy_runs_the_whole_list() -> None:
    with pytest.raises(AssertionError):
        check_policy(TakesAll())


# -- recovery: five Bernoulli models, the best one fails from 5,000 to 10,000 of 20,000 -----

GOOD = (0.92, 0.88, 0.84, 0.78, 0.65)
FAILED = 0.30
N, FAILS_AT, MENDED_AT = 20_000, 5_000, 10_000


def losses_of_run(seed: int) -> np.ndarray:
    uniform = np.random.default_rng(seed).random((N, len(GOOD)))
    right = np.tile(np.array(GOOD), (N, 1))
    right[FAILS_AT:MENDED_AT, 0] = FAILED
    return (uniform >= right).astype(float)


def run(policy: Policy, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Weight of each model at each step, and the expected loss of drawing a model by weight (dynamic pseudo-regret)."""
    losses = losses_of_run(seed)
    state = policy.initial(MODELS)
    weights = np.empty((N, len(MODELS)))
    for step in range(N):
        distribution = policy.distribution(state, MODELS)
        weights[step] = distribution.weights
        masks, probabilities = pick(distribution, np.array([seed]), np.array([step]), salt=5)
        chosen = [model for bit, model in enumerate(MODELS) if int(masks[0]) >> bit & 1]
        seen = {model: losses[step, MODELS.index(model)] for model in chosen}
        outcome = outcome_of(seen, chosen=chosen, probability=int(probabilities[0]) / PROBABILITY_ONE, offset=step)
        state = policy.learn(state, outcome)
    expected = np.tile(1 - np.array(GOOD), (N, 1))
    expected[FAILS_AT:MENDED_AT, 0] = 1 - FAILED
    return weights, (weights * expected).sum(axis=1) - expected.min(axis=1)


def test_hedge_recovers_from_a_failure_in_the_middle() -> None:
    """Measured regret 96 +- 12 with these settings; the always-best-at-first costs 2,900."""
    weights, regret = run(Hedge(eta=0.3, half_life_events=350), seed=1)
    assert weights[FAILS_AT - 1000 : FAILS_AT, 0].mean() > 0.6
    assert weights[FAILS_AT + 50, 0] < 0.1  # within 50 feedbacks
    assert weights[FAILS_AT + 1000 : MENDED_AT, 1].mean() > 0.6
    assert weights[-2000:, 0].mean() > 0.6  # and it came back
    assert regret.sum() < 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "most"),
    [
        (Leader(), 500),
        (EpsilonGreedy(), 1_000),
        (Exp3IX(), 1_000),
        (Thompson(), 1_000),
        (UCB(), 1_000),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_learning_policy_recovers(policy: Policy, most: float) -> None:
    """The always-best-at-first costs 2,900."""
    _, regret = run(policy, seed=4)
    assert regret.sum() < most


def test_exp3_recovers_from_a_failure_in_the_middle() -> None:
    """Regret 457 +- 134 without forgetting; with a half-life the return after the repair is certain too."""
    weights, regret = run(Exp3(eta=0.05, gamma=0.02), seed=2)
    assert weights[FAILS_AT - 1000 : FAILS_AT, 0].mean() > 0.4
    assert weights[FAILS_AT + 2500 : MENDED_AT, 0].mean() < 0.15
    assert regret.sum() < 1_000


@pytest.mark.slow
def test_exp3_with_a_half_life_recovers() -> None:
    weights, regret = run(Exp3(eta=0.05, gamma=0.02, half_life_events=2_000), seed=3)
    assert weights[FAILS_AT + 1000 : MENDED_AT, 0].mean() < 0.15
    assert weights[-2000:, 0].mean() > weights[FAILS_AT + 1000 : MENDED_AT, 0].mean() + 0.2
    assert regret.sum() < 1_000
