"""A new version that begins with a part of what its predecessor has earned."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.selection.base import Policy, reads_probabilities
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.exp3ix import Exp3IX
from streamserve.core.selection.exp4 import Exp4
from streamserve.core.selection.guarded import Guarded, ShareLimits
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.inheriting import Heir, Inheriting
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.linucb import LinUCB
from streamserve.core.selection.stack import Stack
from streamserve.core.selection.static import Static
from streamserve.core.selection.thompson import Thompson
from streamserve.errors import ConfigError, ContractError
from streamserve.testing.policy_checks import MODELS, check_policy, learn_once
from streamserve.testing.policy_checks import outcome_of as judged

LEARN = (Hedge(), Exp3IX(), Exp4(), Stack(), Leader(), Thompson(), LinUCB(features=1))
NEW = ("a@2", *MODELS[1:])


def heir_of(policy: Policy, share: float) -> Inheriting:
    return Inheriting(policy=policy, heirs={"a@2": Heir(of="a@1", share=share)})


def taught(policy: Policy, wrong: dict[str, int], n: int = 60) -> Any:
    """A model is wrong in every so many outcomes."""
    state = policy.initial(MODELS)
    for turn in range(n):
        losses = {model: float(turn % wrong.get(model, 2) == 0) for model in MODELS}
        state = policy.learn(state, judged(losses, chosen=MODELS, offset=turn))
    return state


def weight(policy: Policy, state: Any) -> float:
    return float(policy.distribution(state, NEW).weights[0])


@pytest.mark.parametrize("policy", [Hedge(), Exp4(), Stack()], ids=lambda policy: policy.name)
@given(share=st.floats(0.0, 1.0), good=st.booleans())
def test_an_heir_stands_between_a_new_model_and_its_predecessor(policy: Policy, share: float, good: bool) -> None:
    data = json.loads(json.dumps(policy.dump(taught(policy, {"a@1": 30 if good else 1}))))
    fresh, same = (weight(policy, heir_of(policy, part).load(data, NEW)) for part in (0.0, 1.0))
    found = weight(policy, heir_of(policy, share).load(data, NEW))
    assert min(fresh, same) - 1e-9 <= found <= max(fresh, same) + 1e-9
    assert (same > fresh) is good
    old = policy.distribution(policy.load(data, MODELS), MODELS).weights
    assert same == pytest.approx(float(old[0]))


@pytest.mark.parametrize("policy", [Leader(), Thompson()], ids=lambda policy: policy.name)
def test_an_heir_has_its_predecessors_mean_on_a_part_of_the_evidence(policy: Policy) -> None:
    state = taught(policy, {"a@1": 10})
    found = heir_of(policy, 0.25).load(policy.dump(state), NEW)
    assert found.counts[0] == pytest.approx(0.25 * state.counts[0])
    assert found.rewards[0] / found.counts[0] == pytest.approx(state.rewards[0] / state.counts[0])
    assert found.counts[1:] == state.counts[1:]


def test_an_heir_of_a_regression_expects_the_same_and_is_less_sure() -> None:
    policy = LinUCB(features=1)
    state = policy.initial(MODELS)
    data = {**policy.dump(state)}
    data["squares"] = {**data["squares"], "a@1": [8.0, 4.0, 16.0]}
    data["products"] = {**data["products"], "a@1": [3.0, 6.0]}
    found = heir_of(policy, 0.5).load(data, NEW)
    assert found.squares[0].tolist() == [[4.0, 2.0], [2.0, 8.0]]
    assert found.products[0].tolist() == [1.5, 3.0]


@pytest.mark.parametrize("policy", LEARN, ids=lambda policy: policy.name)
def test_what_is_known_of_the_heir_itself_counts_and_nobody_else_changes(policy: Policy) -> None:
    around = heir_of(policy, 0.5)
    state = taught(policy, {"a@1": 7})
    first = around.load(policy.dump(state), NEW)
    again = around.load(around.dump(first), NEW)
    assert json.dumps(around.dump(again)) == json.dumps(around.dump(first))
    both = around.load(policy.dump(state), (*MODELS, "a@2"))
    weights = around.distribution(both, (*MODELS, "a@2")).weights
    assert weights.shape == (6,)
    assert np.isfinite(weights).all()
    assert reads_probabilities(around) == reads_probabilities(policy)
    unknown = Inheriting(policy=policy, heirs={"new@1": Heir(of="nobody@1", share=0.5)})
    models = ("new@1", *MODELS)
    assert json.dumps(policy.dump(unknown.load(policy.dump(state), models))) == json.dumps(
        policy.dump(policy.load(policy.dump(state), models))
    )
    for wrong in ({}, {key: None for key in policy.dump(state)}):
        with pytest.raises(ContractError):
            around.load(wrong, NEW)


def test_it_keeps_the_laws_of_a_policy_and_works_within_others() -> None:
    check_policy(heir_of(Hedge(), 0.5))
    inner = Guarded(policy=heir_of(Hedge(), 1.0), limits=ShareLimits(least_share=0.01))
    policy = Confident(policy=inner, rules=ConfidenceRules(), combine="vote")
    state = policy.initial(MODELS)
    for turn in range(40):
        state = learn_once(policy, state, {model: float(model != "a@1") for model in MODELS}, turn)
    assert policy.distribution(policy.load(policy.dump(state), NEW), NEW).weights.argmax() == 0


def test_a_policy_that_cannot_is_refused_and_one_that_learns_nothing_has_nothing_to_leave() -> None:
    assert heir_of(Static(), 0.5).initial(NEW) is None

    class Other:
        name = "other"

        def initial(self, models: Any) -> int:
            return 1

    with pytest.raises(ConfigError, match="does not let a model inherit"):
        heir_of(Other(), 0.5).initial(NEW)  # type: ignore[arg-type]
