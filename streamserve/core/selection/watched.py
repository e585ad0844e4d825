"""What an operator watches, kept around a policy: each model's decayed loss, and the regret over the best one.

It is a part of the state (decision 92): learnt once from each outcome, published with it, and the same after any crash.
Only states that are not keyed hold it: what a keyed one is taught, those above it are taught too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from streamserve.core.contexts import is_keyed
from streamserve.core.losses import apart, label_rows
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.around import Around, frozen_models
from streamserve.core.selection.base import Distribution, Policy
from streamserve.core.selection.pooling import decided_by_features, features_read, pooled
from streamserve.core.selection.sums import decay_of
from streamserve.core.values import unchanging
from streamserve.errors import ContractError

STATE_VERSION = 1
#: Where the policy has none of its own.
HALF_LIFE_EVENTS = 350.0
#: Outcomes laid by at most before they are added up.
MOST_LAID_BY = 64

#: An outcome that is not in the sums yet: those before it; each model's loss, in order, -1 where it was not judged;
#: what the answer cost, -1 where its label did not judge every model and the answer.
_LaidBy = tuple["_LaidBy | None", Sequence[float], float]


class Judged(NamedTuple):
    """One model's judged answers, decayed by outcomes of the state."""

    weight: float = 0.0
    """Sum of their weights: 1 when judged, less with each outcome since."""
    squares: float = 0.0
    """Sum of the squares of these."""
    loss: float = 0.0
    """Weighted sum of losses."""

    @property
    def mean_loss(self) -> float:
        """NaN where nothing was judged, or all is forgotten."""
        return self.loss / self.weight if self.weight > 0.0 else math.nan

    @property
    def effective(self) -> float:
        """How many answers of equal weight would say as much (Kish 1965): `sum(w)^2 / sum(w^2)`."""
        return self.weight * self.weight / self.squares if self.squares > 0.0 else 0.0


@unchanging()
class Tally:
    """Over the outcomes that a state was taught by; immutable."""

    models: tuple[str, ...]
    judged: tuple[Judged, ...]
    decay: float
    """What each outcome leaves of the weight of those before it."""
    outcomes: int = 0
    """That judged any model, ever."""
    full: int = 0
    """Labels that judged every model and the answer, since these models are together; `served` and `alone`: over these,
    what the answers cost, and what each model's alone would have."""
    served: float = 0.0
    alone: tuple[float, ...] = ()

    @property
    def regret(self) -> float:
        """What was lost over the best single model in hindsight; below 0: a mixture was better than any. NaN: no such
        outcome yet."""
        return self.served - min(self.alone) if self.full else math.nan


class WatchedState(NamedTuple):
    """What a policy has learnt, and how it and its models do.

    Outcomes are laid by, and added up some at a time, in their order (decision 97): as when each is added by itself, to
    the last bit.
    """

    policy: Any
    sums: Tally
    laid_by: _LaidBy | None = None
    """The newest first."""
    n_laid_by: int = 0

    @property
    def tally(self) -> Tally:
        return self.sums if self.laid_by is None else _added(self.sums, self.laid_by)


def empty_tally(models: Sequence[str], decay: float) -> Tally:
    return Tally(models=tuple(models), judged=(Judged(),) * len(models), alone=(0.0,) * len(models), decay=decay)


def tally_of(state: Any) -> Tally | None:
    """Of a route's state, whatever is around the policy; None of a keyed one, and where nothing has been judged."""
    while state is not None and not isinstance(state, WatchedState):
        state = getattr(state, "policy", None)
    tally = None if state is None else state.tally
    return tally if tally is not None and tally.outcomes else None


@unchanging()
class Watched(Around):
    """A policy that is watched. Its name and its choices are the policy's own."""

    combine: str
    """The route's rule: how an answer is judged."""

    def initial(self, models: Sequence[str]) -> WatchedState:
        return WatchedState(policy=self.policy.initial(models), sums=self._nothing(models))

    def distribution(self, state: WatchedState, models: Sequence[str]) -> Distribution:
        return self.policy.distribution(state.policy, models)

    @property
    def features(self) -> int:
        return features_read(self.policy)

    def distribution_at(self, state: WatchedState, models: Sequence[str], features: Sequence[float]) -> Distribution:
        return decided_by_features(self.policy, state.policy, models, features)

    def pooled(self, states: Sequence[WatchedState], strength: float) -> WatchedState:
        """To decide by; nobody watches it."""
        return states[0]._replace(policy=pooled(self.policy, [state.policy for state in states], strength))

    def frozen(self, state: WatchedState) -> Mapping[str, Any]:
        return frozen_models(self.policy, state.policy)

    def learn(self, state: WatchedState, outcome: OutcomeRecord) -> WatchedState:
        before, sums, laid_by, n_laid_by = state
        learnt = self.policy.learn(before, outcome)
        given = outcome.losses
        # NaN and what is out of range judge nothing, as what is not there.
        losses = [loss if 0.0 <= loss <= 1.0 else -1.0 for loss in [given.get(model, -1.0) for model in sums.models]]
        missing = losses.count(-1.0)
        if missing == len(losses) or is_keyed(outcome.context):
            return state if learnt is before else WatchedState(learnt, sums, laid_by, n_laid_by)
        # A reward judges those that said what was served: all of them only where they agree, which is no fair sample.
        cost = None if missing or not outcome.has_label else answer_loss(self.combine, outcome)
        laid_by = (laid_by, losses, -1.0 if cost is None else cost)
        if n_laid_by + 1 < MOST_LAID_BY:
            return WatchedState(learnt, sums, laid_by, n_laid_by + 1)
        return WatchedState(learnt, _added(sums, laid_by), None, 0)

    def _nothing(self, models: Sequence[str]) -> Tally:
        return empty_tally(models, decay_of(half_life_of(self.policy)))

    def dump(self, state: WatchedState) -> Mapping[str, Any]:
        own = {} if state.policy is None else self.policy.dump(state.policy)
        tally = state.tally
        if not tally.outcomes:
            return own
        judged = zip(tally.models, tally.judged, strict=True)
        figures = {
            "v": STATE_VERSION,
            "judged": {model: [one.weight, one.squares, one.loss] for model, one in judged},
            "outcomes": tally.outcomes,
            "full": tally.full,
            "served": tally.served,
            "alone": dict(zip(tally.models, tally.alone, strict=True)),
        }
        return {**own, "figures": figures}

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> WatchedState:
        """A state that the policy alone has written begins its figures anew; with other models than it was written
        for, regret does. Raises ContractError."""
        own = {key: value for key, value in data.items() if key != "figures"}
        policy = None if self.policy.initial(models) is None else self.policy.load(own, models)
        found = data.get("figures")
        nothing = self._nothing(models)
        return WatchedState(policy=policy, sums=nothing if found is None else _tally_from(found, nothing))


def half_life_of(policy: Policy) -> float | None:
    """Outcomes after which this policy counts a loss half; None: it forgets nothing."""
    while isinstance(policy, Around):
        policy = policy.policy
    found = getattr(policy, "half_life_events", HALF_LIFE_EVENTS)
    return found if found is None or (isinstance(found, int | float) and found >= 1.0) else HALF_LIFE_EVENTS


def answer_loss(combine: str, outcome: OutcomeRecord) -> float | None:
    """What the answer of the chosen models cost by the label, given or withheld, before any second opinion; a default
    that was served counts as it is. None where there was none."""
    answer = outcome.decision.first_answer
    if not isinstance(answer, list) or not answer:
        return None
    if len(answer) == 1 and not isinstance(answer[0], list) and not isinstance(outcome.label, list):
        return apart(combine, answer[0], outcome.label)
    labels = label_rows(outcome.label, len(answer), any(isinstance(row, list) for row in answer))
    if labels is None:
        return None
    return math.fsum(apart(combine, row, label) for row, label in zip(answer, labels, strict=True)) / len(answer)


def _added(tally: Tally, laid_by: _LaidBy) -> Tally:
    """With what was laid by: a model at a time, outcome after outcome."""
    rows, costs = [], []
    last: _LaidBy | None = laid_by
    while last is not None:
        last, losses, cost = last
        rows.append(losses)
        costs.append(cost)
    rows.reverse()
    costs.reverse()
    whole = [row for row, cost in zip(rows, costs, strict=True) if cost >= 0.0]
    served = tally.served
    for cost in costs:
        if cost >= 0.0:
            served += cost
    alone = list(tally.alone)
    for place, column in enumerate(zip(*whole, strict=True)):
        total = alone[place]
        for loss in column:  # `sum` adds otherwise in some releases of Python
            total += loss
        alone[place] = total
    return replace(
        tally,
        judged=tuple(
            _judged_by(one, column, tally.decay)
            for one, column in zip(tally.judged, zip(*rows, strict=True), strict=True)
        ),
        outcomes=tally.outcomes + len(rows),
        full=tally.full + len(whole),
        served=served,
        alone=tuple(alone),
    )


def _judged_by(judged: Judged, losses: Sequence[float], decay: float) -> Judged:
    """After outcomes that judged the model so; below 0: they did not."""
    (weight, squares, total), squared = judged, decay * decay
    if min(losses) >= 0.0:
        for loss in losses:
            weight, squares, total = decay * weight + 1.0, squared * squares + 1.0, decay * total + loss
    else:
        for loss in losses:
            weight, squares, total = decay * weight, squared * squares, decay * total
            if loss >= 0.0:
                weight, squares, total = weight + 1.0, squares + 1.0, total + loss
    return Judged(weight, squares, total)


def _tally_from(found: Any, nothing: Tally) -> Tally:
    try:
        if found["v"] != STATE_VERSION:
            raise ContractError(f"figures of a state have version {found['v']!r}, read is {STATE_VERSION}")
        judged = {str(model): _judged_from(*numbers) for model, numbers in found["judged"].items()}
        outcomes, full, served = int(found["outcomes"]), int(found["full"]), float(found["served"])
        alone = {str(model): float(loss) for model, loss in found["alone"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ContractError(f"figures of a state cannot be read: {error!r}") from error
    if not (0 <= full <= outcomes and all(0.0 <= loss <= full for loss in (served, *alone.values()))):
        raise ContractError(f"figures of a state cannot be {found}")
    models = nothing.models
    tally = replace(nothing, judged=tuple(judged.get(model, Judged()) for model in models), outcomes=outcomes)
    if set(alone) != set(models):
        return tally
    return replace(tally, full=full, served=served, alone=tuple(alone[model] for model in models))


def _judged_from(weight: float, squares: float, loss: float) -> Judged:
    one = Judged(weight=float(weight), squares=float(squares), loss=float(loss))
    if not (0.0 <= one.squares <= one.weight < math.inf and 0.0 <= one.loss <= one.weight * (1.0 + 1e-9)):
        raise ContractError(f"figures of a state cannot hold {one}")
    return one
