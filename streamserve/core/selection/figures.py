"""What a learnt state says, in figures for people and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.selection.base import Distribution, Policy
from streamserve.core.selection.watched import tally_of
from streamserve.core.values import unchanging


@unchanging()
class StateFigures:
    """Of one state by itself: not drawn towards those above it, and with no model switched off or frozen."""

    shares: Mapping[str, float]
    """Model id -> the part of requests that it is given."""
    weights: Mapping[str, float]
    """Model id -> how much its answer counts; for policies that ask one model, its share."""
    entropy: float
    """Of the weights, in nats: 0 where one has all, log(models) where all are equal."""
    outcomes: int = 0
    """That have judged any of its models, ever."""
    losses: Mapping[str, float]
    """Model id -> decayed mean loss of its judged answers; those with any."""
    effective: Mapping[str, float]
    """Model id -> how many answers of equal weight that mean is as good as."""
    regret: float | None = None
    """Loss over the best single model in hindsight, summed over `full` outcomes; None where there were none."""
    full: int = 0
    """Labels that judged every model."""


def figures_of(policy: Policy, state: Any, models: Sequence[str]) -> StateFigures:
    """`state`: as `policy` has loaded it."""
    distribution = policy.distribution(state, models)
    tally = tally_of(state)
    judged = {} if tally is None else dict(zip(tally.models, tally.judged, strict=True))
    seen = {model: one for model, one in judged.items() if one.weight > 0.0}
    weights = distribution.weights.tolist()
    return StateFigures(
        shares=dict(zip(models, shares_of(distribution, len(models)), strict=True)),
        weights=dict(zip(models, weights, strict=True)),
        entropy=entropy_of(weights),
        outcomes=0 if tally is None else tally.outcomes,
        losses={model: one.mean_loss for model, one in seen.items()},
        effective={model: one.effective for model, one in seen.items()},
        regret=None if tally is None or not tally.full else tally.regret,
        full=0 if tally is None else tally.full,
    )


def shares_of(distribution: Distribution, models: int) -> list[float]:
    """`[models]`: the part of requests that each is given; above 1 together where several are asked."""
    shares = [0] * models
    for mask, probability in zip(distribution.masks.tolist(), distribution.probabilities.tolist(), strict=True):
        for bit in range(models):
            if mask >> bit & 1:
                shares[bit] += probability
    return [share / PROBABILITY_ONE for share in shares]


def entropy_of(weights: Sequence[float]) -> float:
    """`-sum(w log w)`, in nats. Of weights below 0 (a policy may take away) their sizes count."""
    sizes = [abs(weight) for weight in weights]
    total = math.fsum(sizes)
    shares = [size / total for size in sizes if size > 0.0]
    return max(0.0, -math.fsum(share * math.log(share) for share in shares))
