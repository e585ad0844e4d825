"""A freeze: whom it strikes, whom it spares, from when it holds, and what lifts it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamserve.core.epochs import EpochTable
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord, StateRecord
from streamserve.core.selection.ab import AB
from streamserve.core.selection.around import frozen_models
from streamserve.core.selection.base import Policy
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.exp3ix import Exp3IX
from streamserve.core.selection.freezing import FreezeRules, Freezing, FreezingState
from streamserve.core.selection.guarded import Guarded, ShareLimits
from streamserve.core.selection.hedge import Hedge
from streamserve.core.switches import SwitchRecord
from streamserve.errors import ConfigError, ContractError
from streamserve.testing.policy_checks import (
    MODELS,
    POLICY_LAWS,
    PolicyLaw,
    law_draws_follow_the_probabilities,
    law_extreme_losses_stay_finite,
    outcome_of,
)
from tests.core.kit import app, route

ABC = MODELS[:3]
DELAY_MS = 250


def freezing(policy: Policy | None = None, **rules: Any) -> Freezing:
    return Freezing(policy=policy or Hedge(), rules=FreezeRules(**({"baseline": "a"} | rules)))


def judged(losses: dict[str, float], ms: int) -> OutcomeRecord:
    return replace(outcome_of(losses, chosen=tuple(losses)), feedback_ms=ms)


def taught(policy: Freezing, losses: list[dict[str, float]], state: FreezingState | None = None) -> FreezingState:
    found = policy.initial(ABC) if state is None else state
    for ms, each in enumerate(losses):
        found = policy.learn(found, judged(each, ms))
    return found


def drawn(rates: tuple[float, ...], n: int, seed: int) -> list[dict[str, float]]:
    wrong = np.random.default_rng(seed).random((n, len(rates))) < np.array(rates)
    return [dict(zip(ABC, map(float, row), strict=True)) for row in wrong.tolist()]


class AnyBaseline(Freezing):
    """Laws come with models of all kinds of names."""

    def _baseline(self, models: Any) -> int:
        return 0


@pytest.mark.parametrize("law", [law for law in POLICY_LAWS if law is not law_draws_follow_the_probabilities])
@pytest.mark.parametrize("policy", [Hedge(), Exp3IX()], ids=lambda policy: policy.name)
def test_a_freeze_keeps_the_laws_of_a_policy(policy: Policy, law: PolicyLaw) -> None:
    around = AnyBaseline(policy=policy, rules=FreezeRules(baseline="a"))
    if law is law_extreme_losses_stay_finite:
        law_extreme_losses_stay_finite(around, n=1_000)
    else:
        law(around)


def test_a_worse_model_is_frozen_and_an_equal_or_better_one_is_not() -> None:
    policy = freezing()
    state = taught(policy, drawn((0.1, 0.4, 0.05), 800, seed=1))
    assert list(state.frozen) == ["b@1"]
    frozen = state.frozen["b@1"]
    assert frozen.since_ms < 800
    assert frozen.loss_above > frozen.baseline_below
    assert frozen_models(policy, state) == state.frozen


def test_models_that_are_no_worse_are_hardly_ever_frozen() -> None:
    """At a confidence of 0.9, looked at after each outcome, at most a tenth of the runs may freeze somebody."""
    policy = freezing(AB(), confidence=0.9)
    struck = sum(bool(taught(policy, drawn((0.2, 0.2, 0.2), 500, seed)).frozen) for seed in range(40))
    assert struck <= 4


def test_only_the_served_answer_needs_to_be_judged() -> None:
    policy = freezing(Exp3IX())
    rng, rates = np.random.default_rng(5), (0.1, 0.6, 0.1)
    state = policy.initial(ABC)
    for ms in range(1_500):
        bit = int(rng.integers(3))
        outcome = outcome_of({ABC[bit]: float(rng.random() < rates[bit])}, chosen=ABC[bit : bit + 1], probability=1 / 3)
        state = policy.learn(state, replace(outcome, feedback_ms=ms))
    assert list(state.frozen) == ["b@1"]


def first_frozen(losses: list[dict[str, float]], stretch_outcomes: int) -> int:
    """After how many outcomes somebody is."""
    policy = freezing(AB(), stretch_outcomes=stretch_outcomes)
    state = policy.initial(ABC)
    for ms, each in enumerate(losses):
        state = policy.learn(state, judged(each, ms))
        if state.frozen:
            return ms
    return len(losses)


def test_a_long_good_record_does_not_hide_a_new_fault() -> None:
    """Compared over all of it, a model that gets worse is found later than within a stretch."""
    bad = [{"a@1": float(n % 10 == 0), "b@1": float(n % 4 == 0)} for n in range(2_000)]
    losses = [{"a@1": float(n % 10 == 0), "b@1": float(n % 10 == 5)} for n in range(5_000)] + bad
    assert first_frozen(losses, 1_000) < 5_000 + 900
    assert first_frozen(losses, 1_000_000) > 5_000 + 1_100


def test_a_state_goes_on_as_it_was_with_other_models_and_from_before_the_section() -> None:
    policy = freezing()
    state = taught(policy, drawn((0.1, 0.5, 0.1), 600, seed=2))
    data = json.loads(json.dumps(policy.dump(state)))
    assert policy.load(data, ABC) == state
    fewer = policy.load(data, ("a@1", "c@1", "new@1"))
    assert not fewer.frozen
    assert [mean.n for mean in fewer.seen] == [state.seen[0].n, state.seen[2].n, 0]
    assert policy.load(policy.policy.dump(state.policy), ABC) == replace(policy.initial(ABC), policy=state.policy)
    assert policy.policy.load(data, ABC) == state.policy  # and when the section is taken away again
    for wrong in ({"v": 9}, {"v": 1, "seen": {"a@1": [1, 5.0, 0.0]}, "events": 0, "frozen": {}}, {"v": 1}):
        with pytest.raises(ContractError):
            policy.load({**data, "freeze": wrong}, ABC)


@pytest.mark.parametrize("rules", [{"baseline": "z"}, {"confidence": 1.0}, {"stretch_outcomes": 5}])
def test_impossible_rules_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        freezing(**rules).initial(ABC)


# -- in force -----


def table_of(policy: Policy, state: Any, append_ms: int = 1_000) -> EpochTable:
    rules = app(route(ABC, policy=policy, learns=True), epoch_delay_ms=DELAY_MS)
    table = EpochTable(rules)
    record = StateRecord(
        route="r", context="", policy=policy.name, data=policy.dump(state), includes={}, partition=0, epoch=4,
        append_ms=append_ms,
    )  # fmt: skip
    table.apply([record])
    table.known_until(1_000_000)
    return table


def chosen(table: EpochTable, *append_ms: int) -> list[int]:
    n = len(append_ms)
    choice = table.choose(0, np.zeros(n, np.int64), np.arange(n), np.array(append_ms))
    assert (choice.probability == PROBABILITY_ONE).all()
    return choice.chosen.tolist()


@pytest.mark.parametrize(
    "around",
    [
        lambda policy: policy,
        lambda policy: Confident(policy=policy, rules=ConfidenceRules(), combine="vote"),
    ],
)
def test_a_frozen_model_is_asked_no_more_from_when_its_state_holds_until_it_is_switched_on(around: Any) -> None:
    inner = freezing(Guarded(policy=Hedge(), limits=ShareLimits(least_share=0.1)))
    policy = around(inner)
    state = policy.initial(ABC)
    for ms, losses in enumerate(drawn((0.1, 0.5, 0.1), 600, seed=2)):
        state = policy.learn(state, judged(losses, ms))
    table = table_of(policy, state)
    assert chosen(table, 1_249, 1_250, 9_000) == [7, 5, 5]
    since_ms = frozen_models(policy, state)["b@1"].since_ms
    before = SwitchRecord(model="b@1", disabled=False, append_ms=since_ms, offset=1)
    table.switch([before])
    assert chosen(table, 9_000) == [5]  # what was switched on before has been frozen since
    table.switch([SwitchRecord(model="b", disabled=False, append_ms=2_000, offset=7)])
    assert chosen(table, 1_300, 2_249, 2_250) == [5, 5, 7]
    table.switch([SwitchRecord(model="a@1", disabled=True, append_ms=1_000, offset=3)])
    assert chosen(table, 1_300, 2_250) == [4, 6]


def test_a_route_keeps_a_model_whoever_is_frozen_and_switched_off() -> None:
    policy = freezing()
    state = taught(policy, drawn((0.05, 0.6, 0.6), 600, seed=6))
    assert set(state.frozen) == {"b@1", "c@1"}
    table = table_of(policy, state)
    assert chosen(table, 5_000) == [1]
    table.switch([SwitchRecord(model="a@1", disabled=True, append_ms=1_000, offset=3)])
    assert chosen(table, 5_000) == [6]  # the operator's word counts more
