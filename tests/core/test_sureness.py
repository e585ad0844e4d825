"""What predictions say of how sure they are, seen from the aggregator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamserve.core.events import StatesFetched
from streamserve.core.messages import Choice, Predictions
from streamserve.core.records import StateRecord
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.hedge import Hedge
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.kafka.codecs.decisions import decode_decision
from streamserve.kafka.codecs.predictions import encode_predictions
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, requests, route
from tests.core.selection.test_confident import outcome
from tests.core.test_aggregator import MODELS, answers

CLASSES = np.array([0, 1, 2])
SURE = np.array([[0.8, 0.15, 0.05]])
TORN = np.array([[0.3, 0.4, 0.3]])


def policy_of(combine: str = "mean_probability", **rules: Any) -> Confident:
    return Confident(policy=Hedge(), rules=ConfidenceRules(**rules), combine=combine)


def answered(policy: Confident, said: list[tuple[int, np.ndarray]], wrong: int = 0, **of_route: Any) -> Predictions:
    """One request, answered under a state that has seen `wrong` wrong answers of this agreement."""
    rules = app(route(MODELS, policy=policy, learns=True, decide_early=False, combine=policy.combine, **of_route))
    w = World(AggregatorStage(rules, epochs(rules), CODECS))
    w.feed(assigned(0))
    state = policy.initial(MODELS)
    for _ in range(wrong):
        state = policy.learn(state, outcome(0, 1, agreement=2 / 3))
    record = StateRecord(
        route="r", context="", policy="hedge", data=policy.dump(state), includes={}, partition=0, epoch=5,
        append_ms=START_MS - 1000,
    )  # fmt: skip
    w.feed(StatesFetched(states=(record,)))
    w.feed(requests([b"x:1,1"]))
    choice = Choice(
        chosen=np.array([7], np.uint64), probability=np.array([1 << 32]), epoch=np.array([5]), stale=np.array([False])
    )
    for model, (label, probabilities) in zip(MODELS, said, strict=True):
        w.feed(answers(model, [0], [label], choice=choice, probabilities=probabilities, classes=CLASSES))
    block, _ = w.records[0, 0]
    return block


TWO_OF_THREE = [(0, SURE), (0, SURE), (1, TORN)]


def test_the_confidence_is_how_often_such_answers_were_right_and_the_agreement_stands_beside_it() -> None:
    fresh = answered(policy_of(), TWO_OF_THREE)
    assert fresh.confidence == pytest.approx([2 / 3])
    block = answered(policy_of(), TWO_OF_THREE, wrong=200)
    assert block.confidence[0] < 0.05
    assert block.agreement == pytest.approx([2 / 3])
    decision = decode_decision(encode_predictions(block).values[0] or b"")
    assert decision is not None
    assert decision.agreement == pytest.approx(2 / 3, abs=1e-6)
    assert b'"state_age_ms":1000,' in (encode_predictions(block).values[0] or b"")
    assert decision.state_age_ms == 1000
    assert (decision.label, decision.answer, decision.combined) == ([0], [0], None)


def test_a_set_of_classes_is_told_and_its_probabilities_reach_the_learner() -> None:
    block = answered(policy_of(coverage=0.95), TWO_OF_THREE)
    (in_set,) = block.extras
    assert (in_set.name, in_set.rows.tolist()) == ("in_set", [[True, False, False]])
    assert block.set_size == pytest.approx([1.0])
    value = encode_predictions(block).values[0] or b""
    assert b'"name":"in_set","shape":[1,3],"datatype":"BOOL","data":[true,false,false]' in value
    decision = decode_decision(value)
    assert decision is not None
    assert decision.classes == ("0", "1", "2")
    assert decision.combined == [pytest.approx([1.9 / 3, 0.7 / 3, 0.4 / 3])]


def test_an_interval_is_told_around_a_number() -> None:
    block = answered(policy_of("mean", coverage=0.9, scale=4.0), [(1, SURE), (2, SURE), (3, SURE)])
    assert {extra.name: extra.rows.tolist() for extra in block.extras} == {"lower": [0.0], "upper": [4.0]}
    assert block.set_size == pytest.approx([4.0])


def test_an_answer_that_is_not_sure_enough_is_withheld() -> None:
    block = answered(policy_of(), TWO_OF_THREE, wrong=200, confidence_threshold=0.5, default=-1, has_default=True)
    decision = decode_decision(encode_predictions(block).values[0] or b"")
    assert decision is not None
    assert (decision.outcome, decision.label, decision.answer) == ("default", [-1], [0])


def test_a_route_that_abstains_answers_nothing_then_and_still_learns() -> None:
    threshold = {"confidence_threshold": 0.5, "abstains": True}
    block = answered(policy_of(coverage=0.95), TWO_OF_THREE, wrong=200, **threshold)
    value = encode_predictions(block).values[0] or b""
    assert b'"outcome":"default","reason":"abstained"' in value
    assert b'"name":"label"' not in value
    decision = decode_decision(value)
    assert decision is not None
    assert (decision.label, decision.answer) == (None, [0])
    sure = answered(policy_of(coverage=0.95), TWO_OF_THREE, **threshold)
    assert b'"reason":"all_answered"' in (encode_predictions(sure).values[0] or b"")


def test_a_route_without_it_says_what_it_always_said() -> None:
    rules = app(route(MODELS, decide_early=False))
    w = World(AggregatorStage(rules, epochs(rules), CODECS))
    w.feed(assigned(0))
    w.feed(requests([b"x:1,1"]))
    for model, label in zip(MODELS, (1, 1, 2), strict=True):
        w.feed(answers(model, [0], [label]))
    block, _ = w.records[0, 0]
    assert (block.agreement, block.set_size, block.extras) == (None, None, ())
    assert block.confidence == pytest.approx([2 / 3])
