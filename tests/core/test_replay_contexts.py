"""A policy played over a log of contexts: it keeps the states that it would have kept while serving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamserve.core.contexts import ContextRule
from streamserve.core.evaluation.replay import gather
from streamserve.core.evaluation.states import PlayedStates
from streamserve.core.records import OutcomeRecord
from streamserve.core.routes import Route
from streamserve.core.selection.epsilon_greedy import EpsilonGreedy
from streamserve.core.selection.hedge import Hedge
from streamserve.testing.policy_checks import outcome_of

MODELS = ("a@1", "b@1")


def log(n: int = 2_000) -> list[OutcomeRecord]:
    """`a` is right about what comes from the one context, `b` about the other's."""
    found = []
    for offset in range(n):
        context = ("left", "right")[offset % 2]
        losses = {"a@1": float(context == "right"), "b@1": float(context == "left")}
        outcome = outcome_of(losses, chosen=MODELS, offset=offset)
        decision = replace(outcome.decision, context=context, members={model: [0] for model in MODELS})
        found.append(replace(outcome, context=context, decision=decision, partition=0))
    return found


def earned(contexts: ContextRule | None) -> float:
    policy = EpsilonGreedy()
    route = Route(
        name="route", models=MODELS, policy=policy, combine="best", deadline_ms=100, learns=True, contexts=contexts
    )
    return float(np.mean(gather(log(), route).replayed))


def test_with_contexts_it_earns_what_one_state_cannot() -> None:
    alone, by_context = earned(None), earned(ContextRule())
    assert by_context > 0.85
    assert alone < by_context - 0.2


KEYED = ContextRule(source="key", keyed=True, forget_after_ms=60_000)


def played(outcomes: list[OutcomeRecord], contexts: ContextRule) -> PlayedStates:
    states = PlayedStates(
        Route(
            name="route", models=MODELS, policy=Hedge(), combine="vote", deadline_ms=100, learns=True, contexts=contexts
        )
    )
    for outcome in outcomes:
        states.distribution(outcome)
        states.learn(outcome)
    return states


def keyed(turn: int, *, partition: int, right: str, at_ms: int) -> OutcomeRecord:
    outcome = outcome_of({model: float(model != right) for model in MODELS}, chosen=MODELS, offset=turn)
    decision = replace(outcome.decision, context="//alice")
    times = {"prediction_ms": at_ms, "feedback_ms": at_ms, "append_ms": at_ms}
    return replace(outcome, decision=decision, ref=(partition, turn), **times)


def weight_of_a(states: PlayedStates, outcome: OutcomeRecord) -> float:
    return float(states.distribution(outcome).weights[0])


def test_a_key_that_comes_in_two_partitions_has_a_state_in_each() -> None:
    log = [keyed(turn, partition=turn % 2, right=MODELS[turn % 2], at_ms=turn) for turn in range(200)]
    states = played(log, KEYED)
    assert weight_of_a(states, keyed(200, partition=0, right="a@1", at_ms=200)) > 0.9
    assert weight_of_a(states, keyed(201, partition=1, right="a@1", at_ms=201)) < 0.1


def test_a_keyed_state_is_forgotten_as_in_the_app() -> None:
    log = [keyed(turn, partition=0, right="a@1", at_ms=turn) for turn in range(100)]
    # what all keys share then says the opposite
    log += [replace(keyed(turn, partition=1, right="b@1", at_ms=turn), ref=(1, turn)) for turn in range(100, 300)]
    states = played(log, replace(KEYED, pooling=0.0))
    assert weight_of_a(states, keyed(300, partition=0, right="a@1", at_ms=60_099)) > 0.9
    assert weight_of_a(states, keyed(301, partition=0, right="a@1", at_ms=60_100)) < 0.1
    # the next outcome begins a state anew
    for turn in range(302, 404):
        again = keyed(turn, partition=0, right="b@1", at_ms=70_000)
        states.distribution(again)
        states.learn(again)
    assert weight_of_a(states, keyed(404, partition=0, right="a@1", at_ms=70_001)) < 0.1


def test_no_more_keyed_states_than_the_bound_of_a_partition() -> None:
    log = [keyed(turn, partition=0, right="a@1", at_ms=turn) for turn in range(100)]
    bob = [replace(one, decision=replace(one.decision, context="//bob")) for one in log]
    contrary = [replace(one, losses={"a@1": 1.0, "b@1": 0.0}) for one in bob]
    states = played([*log, *contrary], replace(KEYED, most_keyed=1, pooling=0.0))
    alike = weight_of_a(states, keyed(200, partition=0, right="a@1", at_ms=200))
    assert alike > 0.9
    assert weight_of_a(states, replace(contrary[0], ref=(0, 201))) == weight_of_a(
        states, replace(log[0], decision=replace(log[0].decision, context=""))
    )
