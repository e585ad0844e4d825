"""A freeze around a policy: a model whose answers are certainly worse than the baseline's is asked no more.

What was learnt of each model's mean loss is a part of the state, and so is a freeze: it is published, in force by
append time and the same in every role, as what the policy itself has learnt. `EpochTable` takes a frozen model out of
choices in the way of the kill switch, and an operator's `models enable` after the freeze lifts it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from streamserve.core.anytime import RunningMean
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.around import Around
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.pooling import decided_by_features, features_read, pooled
from streamserve.core.selection.sums import usable_losses
from streamserve.core.selection.weights import names_model
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError, ContractError

STATE_VERSION = 1


@unchanging()
class FreezeRules:
    """When a model is frozen. Raises ConfigError on impossible parameters."""

    baseline: str
    """A model of the route, by id or name; it is never frozen."""
    confidence: float = 0.99
    """That no model is frozen in a stretch whose answers there were no worse than the baseline's on the average."""
    stretch_outcomes: int = 10_000
    """After so many judged requests the comparison begins anew, so that an old record does not hide a new fault."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1.0:
            raise ConfigError(f"freeze: confidence must be from 0.5 to below 1, not {self.confidence!r}")
        if self.stretch_outcomes < 100:
            raise ConfigError(f"freeze: stretch_outcomes must be at least 100, not {self.stretch_outcomes!r}")


@unchanging()
class Frozen:
    """Why and since when a model is frozen."""

    since_ms: int
    """Append time of the feedback that was the last straw."""
    loss_above: float
    """Its mean loss was above this, ..."""
    baseline_below: float
    """... and the baseline's below this."""


@unchanging()
class FreezingState:
    """What a policy has learnt, how much each model's answers cost, and who is frozen; immutable."""

    policy: Any
    models: tuple[str, ...]
    seen: tuple[RunningMean, ...]
    events: int = 0
    """Judged requests of this stretch."""
    frozen: Mapping[str, Frozen] = field(default_factory=dict)
    """By model id. A model that an operator has switched on since is asked again, and stays here until it is frozen
    again."""


@unchanging()
class Freezing(Around):
    """A policy some of whose models may be frozen. Its name and its choices are the policy's own.

    A model is frozen when the lower bound of its mean loss is above the upper bound of the baseline's. The bounds hold
    at any time (`core.anytime`), each with probability `1 - (1 - confidence) / models`, so that all do together with
    `confidence`. Frozen or not, what is compared next begins with nothing. Raises ConfigError for an unknown baseline.
    """

    rules: FreezeRules

    def initial(self, models: Sequence[str]) -> FreezingState:
        self._baseline(models)
        nothing = (RunningMean(),) * len(models)
        return FreezingState(policy=self.policy.initial(models), models=tuple(models), seen=nothing)

    def distribution(self, state: FreezingState, models: Sequence[str]) -> Distribution:
        return self.policy.distribution(state.policy, models)

    @property
    def features(self) -> int:
        return features_read(self.policy)

    def distribution_at(self, state: FreezingState, models: Sequence[str], features: Sequence[float]) -> Distribution:
        return decided_by_features(self.policy, state.policy, models, features)

    def pooled(self, states: Sequence[FreezingState], strength: float) -> FreezingState:
        """Who is frozen is so for all contexts together."""
        return replace(states[0], policy=pooled(self.policy, [state.policy for state in states], strength))

    def frozen(self, state: FreezingState) -> Mapping[str, Frozen]:
        return state.frozen

    def learn(self, state: FreezingState, outcome: OutcomeRecord) -> FreezingState:
        learnt = self.policy.learn(state.policy, outcome)
        losses = usable_losses(outcome.losses, state.models)
        if losses:
            return self._compared(replace(state, policy=learnt), losses, outcome.feedback_ms)
        return state if learnt is state.policy else replace(state, policy=learnt)

    def _compared(self, state: FreezingState, losses: Mapping[str, float], feedback_ms: int) -> FreezingState:
        seen = [
            mean.seen(losses[model]) if model in losses else mean
            for model, mean in zip(state.models, state.seen, strict=True)
        ]
        baseline = self._baseline(state.models)
        error = (1.0 - self.rules.confidence) / len(state.models)
        most = seen[baseline].above(error)
        frozen = dict(state.frozen)
        for bit, model in enumerate(state.models):
            least = seen[bit].below(error)
            if bit != baseline and least > most:
                frozen[model] = Frozen(since_ms=feedback_ms, loss_above=least, baseline_below=most)
                seen[bit] = RunningMean()
        events = state.events + 1
        if events >= self.rules.stretch_outcomes:
            events, seen = 0, [RunningMean()] * len(seen)
        return replace(state, seen=tuple(seen), events=events, frozen=frozen)

    def _baseline(self, models: Sequence[str]) -> int:
        for bit, model in enumerate(models):
            if names_model(self.rules.baseline, model):
                return bit
        raise ConfigError(f"freeze: the baseline {self.rules.baseline} is no model of the route; it has {list(models)}")

    def dump(self, state: FreezingState) -> Mapping[str, Any]:
        own = {} if state.policy is None else self.policy.dump(state.policy)
        means = {
            model: [mean.n, mean.total, mean.variation] for model, mean in zip(state.models, state.seen, strict=True)
        }
        frozen = {
            model: [one.since_ms, one.loss_above, one.baseline_below] for model, one in sorted(state.frozen.items())
        }
        return {**own, "freeze": {"v": STATE_VERSION, "seen": means, "events": state.events, "frozen": frozen}}

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> FreezingState:
        """A state that the policy alone has written begins the comparison anew. Raises ContractError."""
        initial = self.initial(models)
        own = {key: value for key, value in data.items() if key != "freeze"}
        policy = None if initial.policy is None else self.policy.load(own, models)
        found = data.get("freeze")
        if found is None:
            return replace(initial, policy=policy)
        try:
            if found["v"] != STATE_VERSION:
                raise ContractError(f"a state of a freeze has version {found['v']!r}, read is {STATE_VERSION}")
            seen = {model: _mean_of(*numbers) for model, numbers in found["seen"].items()}
            frozen = {model: _frozen_of(*one) for model, one in found["frozen"].items() if model in models}
            events = int(found["events"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"a state of a freeze cannot be read: {error!r}") from error
        kept = tuple(seen.get(model, RunningMean()) for model in models)
        return FreezingState(policy=policy, models=tuple(models), seen=kept, events=events, frozen=frozen)


def _mean_of(n: int, total: float, variation: float) -> RunningMean:
    mean = RunningMean(n=int(n), total=float(total), variation=float(variation))
    if mean.n < 0 or not (0.0 <= mean.total <= mean.n * (1.0 + 1e-9) and math.isfinite(mean.variation)):
        raise ContractError(f"a state of a freeze cannot hold {mean}")
    return mean


def _frozen_of(since_ms: int, loss_above: float, baseline_below: float) -> Frozen:
    return Frozen(since_ms=int(since_ms), loss_above=float(loss_above), baseline_below=float(baseline_below))
