"""Confidence as a part of what a policy learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Policy
from streamserve.core.selection.confident import ConfidenceRules, Confident, ConfidentState
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.stack import Stack
from streamserve.core.selection.static import Static
from streamserve.errors import ConfigError, ContractError
from streamserve.testing.policy_checks import MODELS, POLICY_LAWS, PolicyLaw, outcome_of
from tests.effort import check_law

SETS = ConfidenceRules(coverage=0.9)
CLASSES = ("0", "1", "2")
INNER: dict[str, Policy] = {"hedge": Hedge(), "exp3": Exp3(eta=0.2, gamma=0.02), "stack": Stack()}


def confident(policy: Policy | None = None, combine: str = "mean_probability", **rules: Any) -> Confident:
    return Confident(policy=policy or Hedge(), rules=replace(SETS, **rules), combine=combine)


def outcome(
    answer: Any = 0,
    label: Any = 0,
    *,
    agreement: float | None = 0.8,
    losses: Mapping[str, float] | None = None,
    **more: Any,
) -> OutcomeRecord:
    record = outcome_of(losses or {}, chosen=MODELS)
    decision = replace(
        record.decision,
        label=[answer],
        agreement=agreement,
        combined=[[0.7, 0.2, 0.1]],
        classes=CLASSES,
        **more,
    )
    return replace(record, decision=decision, label=label)


@pytest.mark.parametrize("law", POLICY_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("inner", INNER)
def test_every_law_of_a_policy_holds_with_confidence_around_it(law: PolicyLaw, inner: str) -> None:
    check_law(law, confident(INNER[inner]))


def test_a_policy_without_a_state_learns_confidence_alone() -> None:
    policy = confident(Static())
    state = policy.initial(MODELS)
    taught = policy.learn(state, outcome())
    assert taught != state
    assert policy.load(policy.dump(taught), MODELS) == taught
    assert policy.distribution(taught, MODELS).weights.tolist() == [0.2] * 5


def test_a_right_answer_lifts_and_a_wrong_one_lowers_the_probability_of_its_agreement() -> None:
    policy = confident()
    start = policy.initial(MODELS)
    before = said(policy, start)
    assert before == pytest.approx(4 / 5, abs=0.04)  # the agreement itself, as far as there are levels
    assert said(policy, policy.learn(start, outcome(0, 0))) > before > said(policy, policy.learn(start, outcome(0, 1)))


def said(policy: Confident, state: ConfidentState) -> float:
    return float(policy.confidence(state, np.array([0.8]))[0])


def test_what_was_withheld_is_judged_too() -> None:
    policy = confident()
    start = policy.initial(MODELS)
    given = policy.learn(start, outcome(0, 0))
    withheld = outcome(None, 0, outcome="default", withheld=[0])
    assert policy.learn(start, replace(withheld, decision=replace(withheld.decision, label=[-1]))) == given
    abstained = replace(withheld.decision, label=None)
    assert policy.learn(start, replace(withheld, decision=abstained)) == given


@pytest.mark.parametrize(
    "changed",
    [
        {"agreement": None},
        {"agreement": math.nan},
        {"outcome": "expired"},
        {"answer": None, "outcome": "default", "agreement": None},
    ],
)
def test_where_nothing_was_said_nothing_is_learnt(changed: dict[str, Any]) -> None:
    policy = confident(coverage=0.0)
    state = policy.initial(MODELS)
    assert policy.learn(state, outcome(**changed)) is state


def test_a_reward_judges_no_answer() -> None:
    policy = confident()
    state = policy.initial(MODELS)
    reward = replace(outcome(), has_label=False, label=None, reward=1.0)
    assert policy.learn(state, reward) is state


def test_contexts_that_differ_are_told_apart_and_those_that_do_not_err_little() -> None:
    """Calibration error of the last of 400 labels each, of four contexts and their level above."""
    for shares, alone_errs in (((0.9, 0.9, 0.9, 0.9), 0.03), ((0.95, 0.9, 0.7, 0.5), 0.17)):
        policy, chance = confident(), np.random.default_rng(7)
        above, own = policy.initial(MODELS), [policy.initial(MODELS)] * len(shares)
        errors, of_all = [], []
        for turn in range(400):
            for place, share in enumerate(shares):
                record = outcome(0, int(chance.random() >= share))
                if turn >= 300:
                    errors.append(abs(said(policy, policy.pooled([above, own[place]], 20.0)) - share))
                    of_all.append(abs(said(policy, above) - share))
                above, own[place] = policy.learn(above, record), policy.learn(own[place], record)
        assert np.mean(of_all) < alone_errs and np.mean(errors) < 0.05
        if len(set(shares)) > 1:
            assert np.mean(errors) < np.mean(of_all) / 3.0
        else:
            assert np.mean(errors) < 0.02


def test_the_threshold_falls_when_the_truth_was_in_the_set_and_rises_when_not() -> None:
    policy = confident()
    start = policy.initial(MODELS)
    assert policy.learn(start, outcome(0, 0)).tracked.threshold == pytest.approx(0.5 - 0.02 * 0.1)
    assert policy.learn(start, outcome(0, 2)).tracked.threshold == pytest.approx(0.5 + 0.02 * 0.9)
    assert policy.learn(start, outcome(0, "no class")).tracked.missed == 1


def test_intervals_hold_numbers_as_often_as_asked() -> None:
    policy = confident(combine="mean", scale=2.0)
    state, chance = policy.initial(MODELS), np.random.default_rng(5)
    for _ in range(6_000):
        truth = 10.0 + float(chance.normal(0.0, 3.0))
        state = policy.learn(state, outcome(10.0, truth))
    lower, upper = policy.interval(state, np.array([10.0])) or (np.zeros(1), np.zeros(1))
    assert float(upper[0] - lower[0]) == pytest.approx(2 * 1.645 * 3.0, rel=0.1)
    report = policy.report(state)
    assert report["coverage"] == pytest.approx(0.9, abs=0.03)
    assert report["set_size"] == pytest.approx(2 * 1.645 * 3.0, rel=0.1)


def test_a_state_from_before_confidence_was_asked_for_is_gone_on_from() -> None:
    plain, policy = Hedge(), confident()
    learnt = plain.learn(plain.initial(MODELS), outcome_of({MODELS[0]: 1.0}, chosen=MODELS))
    found = policy.load(plain.dump(learnt), MODELS)
    assert found.policy == learnt
    assert found.learnt == policy.initial(MODELS).learnt
    assert plain.load(policy.dump(found), MODELS) == learnt  # and back


@pytest.mark.parametrize("broken", [{"v": 9}, {}, {"v": 1, "held": -1.0}])
def test_a_confidence_that_cannot_be_read_is_refused(broken: dict[str, Any]) -> None:
    policy = confident()
    data = {**policy.dump(policy.initial(MODELS))}
    kept = data["confidence"] if broken.get("v") == 1 else {}
    with pytest.raises(ContractError):
        policy.load({**data, "confidence": {**kept, **broken}}, MODELS)


@pytest.mark.parametrize("rules", [{"coverage": 1.0}, {"coverage": -0.1}, {"scale": 0.0}, {"scale": math.inf}])
def test_impossible_rules_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        ConfidenceRules(**rules)
