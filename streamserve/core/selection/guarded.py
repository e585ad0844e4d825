"""Guard rails: limits that hold for what a policy may choose, whatever it has learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.around import Around
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import one_of
from streamserve.core.selection.pooling import pooled
from streamserve.core.selection.sums import fixed_point
from streamserve.core.selection.weights import names_model
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError

#: What a share of 0 counts as when shares are scaled, so that it can grow where the limits demand it.
_SLIVER = 1e-12
_HALVINGS = 200
_ROUNDING = 1e-9


@unchanging()
class ShareLimits:
    """Of a model's share: of requests where the policy asks one model each, else of the weight in the combination."""

    least_share: float = 0.0
    """Of every model."""
    most_share: float = 1.0
    """Of every model."""
    most_explored: float = 1.0
    """Of all models together but the one with the largest share (and the control)."""
    control: str | None = None
    """A model, by id or name, that alone answers a fixed share of all requests, to be compared with."""
    control_share: float = 0.0

    @property
    def on_shares(self) -> bool:
        """Whether anything but the control is limited."""
        return (self.least_share, self.most_share, self.most_explored) != (0.0, 1.0, 1.0)


@unchanging()
class Guarded(Around):
    """A policy within limits. Its states are the policy's own, and so is its name.

    The probabilities that it gives are exact, as any policy's: what is logged is what was drawn from, limits included.
    Shares that no limit touches keep their proportions. Raises ConfigError where the limits cannot all hold.
    """

    limits: ShareLimits

    def initial(self, models: Sequence[str]) -> Any:
        state = self.policy.initial(models)
        if state is None:
            raise ConfigError(f"a guard is for policies that learn; the shares of policy {self.name} are set by itself")
        self.distribution(state, models)
        return state

    def distribution(self, state: Any, models: Sequence[str]) -> Distribution:
        found, control = self.policy.distribution(state, models), self._control(models)
        one_each = all(int(mask) & (int(mask) - 1) == 0 for mask in found.masks)
        if one_each:
            shares = np.zeros(len(models))
            for mask, probability in zip(found.masks.tolist(), found.probabilities.tolist(), strict=True):
                shares[mask.bit_length() - 1] = probability / PROBABILITY_ONE
            return one_of(self._within(shares.tolist(), control))
        if self.limits.on_shares:
            if not _asks_all(found, models):
                raise ConfigError(f"policy {self.name} limits by itself whom it asks; a guard can only set its control")
            weights = np.asarray(self._within(found.weights.tolist(), None), np.float64)
            found = Distribution(masks=found.masks, probabilities=found.probabilities, weights=weights)
        return found if control is None else self._with_control(found, control)

    def pooled(self, states: Sequence[Any], strength: float) -> Any:
        return pooled(self.policy, states, strength)

    def learn(self, state: Any, outcome: OutcomeRecord) -> Any:
        return self.policy.learn(state, outcome)

    def dump(self, state: Any) -> Mapping[str, Any]:
        return self.policy.dump(state)

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> Any:
        return self.policy.load(data, models)

    def _control(self, models: Sequence[str]) -> int | None:
        if self.limits.control is None:
            return None
        for bit, model in enumerate(models):
            if names_model(self.limits.control, model):
                return bit
        raise ConfigError(f"guard: the control {self.limits.control} is no model of the route; it has {list(models)}")

    def _with_control(self, found: Distribution, control: int) -> Distribution:
        """The control alone for its share, and what the policy chose for the rest."""
        share = self.limits.control_share
        chances = {mask: 0.0 for mask in found.masks.tolist()}
        for mask, probability in zip(found.masks.tolist(), found.probabilities.tolist(), strict=True):
            chances[mask] += (1.0 - share) * probability / PROBABILITY_ONE
        chances[1 << control] = chances.get(1 << control, 0.0) + share
        likely = {mask: chance for mask, chance in chances.items() if chance > 0.0}
        return Distribution(
            masks=np.array(list(likely), np.uint64),
            probabilities=fixed_point(list(likely.values()), at_least=1),
            weights=found.weights,
        )

    def _within(self, shares: Sequence[float], control: int | None) -> list[float]:
        limits, n = self.limits, len(shares)
        low, high = [limits.least_share] * n, [limits.most_share] * n
        pinned = 0.0
        if control is not None:
            pinned = low[control] = high[control] = limits.control_share
        free = [bit for bit in range(n) if bit != control]
        if not free:
            return [1.0]
        leader = max(free, key=lambda bit: shares[bit])
        low[leader] = max(low[leader], 1.0 - pinned - limits.most_explored)
        if n == 1:
            low, high = [1.0], [1.0]
        if low[leader] > high[leader] + _ROUNDING or not sum(low) - _ROUNDING <= 1.0 <= sum(high) + _ROUNDING:
            raise ConfigError(
                f"guard: {limits} cannot hold for {n} models: the least shares sum to {sum(low):.6g}, the most to "
                f"{sum(high):.6g}, and the first must be at most 1, the second at least 1"
            )
        return scaled_within(shares, low, [max(a, b) for a, b in zip(low, high, strict=True)])


def scaled_within(shares: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[float]:
    """`clip(c * share, low, high)` for the one c that makes them sum to 1; `sum(low) <= 1 <= sum(high)`."""
    wanted = [max(share, _SLIVER) for share in shares]

    def at(scale: float) -> list[float]:
        return [min(max(scale * share, a), b) for share, a, b in zip(wanted, low, high, strict=True)]

    below, above = 0.0, 2.0 / _SLIVER
    for _ in range(_HALVINGS):
        middle = (below + above) / 2.0
        if math.fsum(at(middle)) < 1.0:
            below = middle
        else:
            above = middle
        if above <= math.nextafter(below, math.inf):
            break
    found = at(above)
    total = math.fsum(found)
    return [share / total for share in found]


def _asks_all(found: Distribution, models: Sequence[str]) -> bool:
    return len(found.masks) == 1 and int(found.masks[0]) == (1 << len(models)) - 1
