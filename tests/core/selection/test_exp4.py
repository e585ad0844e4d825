"""Exp4: what one reward of a drawn answer says of each model, from the combine rule to the learnt state."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.combining import MemberRows, combine, served_probability
from streamserve.core.losses import losses_of
from streamserve.core.messages import Predictions
from streamserve.core.records import FeedbackRecord, OutcomeRecord
from streamserve.core.selection.exp4 import Exp4
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.kafka.codecs.decisions import decode_decision
from streamserve.kafka.codecs.learning import decode_outcome, encode_outcome
from streamserve.kafka.codecs.predictions import encode_predictions
from streamserve.testing.policy_checks import outcome_of
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, requests, route
from tests.core.test_aggregator import MODELS, answers

_SAID = st.lists(st.integers(0, 2), min_size=3, max_size=3)
_WEIGHTS = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)
_THERE = st.lists(st.booleans(), min_size=3, max_size=3).filter(any)


def members_of(said: list[int], there: list[bool]) -> list[MemberRows]:
    return [
        MemberRows(present=np.array([is_there]), labels=np.array([label]), probabilities=None, classes=None)
        for label, is_there in zip(said, there, strict=True)
    ]


def rewarded(said: list[int], there: list[bool], served: int, probability: float, loss: float) -> OutcomeRecord:
    outcome = outcome_of({}, chosen=MODELS)
    members = {model: [one] for model, one, is_there in zip(MODELS, said, there, strict=True) if is_there}
    decision = replace(outcome.decision, members=members, label=[served], served_probability=probability)
    feedback = FeedbackRecord(partition=0, offset=0, append_ms=0, ref=(0, 0), id=None, reward=1.0 - loss)
    losses = losses_of("drawn", decision, members, feedback)
    assert isinstance(losses, dict)
    return replace(outcome, decision=decision, losses=losses, has_label=False, label=None)


@given(_SAID, _WEIGHTS, _THERE, st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3))
def test_what_a_reward_teaches_is_unbiased_for_every_model(
    said: list[int], weights: list[float], there: list[bool], loss_of: list[float]
) -> None:
    """Over all answers that may be drawn: each model is charged its own loss, an absent one the mean of the others."""
    policy = Exp4(half_life_events=None)
    shares = np.array([weights]) / sum(weights)
    expected = np.zeros(3)
    present = np.array(there)
    ends = np.cumsum(np.where(present, shares[0], 0.0))
    drawn: dict[int, float] = {}
    # A draw from the middle of each one's part: which answers can come, and what each one's probability is said to be.
    for draw in ((np.concatenate(([0.0], ends[:-1])) + ends) / (2.0 * ends[-1]))[present]:
        found = combine("drawn", shares, members_of(said, there), np.array([draw]))
        chance = served_probability(shares, found.agrees, np.array([there]), np.array([0, 1]))
        drawn[int(found.labels[0])] = float(chance[0])
    for answer, chance in drawn.items():
        outcome = rewarded(said, there, answer, chance, loss_of[answer])
        state = policy.learn(policy.initial(MODELS), outcome)
        expected += chance * np.array(state.losses)
    mean = float((shares[0] * present * [loss_of[one] for one in said]).sum() / (shares[0] * present).sum())
    wanted = [loss_of[one] if is_there else mean for one, is_there in zip(said, there, strict=True)]
    assert sum(drawn.values()) == pytest.approx(1.0)
    assert expected == pytest.approx(wanted)


def test_answers_come_as_often_as_is_said() -> None:
    n, said = 20_000, [1, 0, 1]
    weights = np.tile([0.2, 0.5, 0.3], (n, 1))
    draws = np.random.default_rng(0).random(n)
    members = [
        MemberRows(present=np.ones(n, np.bool_), labels=np.full(n, one), probabilities=None, classes=None)
        for one in said
    ]
    found = combine("drawn", weights, members, draws)
    chances = served_probability(weights, found.agrees, np.ones((n, 3), np.bool_), np.arange(n + 1))
    assert chances == pytest.approx(0.5)
    assert abs(float((found.labels == 1).mean()) - 0.5) < 0.015


def test_one_model_answers_all_rows_of_a_request_and_counts_where_it_agrees_in_all() -> None:
    weights, present = np.array([[0.6, 0.4]]), np.ones(2, np.bool_)
    members = [
        MemberRows(present=present, labels=np.array([1, 2]), probabilities=None, classes=None),
        MemberRows(present=present, labels=np.array([1, 3]), probabilities=None, classes=None),
    ]
    found = combine("drawn", np.repeat(weights, 2, axis=0), members, np.array([0.7, 0.7]))
    assert found.labels.tolist() == [1, 3]
    assert served_probability(weights, found.agrees, np.ones((1, 2), np.bool_), np.array([0, 2])).tolist() == [0.4]


def served(said: list[int], n: int = 1, **of_route: Any) -> list[Predictions]:
    rules = app(route(MODELS, policy=Exp4(), learns=True, combine="drawn", **of_route))
    w = World(AggregatorStage(rules, epochs(rules), CODECS))
    w.feed(assigned(0))
    w.feed(requests([b"x:1,1"] * n))
    for model, label in zip(MODELS, said, strict=False):
        w.feed(answers(model, list(range(n)), [label] * n))
    w.at(200)
    return [w.records[0, offset][0] for offset in range(n)]


def test_the_probability_of_the_answer_reaches_the_learner_through_the_log() -> None:
    block = served([4, 4, 4])[0]
    decision = decode_decision(encode_predictions(block).values[0] or b"")
    assert decision is not None
    assert decision.served_probability == pytest.approx(1.0)
    seen = set()
    for one in served([4, 4, 7], n=40):
        values = [json.loads(value or b"") for value in encode_predictions(one).values]
        seen |= {
            (value["outputs"][0]["data"][0], round(value["parameters"]["served_probability"], 6)) for value in values
        }
    assert seen == {(4, round(2 / 3, 6)), (7, round(1 / 3, 6))}
    outcome = rewarded([4, 4, 7], [True] * 3, 7, 1 / 3, 1.0)
    again = decode_outcome(encode_outcome(outcome), partition=0, offset=outcome.offset, append_ms=0)
    assert again.decision.served_probability == 1 / 3


def test_nothing_is_decided_early_and_who_is_missing_cannot_be_drawn() -> None:
    """Two of three agree, and weigh enough for any other rule: the third is still awaited, to the deadline."""
    rules = app(route(MODELS, policy=Exp4(), learns=True, combine="drawn"))
    w = World(AggregatorStage(rules, epochs(rules), CODECS))
    w.feed(assigned(0))
    w.feed(requests([b"x:1,1"]))
    for model in MODELS[:2]:
        w.feed(answers(model, [0], [4]))
    w.at(50)
    assert not w.records
    w.at(100)
    block, _ = w.records[0, 0]
    assert w.outcome(0) == ("partial", "members_missing")
    assert (w.labels(0), block.served_probability.tolist()) == ([4], [1.0])
    assert w.now_ms == START_MS + 100


def test_a_default_has_no_served_probability_and_a_reward_for_another_rule_teaches_nothing() -> None:
    block = served([1, 2, 3], confidence_threshold=0.9, default=0, has_default=True)[0]
    assert b"served_probability" not in (encode_predictions(block).values[0] or b"")
    policy = Exp4()
    state = policy.initial(MODELS)
    outcome = rewarded([4, 4, 7], [True] * 3, 7, 0.5, 1.0)
    for decision in (replace(outcome.decision, served_probability=None), replace(outcome.decision, off_epoch=True)):
        assert policy.learn(state, replace(outcome, decision=decision)) is state
