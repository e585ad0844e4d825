"""What another policy would have earned: replay is what it would have been, estimates agree with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamserve.core.evaluation.estimates import evaluate
from streamserve.core.evaluation.replay import gather, served_reward
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.ab import AB
from streamserve.core.selection.base import Policy, pick
from streamserve.core.selection.epsilon_greedy import EpsilonGreedy
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.static import Static
from streamserve.testing.policy_checks import outcome_of
from tests.core.kit import route

MODELS = ("a@1", "b@1", "c@1")
RIGHT = np.array([0.6, 0.9, 0.7])
N = 3_000


def full(n: int = N, seed: int = 1) -> list[OutcomeRecord]:
    """Labels for requests that asked all models: class 0 is right, a wrong model says 1."""
    said = (np.random.default_rng(seed).random((n, 3)) >= RIGHT).astype(int)
    return [labelled(offset, row.tolist()) for offset, row in enumerate(said)]


def labelled(offset: int, said: Sequence[Any], **more: Any) -> OutcomeRecord:
    losses = {model: float(answer != 0) for model, answer in zip(MODELS, said, strict=True)}
    made = outcome_of(losses, chosen=MODELS, offset=offset)
    members = {model: [answer] for model, answer in zip(MODELS, said, strict=True)}
    decision = replace(made.decision, members=members, label=[said[0]])
    return replace(made, decision=decision, has_label=True, label=0, partition=0, feedback=(0, offset), **more)


def drawn(policy: Policy, n: int = N, seed: int = 1) -> list[OutcomeRecord]:
    """Rewards of requests for which one model was drawn."""
    found = policy.distribution(policy.initial(MODELS), MODELS)
    masks, probabilities = pick(found, np.full(n, seed), np.arange(n), 3)
    uniform = np.random.default_rng(seed).random(n)
    outcomes = []
    for offset in range(n):
        bit = int(masks[offset]).bit_length() - 1
        reward = float(uniform[offset] < RIGHT[bit])
        made = outcome_of(
            {MODELS[bit]: 1.0 - reward},
            chosen=[MODELS[bit]],
            probability=int(probabilities[offset]) / PROBABILITY_ONE,
            offset=offset,
        )
        outcomes.append(replace(made, reward=reward, partition=0, feedback=(0, offset)))
    return outcomes


def asked(policy: Policy, combine: str = "vote") -> Any:
    return route(MODELS, name="route", policy=policy, combine=combine)


@pytest.mark.parametrize("model", MODELS)
def test_replay_of_one_model_is_its_own_accuracy(model: str) -> None:
    outcomes = full()
    found = gather(outcomes, asked(Static(weights={model: 1.0})))
    accuracy = 1.0 - np.mean([outcome.losses[model] for outcome in outcomes])
    assert found.replayed.mean() == pytest.approx(accuracy)
    assert found.served.mean() == pytest.approx(1.0 - np.mean([outcome.losses["a@1"] for outcome in outcomes]))
    assert (found.logged, found.passed_over) == (None, 0)


def test_replay_of_an_ensemble_is_its_vote() -> None:
    outcomes = [labelled(0, [0, 1, 1]), labelled(1, [0, 1, 0]), labelled(2, [1, 0, 2])]
    votes = gather(outcomes, asked(Static(weights={"a": 1, "b": 1.1, "c": 0.5})))
    assert votes.replayed.tolist() == [0.0, 1.0, 1.0]


def in_probabilities(outcome: OutcomeRecord, told: Sequence[Sequence[float]]) -> OutcomeRecord:
    """The outcome with what each model gave the classes 0, 1 and 2."""
    given = {model: [list(row)] for model, row in zip(MODELS, told, strict=True)}
    return replace(outcome, decision=replace(outcome.decision, probabilities=given, classes=("0", "1", "2")))


@pytest.mark.parametrize("rule", ["mean_probability", "log_probability"])
def test_replay_combines_the_probabilities_that_an_outcome_tells(rule: str) -> None:
    """Two of three are hardly for class 1, one is sure of 0: the vote is wrong, the rule is right."""
    told = in_probabilities(labelled(0, [1, 1, 0]), [[0.45, 0.55, 0.0], [0.45, 0.55, 0.0], [0.98, 0.01, 0.01]])
    found = gather([told], asked(Static(), combine=rule))
    assert (found.replayed.tolist(), found.as_votes) == ([1.0], 0)
    assert found.served_there.tolist() == [0.0]
    untold = gather([replace(told, decision=replace(told.decision, probabilities={}))], asked(Static(), combine=rule))
    assert (untold.replayed.tolist(), untold.as_votes) == ([0.0], 1)


def test_what_one_of_them_did_not_tell_is_no_replay() -> None:
    told = in_probabilities(labelled(0, [1, 1, 0]), [[0.4, 0.6, 0.0], [0.4, 0.6, 0.0], [0.9, 0.05, 0.05]])
    late = replace(told, decision=replace(told.decision, probabilities={"a@1": [[0.4, 0.6, 0.0]]}))
    bad = in_probabilities(told, [[0.4, 0.6, 0.0], [0.4, 0.6, 0.0], [float("nan"), 0.0, 0.0]])
    for outcome in (late, bad):
        found = gather([outcome], asked(Static(), combine="log_probability"))
        assert (len(found.replayed), len(found.served_there), found.passed_over) == (0, 0, 1)
    assert gather([late], asked(Static(weights={"c": 1}), combine="log_probability")).replayed.tolist() == [1.0]


@pytest.mark.parametrize("policy", [Hedge(), Leader(), Exp3(), EpsilonGreedy()], ids=lambda policy: policy.name)
def test_replay_learns(policy: Policy) -> None:
    earned = gather(full(), asked(policy)).replayed
    assert len(earned) == N
    assert earned[-1_000:].mean() > earned[:100].mean()
    assert earned[-1_000:].mean() > 0.83


def test_estimates_of_drawn_outcomes_hold_the_truth() -> None:
    outcomes = drawn(AB())
    for policy, truth in ((Static(weights={"b": 1.0}), 0.9), (AB(shares={"a": 1, "c": 1}), 0.65)):
        evidence = gather(outcomes, asked(policy))
        assert evidence.logged is not None
        for estimate in evaluate(evidence.logged).estimates:
            assert estimate.low <= truth <= estimate.high, estimate
    assert gather(outcomes, asked(Hedge())).logged is None  # it asks several at once
    assert gather(outcomes, asked(Exp3())).served.mean() == pytest.approx(RIGHT.mean(), abs=0.03)


def test_what_was_not_drawn_by_the_policy_is_no_evidence() -> None:
    one = drawn(AB(), n=10)
    decision = one[0].decision
    wrong = [
        replace(one[0], decision=replace(decision, off_epoch=True)),
        replace(one[1], decision=replace(decision, probability=1.0)),
        replace(one[2], losses={}),
        replace(one[3], losses={decision.chosen[0]: float("nan")}),
        replace(one[4], route="other"),
        replace(one[5], primary=False),
        replace(one[6], feedback=one[7].feedback),
        one[7],
    ]
    found = gather(wrong, asked(AB()))
    assert found.logged is not None
    assert len(found.logged.actions) == 1
    assert found.passed_over == 4


def test_a_reward_that_is_none_is_not_served() -> None:
    outcome = full(1)[0]
    of = asked(Hedge())
    assert served_reward(replace(outcome, has_label=False, label=None), of) is None
    assert served_reward(replace(outcome, reward=0.25), of) == 0.25
    assert served_reward(replace(outcome, decision=replace(outcome.decision, label=None)), of) is None
    assert served_reward(replace(outcome, label="text"), of) is None  # of another kind than the answers


def test_numbers_are_combined_and_judged_as_numbers() -> None:
    outcome = labelled(0, [10.0, 20.0, 30.0])
    outcome = replace(outcome, label=20.0, losses=dict.fromkeys(MODELS, 0.5))
    found = gather([outcome], asked(Static(), combine="mean"))
    assert found.replayed.tolist() == [1.0]
