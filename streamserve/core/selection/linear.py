"""What the policies share that read features: a ridge regression of each model's reward on them, with forgetting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from streamserve.core.contexts import features_of
from streamserve.core.messages import F64
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.inheriting import Heir, part
from streamserve.core.selection.sums import STATE_VERSION, check_version, decay_of, usable_losses
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError, ContractError

MOST_FEATURES = 64
#: Rewards are taken as above or below this: with none below, whatever model is tried first looks better than any other.
CENTRE = 0.5
#: A request with a feature beyond this teaches nothing: sums of squares stay numbers, however many there are.
_LARGEST = 1e100


@unchanging(eq=False)
class LinearSums:
    """Decayed sums, of each model, over the outcomes that judged it; immutable. `d`: the features and a constant 1."""

    models: tuple[str, ...]
    squares: F64
    """`[models, d, d]`: of `x x'`."""
    products: F64
    """`[models, d]`: of `(reward - CENTRE) x`."""
    events: int = 0
    _solved: dict[float, tuple[F64, F64]] = field(default_factory=dict, repr=False)

    def solved(self, ridge: float) -> tuple[F64, F64]:
        """`[models, d, d]` inverses of `squares + ridge I`, and `[models, d]` coefficients; computed once."""
        found = self._solved.get(ridge)
        if found is None:
            ridges = ridge * np.eye(self.products.shape[1])
            inverse = np.linalg.inv(self.squares + ridges).astype(np.float64, copy=False)
            coefficients: F64 = np.einsum("kij,kj->ki", inverse, self.products)
            found = self._solved[ridge] = (inverse, coefficients)
        return found


class KeepsLinear:
    """What every policy does alike whose state is `LinearSums`: parts of `Policy` and `ReadsFeatures`."""

    __slots__ = ()

    features: int
    half_life_events: float | None

    def initial(self, models: Sequence[str]) -> LinearSums:
        d = self.features + 1
        return _frozen(tuple(models), np.zeros((len(models), d, d)), np.zeros((len(models), d)), 0)

    def distribution(self, state: LinearSums, models: Sequence[str]) -> Distribution:
        """For a request without features: all are 0."""
        return self.distribution_at(state, models, (0.0,) * self.features)

    def distribution_at(self, state: LinearSums, models: Sequence[str], features: Sequence[float]) -> Distribution:
        raise NotImplementedError

    def learn(self, state: LinearSums, outcome: OutcomeRecord) -> LinearSums:
        losses = usable_losses(outcome.losses, state.models)
        features = features_of(outcome.decision.context, self.features)
        if not losses or features is None or max(features) > _LARGEST or min(features) < -_LARGEST:
            return state
        x = np.array([*features, 1.0])
        decay = decay_of(self.half_life_events)
        squares, products = decay * state.squares, decay * state.products
        square = x[:, None] * x
        for model, loss in losses.items():
            place = state.models.index(model)
            squares[place] += square
            products[place] += (1.0 - loss - CENTRE) * x
        return _frozen(state.models, squares, products, state.events + 1)

    def dump(self, state: LinearSums) -> Mapping[str, Any]:
        rows, columns = np.triu_indices(state.products.shape[1])
        return {
            "v": STATE_VERSION,
            "squares": {model: state.squares[i][rows, columns].tolist() for i, model in enumerate(state.models)},
            "products": {model: state.products[i].tolist() for i, model in enumerate(state.models)},
            "events": state.events,
        }

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> LinearSums:
        """A model that `data` lacks has learnt nothing. A state of another number of features begins anew."""
        check_version(data)
        state = self.initial(models)
        squares, products = state.squares.copy(), state.products.copy()
        d = self.features + 1
        rows, columns = np.triu_indices(d)
        try:
            if any(len(product) != d for product in data["products"].values()):
                return state
            for place, model in enumerate(models):
                if model in data["products"]:
                    squares[place][rows, columns] = data["squares"][model]
                    squares[place][columns, rows] = data["squares"][model]
                    products[place] = data["products"][model]
            events = int(data["events"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"a learnt state cannot be read: {error!r}; written by another version?") from error
        if not (np.isfinite(squares).all() and np.isfinite(products).all()):
            raise ContractError("a learnt state holds a sum that is not finite")
        if any(squares[place, i, i] < 0.0 for place in range(len(models)) for i in range(d)):
            raise ContractError("a learnt state holds a sum of squares below 0")
        return _frozen(tuple(models), squares, products, events)

    def inherited(self, data: Mapping[str, Any], model: str, heir: Heir) -> Mapping[str, Any]:
        return part(data, ("squares", "products"), model, heir)


def aligned_linear(policy: KeepsLinear, state: LinearSums, models: Sequence[str]) -> LinearSums:
    """The same sums in the order of `models`."""
    return state if state.models == tuple(models) else policy.load(policy.dump(state), models)


def check_features(policy: str, features: int) -> None:
    if not (isinstance(features, int) and not isinstance(features, bool) and 1 <= features <= MOST_FEATURES):
        raise ConfigError(
            f"policy {policy}: features must be a whole number from 1 to {MOST_FEATURES}, not {features!r}"
        )


def mean_rewards(coefficients: F64, features: Sequence[float]) -> F64:
    """`[models]`: what the regression expects, 0 to 1."""
    x = np.array([*features, 1.0])
    found: F64 = np.clip(coefficients @ x + CENTRE, 0.0, 1.0)
    return found


def _frozen(models: tuple[str, ...], squares: F64, products: F64, events: int) -> LinearSums:
    squares.flags.writeable = products.flags.writeable = False
    return LinearSums(models=models, squares=squares, products=products, events=events)


def root(value: float) -> float:
    """Of a number that rounding may have put below 0."""
    return math.sqrt(max(0.0, value))
