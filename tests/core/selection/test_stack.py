"""Stacking: what members gave each class travels to the learner, and its weights follow the log loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamserve.assembly import app_rules
from streamserve.core.messages import Predictions
from streamserve.core.records import Decision, OutcomeRecord
from streamserve.core.selection.guarded import Guarded, ShareLimits
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.stack import Stack, StackWeights
from streamserve.core.selection.watched import Watched
from streamserve.core.slicing import take_predictions
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.errors import ContractError
from streamserve.kafka.codecs import decode_outcome, encode_outcome, encode_predictions
from streamserve.kafka.codecs.decisions import decode_decision
from streamserve.settings import parse_settings
from streamserve.testing.policy_checks import outcome_of
from tests.core.kit import CODECS, World, app, assigned, epochs, requests, route
from tests.core.test_aggregator import answers
from tests.settings.digits import DIGITS, changed, refused

MODELS = ("a@1", "b@1", "c@1")
GIVEN = {"a@1": [[0.7, 0.2, 0.1]], "b@1": [[0.1, 0.8, 0.1]], "c@1": [[0.25, 0.25, 0.5]]}


def outcome(label: Any = 0, **probabilities: list[list[float]]) -> OutcomeRecord:
    told = {f"{name}@1": rows for name, rows in probabilities.items()} or GIVEN
    made = outcome_of(dict.fromkeys(told, 0.0), chosen=MODELS)
    decision = replace(made.decision, probabilities=told, classes=("0", "1", "2"))
    return replace(made, decision=decision, label=label, losses=dict.fromkeys(told, 0.5))


def log_loss(weights: tuple[float, ...], rows: list[list[list[float]]], column: int) -> float:
    scores = [math.fsum(w * math.log(p[0][c]) for w, p in zip(weights, rows, strict=True)) for c in range(3)]
    return math.log(math.fsum(math.exp(score) for score in scores)) - scores[column]


def test_a_step_is_the_gradient_of_the_log_loss() -> None:
    policy, state = Stack(rate=0.01), StackWeights(models=MODELS, weights=(0.4, -0.2, 0.7))
    after = policy.learn(state, outcome(label=2))
    for place in range(3):
        nudged = [0.0, 0.0, 0.0]
        nudged[place] = 1e-6
        up, down = (
            log_loss(tuple(w + sign * d for w, d in zip(state.weights, nudged, strict=True)), list(GIVEN.values()), 2)
            for sign in (1, -1)
        )
        slope = (up - down) / 2e-6
        assert after.weights[place] - state.weights[place] == pytest.approx(-0.01 * slope, rel=1e-4)
    assert after.events == 1


@pytest.mark.parametrize(
    "bad",
    [
        outcome(label=7),
        outcome(label="cat"),
        outcome(label=None),
        outcome(label=[0, 1]),
        replace(outcome(), has_label=False),
        replace(outcome(), losses={}),
        outcome(a=[[0.7, math.nan, 0.1]]),
        outcome(a=[[0.7, 2.0, 0.1]]),
        outcome(a=[[0.7, 0.3]]),
        outcome(a=[[0.7, 0.2, 0.1]], b=[[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]),
        outcome(a=[[None, 0.2, 0.1]]),  # type: ignore[list-item]
        outcome(a=[]),
    ],
)
def test_what_teaches_nothing_leaves_the_state_as_it_is(bad: OutcomeRecord) -> None:
    state = Stack().initial(MODELS)
    assert Stack().learn(state, bad) is state


def test_labels_are_found_among_the_classes_by_text_and_by_number() -> None:
    state = Stack().initial(MODELS)
    by_text = Stack().learn(state, outcome(label="2"))
    assert by_text == Stack().learn(state, outcome(label=2)) == Stack().learn(state, outcome(label=2.0))
    assert by_text == Stack().learn(state, outcome(label=[2]))


def test_a_member_that_is_missing_stays_where_it_is() -> None:
    state = StackWeights(models=MODELS, weights=(0.5, 0.3, 0.2))
    after = Stack().learn(state, outcome(label=1, a=GIVEN["a@1"], b=GIVEN["b@1"]))
    assert after.weights[2] == 0.2
    assert after.weights[0] < 0.5 < after.weights[1] + 0.2


def test_weights_turn_to_the_model_that_knows_and_away_from_one_that_breaks() -> None:
    policy = Stack()
    state = policy.initial(MODELS)
    for turn in range(3_000):
        truth = turn % 3
        knows = [[0.8 if c == truth else 0.1 for c in range(3)]]
        state = policy.learn(state, outcome(label=truth, a=knows, b=GIVEN["b@1"], c=GIVEN["c@1"]))
    found = policy.distribution(state, MODELS)
    assert found.masks.tolist() == [0b111]
    assert found.weights[0] > 0.8
    assert found.weights.sum() == pytest.approx(1.0)


def test_weights_that_take_each_other_away_are_none() -> None:
    state = StackWeights(models=MODELS, weights=(1.0, -2.0, 1.0))
    assert Stack().distribution(state, MODELS).weights.tolist() == [1 / 3] * 3


@pytest.mark.parametrize("weights", [{"a": math.inf}, {"a": 1e9}, {"a": "x"}, []])
def test_a_state_that_cannot_be_is_refused(weights: object) -> None:
    with pytest.raises(ContractError):
        Stack().load({"v": 1, "weights": weights, "events": 1}, ("a",))


# -- on the way -----


def block(**rule: Any) -> Predictions:
    rules = app(route(MODELS, combine="log_probability", decide_early=False, **rule))
    world = World(AggregatorStage(rules, epochs(rules), CODECS))
    world.feed(assigned(0))
    world.feed(requests([b"x:1,1", b"y:1,1"]))
    for model, rows in (("a@1", [[0.7, 0.3], [0.2, 0.8]]), ("b@1", [[0.6, 0.4], [0.1, 0.9]])):
        said = np.array(rows)
        world.feed(answers(model, [0, 1], said.argmax(axis=1).tolist(), probabilities=said))
    world.feed(answers("c@1", [0, 1], [1, 1]))  # gives no probabilities
    return world.records[0, 0][0]


def decoded(found: Predictions) -> list[Decision]:
    decisions = [decode_decision(value or b"") for value in encode_predictions(found).values]
    assert all(decisions)
    return [decision for decision in decisions if decision is not None]


def test_what_members_gave_reaches_the_outcome() -> None:
    first, second = decoded(block(policy=Stack(), tells_probabilities=True))
    assert dict(first.probabilities) == {"a@1": [[0.7, 0.3]], "b@1": [[0.6, 0.4]]}
    assert dict(second.probabilities) == {"a@1": [[0.2, 0.8]], "b@1": [[0.1, 0.9]]}
    assert first.classes == ("0", "1")
    assert first.label == [1]  # the one that gives none counts as sure of its own
    made = replace(outcome(), decision=first, has_label=True, label=0)
    read = decode_outcome(encode_outcome(made), partition=1, offset=2, append_ms=3)
    assert read.decision == first


def test_other_routes_carry_nothing_more() -> None:
    for decision in decoded(block(policy=Hedge())):
        assert (dict(decision.probabilities), decision.classes) == ({}, ())
    values = encode_predictions(block(policy=Hedge())).values
    assert all(b"probabilities" not in (value or b"") for value in values)


def test_a_part_of_a_block_carries_its_own() -> None:
    whole = block(policy=Stack(), tells_probabilities=True)
    part = take_predictions(whole, np.array([1]))
    assert decoded(part) == decoded(whole)[1:]


def test_so_many_classes_are_not_told() -> None:
    rules = app(route(("a@1",), policy=Stack(), combine="log_probability", tells_probabilities=True))
    world = World(AggregatorStage(rules, epochs(rules), CODECS))
    world.feed(assigned(0))
    world.feed(requests([b"x:1,1"]))
    world.feed(answers("a@1", [0], [5], probabilities=np.full((1, 101), 1 / 101)))
    assert dict(decoded(world.records[0, 0][0])[0].probabilities) == {}


def test_the_config_asks_for_the_rule_that_stack_needs() -> None:
    hedge, rule = '{ name = "hedge", eta = 0.3, half_life_events = 350 }', 'combine = "mean_probability"'
    told = refused(changed(hedge, '"stack"'))
    assert 'stack weighs log-probabilities; set combine = "log_probability"' in told[0]
    good = parse_settings(changed(hedge, '"stack"', changed(rule, 'combine = "log_probability"')), "x")
    found = next(iter(app_rules(good).routes))
    assert found.policy == Watched(policy=Stack(), combine=found.combine)
    assert (found.tells_probabilities, found.learns) == (True, True)
    assert Guarded(policy=Stack(), limits=ShareLimits(most_share=0.9)).reads_probabilities
    assert not next(iter(app_rules(parse_settings(DIGITS, "x")).routes)).tells_probabilities
