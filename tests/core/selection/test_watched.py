"""What is watched of a policy: the laws of a policy hold around it, and each figure is what its words say."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Policy
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.exp3ix import Exp3IX
from streamserve.core.selection.figures import entropy_of, figures_of
from streamserve.core.selection.freezing import FreezeRules, Freezing
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.linucb import LinUCB
from streamserve.core.selection.pooling import pooled
from streamserve.core.selection.registry import POLICIES
from streamserve.core.selection.stack import Stack
from streamserve.core.selection.static import Static
from streamserve.core.selection.thompson import Thompson
from streamserve.core.selection.watched import MOST_LAID_BY, Tally, Watched, half_life_of, tally_of
from streamserve.errors import ContractError
from streamserve.testing.policy_checks import MODELS, POLICY_LAWS, PolicyLaw, outcome_of
from tests.effort import check_law

AB = ("a@1", "b@1")


def watched(policy: Policy | None = None) -> Watched:
    return Watched(policy=policy or Hedge(), combine="vote")


def said(a: int, b: int, served: int, label: int = 0, context: str = "") -> OutcomeRecord:
    """A label for what two models said, and for what was served."""
    losses = {"a@1": float(a != label), "b@1": float(b != label)}
    outcome = outcome_of(losses, chosen=AB)
    decision = replace(outcome.decision, label=[served], members={"a@1": [a], "b@1": [b]})
    return replace(outcome, decision=decision, label=label, context=context)


def taught(policy: Watched, *outcomes: OutcomeRecord) -> Any:
    state: Any = policy.initial(AB)
    for outcome in outcomes:
        state = policy.learn(state, outcome)
    return state


def tally(state: Any) -> Tally:
    found = tally_of(state)
    assert found is not None
    return found


@pytest.mark.parametrize("law", POLICY_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("policy", [Hedge(), Exp3IX(), Leader(), Stack(), Thompson()], ids=lambda one: one.name)
def test_laws_of_a_policy_hold_around_it(policy: Policy, law: PolicyLaw) -> None:
    check_law(law, watched(policy))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_it_changes_no_choice(name: str) -> None:
    bare = POLICIES[name]()
    around = watched(bare)
    state, own = around.initial(MODELS), bare.initial(MODELS)
    draws = random.Random(7)
    for offset in range(200):
        losses = {model: float(draws.random() < 0.3) for model in MODELS}
        outcome = outcome_of(losses, chosen=MODELS, offset=offset)
        state, own = around.learn(state, outcome), bare.learn(own, outcome)
    with_it, without = around.distribution(state, MODELS), bare.distribution(own, MODELS)
    assert np.array_equal(with_it.masks, without.masks)
    assert np.array_equal(with_it.probabilities, without.probabilities)
    assert np.array_equal(with_it.weights, without.weights)


@pytest.mark.parametrize("policy", [Hedge(), Stack(), Leader(), Thompson()], ids=lambda one: one.name)
def test_levels_of_a_context_decide_together_as_without_it(policy: Policy) -> None:
    around, draws = watched(policy), random.Random(11)
    states, own = [around.initial(MODELS)] * 2, [policy.initial(MODELS)] * 2
    for offset in range(200):
        level = int(offset % 10 == 0)  # the lower one sees a tenth
        outcome = outcome_of({model: float(draws.random() < 0.3) for model in MODELS}, chosen=MODELS, offset=offset)
        states[level], own[level] = around.learn(states[level], outcome), policy.learn(own[level], outcome)
    with_it = around.distribution(pooled(around, states, 50.0), MODELS)
    without = policy.distribution(pooled(policy, own, 50.0), MODELS)
    assert np.array_equal(with_it.weights, without.weights)
    assert np.array_equal(with_it.probabilities, without.probabilities)


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=1, max_size=60))
def test_regret_is_that_over_the_best_single_model(rows: list[tuple[int, int, int]]) -> None:
    found = tally(taught(watched(), *(said(*row) for row in rows)))
    a, b, served = (sum(column) for column in zip(*rows, strict=True))
    assert (found.full, found.regret) == (len(rows), served - min(a, b))


@given(st.lists(st.booleans(), min_size=1, max_size=400), st.sampled_from([None, 5.0, 350.0]))
def test_the_decayed_loss_is_the_weighted_mean_and_its_size_is_kishs(
    wrong: list[bool], half_life: float | None
) -> None:
    found = tally(taught(watched(Hedge(half_life_events=half_life)), *(said(int(w), 0, 0) for w in wrong))).judged[0]
    weights = [1.0 if half_life is None else 0.5 ** (age / half_life) for age in reversed(range(len(wrong)))]
    total = math.fsum(weights)
    assert found.mean_loss == pytest.approx(math.fsum(w * x for w, x in zip(weights, wrong, strict=True)) / total)
    assert found.effective == pytest.approx(total * total / math.fsum(w * w for w in weights))


@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.3, 1.0, math.nan, None])] * 2), max_size=3 * MOST_LAID_BY), st.data()
)
def test_a_kill_anywhere_changes_no_bit(rows: list[tuple[float | None, float | None]], data: st.DataObject) -> None:
    """Whichever outcomes are added up together: as if each were added by itself."""
    policy, killed_at = watched(), data.draw(st.sets(st.integers(0, len(rows))))
    through = killed = policy.initial(AB)
    each = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    for place, row in enumerate(rows):
        if place in killed_at:
            killed = policy.load(json.loads(json.dumps(policy.dump(killed))), AB)
        losses = {model: loss for model, loss in zip(AB, row, strict=True) if loss is not None}
        outcome = outcome_of(losses, chosen=AB, offset=place)
        through, killed = policy.learn(through, outcome), policy.learn(killed, outcome)
        if any(loss >= 0.0 for loss in losses.values()):
            decay = 0.5 ** (1.0 / 350.0)
            for one, model in zip(each, AB, strict=True):
                is_judged = losses.get(model, -1.0) >= 0.0
                one[0] = decay * one[0] + is_judged
                one[1] = decay * decay * one[1] + is_judged
                one[2] = decay * one[2] + (losses[model] if is_judged else 0.0)
    assert json.dumps(policy.dump(through)) == json.dumps(policy.dump(killed))
    assert [list(one) for one in through.tally.judged] == each


def test_a_model_that_is_not_judged_keeps_its_mean_and_loses_weight() -> None:
    policy = watched()
    state = taught(policy, *(said(1, 0, 0) for _ in range(50)))
    alone = outcome_of({"b@1": 0.0}, chosen=("b@1",))
    for _ in range(700):
        state = policy.learn(state, alone)
    a, b = tally(state).judged
    assert a.mean_loss == pytest.approx(1.0)
    assert b.mean_loss == 0.0
    assert a.weight == pytest.approx(0.25 * sum(0.5 ** (age / 350) for age in range(50)))
    assert tally(state).full == 50


def test_a_reward_tells_no_regret() -> None:
    """Of a drawn answer it judges all that said the same: only where they agree would that be all."""
    reward = replace(outcome_of({"a@1": 0.0, "b@1": 0.0}, chosen=AB), has_label=False, reward=1.0)
    found = tally(taught(watched(), reward))
    assert (found.outcomes, found.full) == (1, 0)
    assert figures_of(watched(), taught(watched(), reward), AB).regret is None


def test_a_withheld_answer_and_a_first_one_are_what_a_policy_is_judged_by() -> None:
    outcome = said(1, 0, 1)
    decision = replace(outcome.decision, label=None, withheld=[1])
    assert tally(taught(watched(), replace(outcome, decision=decision))).served == 1.0
    nobody = replace(outcome.decision, label=None)
    assert tally(taught(watched(), replace(outcome, decision=nobody))).full == 0


def test_a_keyed_state_holds_none() -> None:
    policy = watched()
    state = taught(policy, said(1, 0, 0, context="eu//user"))
    assert tally_of(state) is None
    assert set(policy.dump(state)) == set(Hedge().dump(state.policy))


def test_other_models_begin_regret_anew_and_leave_losses() -> None:
    policy = watched()
    state = taught(policy, *(said(1, 0, 1) for _ in range(5)))
    for models in (("b@1",), ("a@1", "b@1", "new@1")):
        found = tally(policy.load(policy.dump(state), models))
        assert (found.full, found.served, found.alone, found.outcomes) == (0, 0.0, (0.0,) * len(models), 5)
        assert found.judged[models.index("b@1")] == tally(state).judged[1]
    turned = tally(policy.load(policy.dump(state), ("b@1", "a@1")))
    assert (turned.full, turned.served, turned.alone) == (5, 5.0, (0.0, 5.0))


def test_a_state_of_the_policy_alone_begins_figures_anew() -> None:
    state = Hedge().learn(Hedge().initial(AB), said(1, 0, 0))
    loaded = watched().load(Hedge().dump(state), AB)
    assert (loaded.policy, tally_of(loaded)) == (state, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": 2}, {"judged": None}, {"judged": {"a@1": [1.0, 2.0, 0.5]}}, {"judged": {"a@1": [1.0, 1.0]}},
        {"judged": {"a@1": [float("nan"), 0.0, 0.0]}}, {"full": 9}, {"served": -1.0}, {"alone": {"a@1": 4.0}},
        {"served": float("nan")}, {"outcomes": "many"},
    ],
    ids=str,
)  # fmt: skip
def test_figures_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    policy = watched()
    data = json.loads(json.dumps(policy.dump(taught(policy, said(1, 0, 1)))))
    with pytest.raises(ContractError, match="figures"):
        policy.load({**data, "figures": {**data["figures"], **wrong}}, AB)


def test_they_are_found_whatever_is_around() -> None:
    policy = Confident(
        policy=Freezing(policy=watched(Static()), rules=FreezeRules(baseline="a")),
        rules=ConfidenceRules(),
        combine="vote",
    )
    state = policy.learn(policy.initial(AB), said(1, 0, 1))
    found = figures_of(policy, policy.load(policy.dump(state), AB), AB)
    assert (found.regret, found.full, found.losses) == (1.0, 1, {"a@1": 1.0, "b@1": 0.0})


def test_shares_are_the_parts_of_requests_given() -> None:
    leader = watched(Leader(shadow=0.05))
    found = figures_of(leader, taught(leader, said(1, 0, 0)), AB)
    assert found.shares == pytest.approx({"a@1": 0.05, "b@1": 1.0})
    assert found.weights == {"a@1": 0.0, "b@1": 1.0}
    drawn = watched(Exp3IX())
    found = figures_of(drawn, taught(drawn, said(1, 0, 0)), AB)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares == pytest.approx(found.weights)


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=8))
def test_entropy_is_between_that_of_one_and_that_of_all_alike(weights: list[float]) -> None:
    assert 0.0 <= entropy_of(weights) <= math.log(len(weights)) + 1e-12
    assert entropy_of([1.0, 0.0, 0.0]) == 0.0
    assert entropy_of([0.25] * 4) == pytest.approx(math.log(4))
    assert math.isfinite(entropy_of([1.5, -0.5]))


def test_it_forgets_as_its_policy_does() -> None:
    assert half_life_of(watched(Hedge(half_life_events=20.0))) == 20.0
    assert half_life_of(watched(Hedge(half_life_events=None))) is None
    assert half_life_of(watched(LinUCB())) is None
    assert half_life_of(watched(Stack())) == 350.0
