"""What has been learnt as metrics: by context, and never more series than the bound."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from streamserve.core.contexts import GLOBAL
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.sums import LossSums
from streamserve.core.selection.watched import Watched
from streamserve.kafka.learnt_metrics import MOST_CONTEXTS, MOST_IN_A_MEAN
from streamserve.kafka.metrics import RoleMetrics
from streamserve.testing.policy_checks import outcome_of

MODELS = ("a@1", "b@1")
ROUTE = Route(name="r", models=MODELS, policy=Hedge(eta=1.0), combine="vote", deadline_ms=100, learns=True)


def sums(a: float, b: float) -> LossSums:
    return LossSums(models=MODELS, losses=(a, b), events=1)


def hear(metrics: RoleMetrics, route: Route, context: str, learnt: Any, *, epoch: int = 0) -> None:
    record = StateRecord(
        route=route.name,
        context=context,
        policy="hedge",
        data={},
        includes={},
        partition=0,
        epoch=epoch,
        append_ms=1_500,
    )
    metrics.learnt.heard(route, record, learnt)


def series(metrics: RoleMetrics, metric: str) -> dict[tuple[str, str], float]:
    """By context and model or figure."""
    found: dict[tuple[str, str], float] = {}
    for line in metrics.page().decode().splitlines():
        if line.startswith(metric + "{"):
            labels: dict[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[labels["context"], labels.get("model", labels.get("figure", ""))] = float(line.rsplit(" ", 1)[1])
    return found


def test_each_context_has_its_own_weights_and_those_of_the_route_stay_its_own() -> None:
    metrics = RoleMetrics("update", "app")
    hear(metrics, ROUTE, GLOBAL, sums(0.0, 0.0))
    hear(metrics, ROUTE, "eu", sums(0.0, 50.0))
    found = series(metrics, "streamserve_model_weight")
    assert found["", "a@1"] == 0.5
    assert found["eu", "a@1"] == pytest.approx(1.0)
    assert metrics.status(0)["weights"] == {"r": {"a@1": 0.5, "b@1": 0.5}}
    hear(metrics, ROUTE, GLOBAL, sums(50.0, 0.0))
    assert series(metrics, "streamserve_model_weight")["", "b@1"] == pytest.approx(1.0)


def test_contexts_make_no_more_series_than_the_bound() -> None:
    metrics = RoleMetrics("update", "app")
    hear(metrics, ROUTE, GLOBAL, sums(0.0, 0.0))
    for number in range(MOST_CONTEXTS):
        hear(metrics, ROUTE, f"s{number}", sums(0.0, 50.0))
    for number in range(3 * MOST_IN_A_MEAN):
        # of those heard last, which count, b is the better one
        worse = (0.0, 50.0) if number < 2 * MOST_IN_A_MEAN else (50.0, 0.0)
        hear(metrics, ROUTE, f"late{number}", sums(*worse))
        hear(metrics, ROUTE, f"eu//user{number}", sums(*worse))
    found = series(metrics, "streamserve_model_weight")
    assert {context for context, _ in found} == {"", "/", "//", *(f"s{number}" for number in range(MOST_CONTEXTS))}
    assert found["/", "b@1"] == pytest.approx(1.0)
    assert found["//", "b@1"] == pytest.approx(1.0)
    hear(metrics, ROUTE, "s0", sums(50.0, 0.0))  # a name that has a label keeps it
    assert series(metrics, "streamserve_model_weight")["s0", "b@1"] == pytest.approx(1.0)


def test_a_mean_counts_each_context_once() -> None:
    metrics = RoleMetrics("update", "app")
    hear(metrics, ROUTE, "//one", sums(0.0, 50.0))
    for _ in range(3):
        hear(metrics, ROUTE, "//two", sums(50.0, 0.0))
    assert series(metrics, "streamserve_model_weight")["//", "a@1"] == pytest.approx(0.5)


def test_confidence_is_told_by_context() -> None:
    policy = Confident(policy=Hedge(), rules=ConfidenceRules(), combine="vote")
    route, metrics = replace(ROUTE, policy=policy), RoleMetrics("update", "app")
    outcome = outcome_of({"a@1": 1.0, "b@1": 1.0}, chosen=MODELS)
    decision = replace(outcome.decision, label=[0], agreement=1.0)
    wrong = policy.learn(policy.initial(MODELS), replace(outcome, decision=decision, label=1, has_label=True))
    hear(metrics, route, GLOBAL, policy.initial(MODELS))
    hear(metrics, route, "eu", wrong)
    found = series(metrics, "streamserve_confidence")
    assert (found["", "calibration_error"], found["eu", "calibration_error"]) == (0.0, 1.0)


def test_a_route_with_other_models_begins_anew() -> None:
    metrics = RoleMetrics("update", "app")
    hear(metrics, ROUTE, "eu", sums(0.0, 1.0))
    hear(metrics, replace(ROUTE, models=("c@1",)), GLOBAL, LossSums(models=("c@1",), losses=(0.0,)))
    assert series(metrics, "streamserve_model_weight") == {("", "c@1"): 1.0}


def test_losses_regret_version_and_age_are_told_by_context() -> None:
    policy = Watched(policy=Hedge(), combine="vote")
    route, metrics = replace(ROUTE, policy=policy), RoleMetrics("update", "app")
    outcome = outcome_of({"a@1": 1.0, "b@1": 0.0}, chosen=MODELS)
    outcome = replace(outcome, decision=replace(outcome.decision, label=[1]))
    hear(metrics, route, "eu", policy.learn(policy.initial(MODELS), outcome), epoch=12)
    hear(metrics, route, GLOBAL, policy.initial(MODELS), epoch=3)
    assert series(metrics, "streamserve_model_loss") == {("eu", "a@1"): 1.0, ("eu", "b@1"): 0.0}
    assert series(metrics, "streamserve_model_effective_outcomes")["eu", "a@1"] == 1.0
    assert series(metrics, "streamserve_model_share")["eu", "a@1"] == 1.0  # hedge asks all
    assert series(metrics, "streamserve_regret") == {("eu", ""): 1.0}
    assert series(metrics, "streamserve_regret_outcomes") == {("eu", ""): 1.0}
    assert series(metrics, "streamserve_learnt_outcomes") == {("", ""): 0.0, ("eu", ""): 1.0}
    assert series(metrics, "streamserve_state_epoch") == {("", ""): 3.0, ("eu", ""): 12.0}
    assert series(metrics, "streamserve_state_timestamp_seconds")["", ""] == 1.5
    assert series(metrics, "streamserve_weight_entropy")["", ""] == pytest.approx(math.log(2))


def test_means_have_no_version_and_no_regret() -> None:
    metrics = RoleMetrics("update", "app")
    hear(metrics, ROUTE, "//one", sums(0.0, 0.0))
    hear(metrics, ROUTE, "//two", sums(0.0, 1e9))
    assert series(metrics, "streamserve_weight_entropy")["//", ""] == pytest.approx(math.log(2) / 2)
    assert series(metrics, "streamserve_model_share")["//", "b@1"] == 1.0
    for name in ("regret", "regret_outcomes", "state_epoch", "state_timestamp_seconds", "learnt_outcomes"):
        assert not series(metrics, f"streamserve_{name}")
