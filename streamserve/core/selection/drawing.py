"""Distributions that the policies share: all models for every request, or one, drawn by its share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamserve.core.messages import F64, PROBABILITY_ONE
from streamserve.core.records import Decision
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.sums import fixed_point


def all_of(weights: Sequence[float] | F64) -> Distribution:
    """Every model, for every request; their answers count by these weights."""
    return Distribution(
        masks=np.array([(1 << len(weights)) - 1], np.uint64),
        probabilities=np.array([PROBABILITY_ONE], np.int64),
        weights=np.asarray(weights, np.float64),
    )


def one_of(shares: Sequence[float]) -> Distribution:
    """One model a request; a model without share is never asked.

    A model with any share gets one unit of 2**-32 at least: it can be drawn, and a drawn probability is never 1 beside
    others.
    """
    bits = [bit for bit, share in enumerate(shares) if share > 0.0]
    units = fixed_point([shares[bit] for bit in bits], at_least=1)
    weights = np.zeros(len(shares))
    weights[bits] = units / PROBABILITY_ONE
    return Distribution(
        masks=np.left_shift(np.uint64(1), np.asarray(bits, np.uint64)), probabilities=units, weights=weights
    )


def with_floor(shares: Sequence[float], gamma: float) -> list[float]:
    """`(1 - gamma) * share + gamma / models`, and above 0 though gamma be 0: what underflowed can be drawn again."""
    floor = gamma / len(shares)
    return [max((1.0 - gamma) * share + floor, 1e-300) for share in shares]


def drawn_probability(decision: Decision, models: Sequence[str]) -> float | None:
    """The logged probability with which each chosen model's loss was seen; None where it tells of no draw.

    It is the one logged with the decision, never one computed when the feedback comes: by then the state is another,
    and recomputing triples the regret at a delay of 100 events. It tells nothing of a decision made under another
    state than the terminal record says (`off_epoch`), or of a request that named its model itself (one model,
    probability 1). Several models at probability 1 (the route asked all of them before it was changed to this policy)
    are as good as drawn: each one's loss was certain to be seen.
    """
    probability = decision.probability
    if decision.off_epoch or not 1.0 / PROBABILITY_ONE <= probability <= 1.0:
        return None
    drawn = len(decision.chosen) == 1 and (probability < 1.0 or len(models) == 1)
    all_asked = probability == 1.0 and set(models) <= set(decision.chosen)
    return probability if drawn or all_asked else None
