"""A distribution without some of the models, its probabilities as exact as before."""

from __future__ import annotations

import numpy as np

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.sums import fixed_point


def masked(found: Distribution, allowed: int) -> Distribution:
    """Choices without the models that `allowed` (bits, at least one) leaves out.

    A choice of several goes on without them. Where nobody of a choice is left, its probability goes to the others in
    proportion; where that leaves none, each allowed model is drawn alike.
    """
    kept: dict[int, int] = {}
    for mask, probability in zip(found.masks.tolist(), found.probabilities.tolist(), strict=True):
        kept[mask & allowed] = kept.get(mask & allowed, 0) + probability
    lost = kept.pop(0, 0)
    if not kept:
        kept = {1 << bit: 1 for bit in range(allowed.bit_length()) if allowed >> bit & 1}
        lost = PROBABILITY_ONE
    probabilities = np.array(list(kept.values()), np.int64)
    if lost:
        probabilities = fixed_point((probabilities / probabilities.sum()).tolist(), at_least=1)
    return Distribution(masks=np.array(list(kept), np.uint64), probabilities=probabilities, weights=found.weights)
