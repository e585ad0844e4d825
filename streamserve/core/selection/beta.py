"""How likely each of several Beta variables is the largest: Thompson's probabilities, by quadrature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamserve.core.messages import F64

#: Cells of each variable's own grid, and how far it reaches from the mean.
_CELLS = 256
_DEVIATIONS = 10.0


def chances_of_being_largest(a: Sequence[float], b: Sequence[float]) -> F64:
    """`P(X_i > X_j for all j != i)` for independent `X_i ~ Beta(a_i, b_i)`, each a and b >= 1. `[n]`, summing to 1.

    Midpoint rule on a grid of its own for each variable (10 deviations around its mean), so narrow and wide ones get
    the same care; another one's distribution function is read off by linear interpolation. Within 1e-3 of the integral
    (tested against scipy's), cost n x n x 256. No random number: the same on every machine, but for the last bits of
    `log` and `exp`, which the rounding to 2**-32 swallows.
    """
    shape_a, shape_b = np.asarray(a, np.float64)[:, None], np.asarray(b, np.float64)[:, None]
    n = len(shape_a)
    total = shape_a + shape_b
    mean = shape_a / total
    deviation = np.sqrt(mean * (1.0 - mean) / (total + 1.0))
    low = np.maximum(mean - _DEVIATIONS * deviation, 0.0)
    high = np.minimum(mean + _DEVIATIONS * deviation, 1.0)
    edges = low + (high - low) * np.linspace(0.0, 1.0, _CELLS + 1)
    middles = (edges[:, 1:] + edges[:, :-1]) / 2.0
    logs = (shape_a - 1.0) * np.log(middles) + (shape_b - 1.0) * np.log1p(-middles)
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    below = np.concatenate([np.zeros((n, 1)), np.cumsum(density, axis=1)], axis=1)
    chances = np.empty(n)
    for i in range(n):
        others = np.ones(_CELLS)
        for j in range(n):
            if j != i:
                others *= np.interp(middles[i], edges[j], below[j], left=0.0, right=1.0)
        chances[i] = float((density[i] * others).sum())
    result: F64 = chances / chances.sum()
    return result
