"""The conformance suite of a policy: every policy passes it, built in or not.

    from streamserve.testing.policy_checks import check_policy

    def test_my_policy():
        check_policy(MyPolicy())

`check_policy` runs all; `POLICY_LAWS` names each, for a parametrised test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import MAX_MODELS_PER_ROUTE, PROBABILITY_ONE
from streamserve.core.records import Decision, OutcomeRecord
from streamserve.core.selection.base import Distribution, Policy, pick, reads_probabilities
from streamserve.errors import ContractError

MODELS = ("a@1", "b@1", "c@1", "d@1", "e@1")

#: Decisions use a state this many outcomes old, as in a running system.
_PUBLISHED_EVERY = 100

PolicyLaw = Callable[[Policy], None]


def outcome_of(
    losses: Mapping[str, float],
    *,
    chosen: Sequence[str],
    probability: float = 1.0,
    off_epoch: bool = False,
    offset: int = 0,
) -> OutcomeRecord:
    """An outcome with these losses, for tests of policies; its label is 0, and it tells probabilities that fit."""
    told = {model: [_gives(loss)] for model, loss in losses.items() if model in chosen}
    decision = Decision(
        id=f"0-{offset}",
        route="route",
        outcome="ok",
        epoch=-1,
        probability=probability,
        off_epoch=off_epoch,
        chosen=tuple(chosen),
        label=[0],
        members={},
        rows=1,
        probabilities=told,
        classes=("0", "1", "2"),
    )
    return OutcomeRecord(
        to_partition=0,
        route="route",
        context="",
        ref=(0, offset),
        decision=decision,
        feedback=(0, offset),
        feedback_ms=0,
        losses=losses,
        has_label=True,
        label=0,
        offset=offset,
    )


def _gives(loss: float) -> list[float]:
    """What a model with this loss gave each of three classes; the first is the true one."""
    return [0.9, 0.08, 0.02] if loss < 0.5 else [0.2, 0.7, 0.1]


def learn_once(policy: Policy, state: Any, losses: Mapping[str, float], offset: int) -> Any:
    """Draw as a request at this offset would, and learn what the drawn models' losses say."""
    distribution = policy.distribution(state, MODELS)
    masks, probabilities = pick(distribution, np.zeros(1, np.int64), np.array([offset], np.int64), salt=7)
    return policy.learn(state, _drawn(int(masks[0]), int(probabilities[0]), losses, offset))


def _drawn(mask: int, probability: int, losses: Mapping[str, float], offset: int) -> OutcomeRecord:
    chosen = [model for bit, model in enumerate(MODELS) if mask >> bit & 1]
    seen = {model: losses[model] for model in chosen}
    return outcome_of(seen, chosen=chosen, probability=probability / PROBABILITY_ONE, offset=offset)


def law_distribution_is_exact(policy: Policy) -> None:
    """Probabilities sum to one exactly, masks name models of the route and differ, weights are shares."""
    for state in _states(policy):
        _check_distribution(policy.distribution(state, MODELS), len(MODELS), reads_probabilities(policy))
    _check_distribution(policy.distribution(policy.initial(("only@1",)), ("only@1",)), 1, reads_probabilities(policy))


def law_state_is_not_changed(policy: Policy) -> None:
    """`learn` returns a value and leaves the old one as it was; the same call gives the same value."""
    state = policy.initial(MODELS)
    for offset in range(50):
        before = _text(policy, state)
        after = learn_once(policy, state, _losses(offset), offset)
        assert _text(policy, state) == before, "learn changed the state that it was given"
        assert _text(policy, after) == _text(policy, learn_once(policy, state, _losses(offset), offset))
        state = after


def law_dump_is_json_and_load_brings_it_back(policy: Policy) -> None:
    for state in _states(policy):
        text = _text(policy, state)
        loaded = policy.load(json.loads(text), MODELS)
        assert _text(policy, loaded) == text, "load(dump(state)) is another state"
        _check_same(policy.distribution(loaded, MODELS), policy.distribution(state, MODELS))
        after = learn_once(policy, loaded, _losses(3), 3)
        assert _text(policy, after) == _text(policy, learn_once(policy, state, _losses(3), 3))


def law_models_may_change(policy: Policy) -> None:
    """A state loads for more, fewer and other models; the order of models does not matter."""
    for state in _states(policy):
        data = json.loads(_text(policy, state))
        for models in (MODELS[:2], (*MODELS, "new@1"), ("other@1", "new@1"), tuple(reversed(MODELS))):
            _check_distribution(
                policy.distribution(policy.load(data, models), models), len(models), reads_probabilities(policy)
            )


def law_any_number_of_models(policy: Policy) -> None:
    """From 1 model to 64, as many as a route can have."""
    for n in (1, 2, 33, MAX_MODELS_PER_ROUTE):
        models = tuple(f"m{place}@1" for place in range(n))
        state = policy.initial(models)
        _check_distribution(policy.distribution(state, models), n, reads_probabilities(policy))
        taught = policy.learn(state, outcome_of(dict.fromkeys(models, 0.5), chosen=models))
        _check_distribution(policy.distribution(taught, models), n, reads_probabilities(policy))


def law_a_state_that_cannot_be_read_is_refused(policy: Policy) -> None:
    """`load` raises ContractError on a later version (`"v"`) and on what is no state, and never guesses."""
    for state in _states(policy):
        if state is None:  # a policy without a state reads none
            continue
        data = json.loads(_text(policy, state))
        cut = {key: None for key in data}
        for wrong in ({**data, "v": 1_000}, {}, cut):
            try:
                policy.load(wrong, MODELS)
            except ContractError:
                continue
            raise AssertionError(f"load took a state that cannot be read: {wrong}")


def law_bad_losses_teach_nothing(policy: Policy) -> None:
    """NaN, infinite, negative, too large and unknown models' losses leave the state as it is."""
    for state in _states(policy):
        text = _text(policy, state)
        for bad in (math.nan, math.inf, -math.inf, -0.1, 1.1):
            losses = dict.fromkeys(MODELS, bad)
            assert _text(policy, policy.learn(state, outcome_of(losses, chosen=MODELS))) == text, f"learnt from {bad}"
        for losses in ({"other@1": 1.0}, {}):
            nothing = outcome_of(losses, chosen=("other@1",), probability=0.5)
            assert _text(policy, policy.learn(state, nothing)) == text, f"learnt from the losses {losses}"


def law_extreme_losses_stay_finite(policy: Policy, n: int = 20_000) -> None:
    """n outcomes each, all 0, all 1, alternating, one model always wrong: probabilities stay exact, weights finite."""
    right, wrong = dict.fromkeys(MODELS, 0.0), dict.fromkeys(MODELS, 1.0)
    for pattern in ((right, right), (wrong, wrong), (right, wrong), (right | {MODELS[0]: 1.0},) * 2):
        state = policy.initial(MODELS)
        for first in range(0, n, _PUBLISHED_EVERY):
            distribution = policy.distribution(state, MODELS)
            _check_distribution(distribution, len(MODELS), reads_probabilities(policy))
            offsets = np.arange(first, first + _PUBLISHED_EVERY, dtype=np.int64)
            masks, probabilities = pick(distribution, np.zeros_like(offsets), offsets, salt=7)
            outcomes: dict[tuple[int, int], OutcomeRecord] = {}
            for turn, (mask, probability) in enumerate(zip(masks.tolist(), probabilities.tolist(), strict=True)):
                outcome = outcomes.get((mask, turn % 2))
                if outcome is None:
                    outcome = outcomes[mask, turn % 2] = _drawn(mask, probability, pattern[turn % 2], first)
                state = policy.learn(state, outcome)
        _check_distribution(policy.distribution(state, MODELS), len(MODELS), reads_probabilities(policy))
        _text(policy, state)


def law_draws_follow_the_probabilities(policy: Policy, n: int = 100_000) -> None:
    """What is drawn agrees with what is logged: chi-squared below its 0.999 quantile (normal approximation)."""
    for state in _states(policy):
        distribution = policy.distribution(state, MODELS)
        masks, logged = pick(distribution, np.full(n, 3, np.int64), np.arange(n, dtype=np.int64), salt=11)
        expected = distribution.probabilities / PROBABILITY_ONE * n
        counts = np.array([(masks == mask).sum() for mask in distribution.masks])
        likely = expected >= 5
        assert logged.min() >= 1, "a choice of probability 0 was drawn"
        degrees = max(1, int(likely.sum()) - 1)
        chi2 = float((((counts - expected) ** 2) / np.maximum(expected, 1e-12))[likely].sum())
        assert chi2 <= degrees + 3.1 * math.sqrt(2 * degrees) + 10, f"draws do not follow the probabilities: {chi2}"


POLICY_LAWS: tuple[PolicyLaw, ...] = (
    law_distribution_is_exact,
    law_state_is_not_changed,
    law_dump_is_json_and_load_brings_it_back,
    law_models_may_change,
    law_any_number_of_models,
    law_a_state_that_cannot_be_read_is_refused,
    law_bad_losses_teach_nothing,
    law_extreme_losses_stay_finite,
    law_draws_follow_the_probabilities,
)


def check_policy(policy: Policy) -> None:
    """Run the whole list; raises AssertionError at the first law that is broken."""
    assert policy.name, "a policy has a name"
    for law in POLICY_LAWS:
        law(policy)


def _states(policy: Policy) -> list[Any]:
    """Some states that feedback leads to: none, a little, much."""
    state = policy.initial(MODELS)
    states = [state]
    for offset in range(400):
        state = learn_once(policy, state, _losses(offset), offset)
        if offset in (0, 20, 399):
            states.append(state)
    return states


def _losses(offset: int) -> dict[str, float]:
    """Deterministic, different for each model: the first errs rarely, the last often."""
    return {model: float(offset * (place + 1) % 7 < place) for place, model in enumerate(MODELS)}


def _text(policy: Policy, state: Any) -> str:
    try:
        return json.dumps(policy.dump(state), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"dump gives something that JSON does not have: {error}") from error


def _check_distribution(distribution: Distribution, models: int, signed: bool = False) -> None:
    masks = [int(mask) for mask in distribution.masks]
    probabilities = distribution.probabilities
    assert len(set(masks)) == len(masks) == len(probabilities), "each set of models is there once"
    assert all(0 < mask < 1 << models for mask in masks), f"masks {masks} do not name models of the route"
    assert probabilities.dtype == np.int64, "probabilities are fixed point"
    assert int(probabilities.sum()) == PROBABILITY_ONE, f"probabilities sum to {int(probabilities.sum())}"
    assert int(probabilities.min()) >= 0, "a probability is negative"
    weights = distribution.weights
    assert weights.shape == (models,), "one weight a model"
    assert bool(np.isfinite(weights).all()), "weights are finite"
    assert signed or float(weights.min()) >= 0.0, "weights are not negative"
    assert abs(float(weights.sum()) - 1.0) <= 1e-9, f"weights sum to {float(weights.sum())}"


def _check_same(left: Distribution, right: Distribution) -> None:
    assert np.array_equal(left.masks, right.masks), "masks differ"
    assert np.array_equal(left.probabilities, right.probabilities), "probabilities differ"
    assert np.array_equal(left.weights, right.weights), "weights differ"
