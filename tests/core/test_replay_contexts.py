"""A policy played over a log of contexts: it keeps the states that it would have kept while serving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamserve.core.contexts import ContextRule
from streamserve.core.evaluation.replay import gather
from streamserve.core.records import OutcomeRecord
from streamserve.core.routes import Route
from streamserve.core.selection.epsilon_greedy import EpsilonGreedy
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
