"""What the policies that estimate each model's mean reward share: decayed counts and sums of rewards (1 - loss).

Every judged answer counts, whether its model was drawn or asked with all others: a mean needs no propensity, as long as
who is asked does not depend on what the answer will be worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.inheriting import Heir, part
from streamserve.core.selection.sums import STATE_VERSION, check_version, decay_of, usable_losses
from streamserve.core.values import unchanging
from streamserve.errors import ContractError

#: Fewer judged answers than this are as good as none: everything has been forgotten.
UNTRIED = 1e-9
#: Judged answers that a new model is taken to have had, with the mean reward of the others.
_NEWCOMER = 2.0


@unchanging()
class RewardSums:
    """Decayed counts of judged answers and sums of their rewards, one of each a model; immutable."""

    models: tuple[str, ...]
    counts: tuple[float, ...]
    """>= 0, finite."""
    rewards: tuple[float, ...]
    """Of each model from 0 to its count."""
    events: int = 0
    """Outcomes learnt from, ever."""


def initial_rewards(models: Sequence[str]) -> RewardSums:
    nothing = (0.0,) * len(models)
    return RewardSums(models=tuple(models), counts=nothing, rewards=nothing)


def learn_rewards(state: RewardSums, outcome: OutcomeRecord, half_life_events: float | None) -> RewardSums:
    """Every event of the state makes what all models had count a little less; those judged get theirs added."""
    losses = usable_losses(outcome.losses, state.models)
    if not losses:
        return state
    decay = decay_of(half_life_events)
    counts = tuple(
        decay * count + (1.0 if model in losses else 0.0)
        for model, count in zip(state.models, state.counts, strict=True)
    )
    rewards = tuple(
        decay * reward + (1.0 - losses[model] if model in losses else 0.0)
        for model, reward in zip(state.models, state.rewards, strict=True)
    )
    return RewardSums(models=state.models, counts=counts, rewards=rewards, events=state.events + 1)


def means(state: RewardSums, prior: float) -> list[float]:
    """Mean rewards, each drawn towards that of all models as by `prior` answers: a model seldom asked is near it."""
    total = math.fsum(state.counts)
    pooled = math.fsum(state.rewards) / total if total > 0.0 else 0.5
    return [
        (reward + prior * pooled) / (count + prior) if count + prior > UNTRIED else pooled
        for count, reward in zip(state.counts, state.rewards, strict=True)
    ]


def dump_rewards(state: RewardSums) -> Mapping[str, Any]:
    return {
        "v": STATE_VERSION,
        "counts": dict(zip(state.models, state.counts, strict=True)),
        "rewards": dict(zip(state.models, state.rewards, strict=True)),
        "events": state.events,
    }


def load_rewards(data: Mapping[str, Any], models: Sequence[str]) -> RewardSums:
    """Sums for `models`: one that `data` lacks enters with the mean reward of the others and little weight.

    Raises ContractError where `data` is not what `dump_rewards` writes.
    """
    check_version(data)
    try:
        counts = {str(model): float(count) for model, count in data["counts"].items()}
        rewards = {str(model): float(data["rewards"][model]) for model in counts}
        events = int(data["events"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ContractError(f"a learnt state cannot be read: {error!r}; written by another version?") from error
    sound = all(
        math.isfinite(count) and 0.0 <= rewards[model] <= count * (1.0 + 1e-9) for model, count in counts.items()
    )
    if not sound:
        raise ContractError(f"a learnt state holds impossible sums: counts {counts}, rewards {rewards}")
    kept = [model for model in models if model in counts]
    total = math.fsum(counts[model] for model in kept)
    mean = math.fsum(rewards[model] for model in kept) / total if total > 0.0 else 0.5
    newcomer = _NEWCOMER if total > 0.0 else 0.0
    return RewardSums(
        models=tuple(models),
        counts=tuple(counts.get(model, newcomer) for model in models),
        rewards=tuple(rewards.get(model, newcomer * mean) for model in models),
        events=events,
    )


def aligned_rewards(state: RewardSums, models: Sequence[str]) -> RewardSums:
    """The same sums in the order of `models`."""
    return state if state.models == tuple(models) else load_rewards(dump_rewards(state), models)


def pooled_rewards(states: Sequence[RewardSums], strength: float) -> RewardSums:
    """The last of these sums, with what each level before it has seen of a model on the average counted `strength`
    times more; where that level has judged the model less often, only so often."""
    pool = states[0]
    for state in states[1:]:
        own = aligned_rewards(state, pool.models)
        shares = [min(1.0, strength / count) if count > UNTRIED else 0.0 for count in pool.counts]
        pool = RewardSums(
            models=pool.models,
            counts=tuple(a + share * b for a, b, share in zip(own.counts, pool.counts, shares, strict=True)),
            rewards=tuple(a + share * b for a, b, share in zip(own.rewards, pool.rewards, shares, strict=True)),
            events=own.events,
        )
    return pool


class KeepsRewards:
    """What every policy does alike whose state is `RewardSums`: part of the protocol `Policy`."""

    __slots__ = ()

    def initial(self, models: Sequence[str]) -> RewardSums:
        return initial_rewards(models)

    def pooled(self, states: Sequence[RewardSums], strength: float) -> RewardSums:
        return pooled_rewards(states, strength)

    def dump(self, state: RewardSums) -> Mapping[str, Any]:
        return dump_rewards(state)

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> RewardSums:
        return load_rewards(data, models)

    def inherited(self, data: Mapping[str, Any], model: str, heir: Heir) -> Mapping[str, Any]:
        return part(data, ("counts", "rewards"), model, heir)
