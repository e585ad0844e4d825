"""The kernel of nearest neighbours: the k smallest distances of a row, the first of equal ones, and what they say."""

from __future__ import annotations

import numpy as np
from numba import njit, types


@njit(
    types.void(
        types.Array(types.float64, 2, "C", readonly=True),
        types.Array(types.float64, 2, "C", readonly=True),
        types.int64,
        types.float64[:, ::1],
    ),
    nogil=True,
    cache=True,
)
def add_nearest(away, answers, count, sums):
    """Add to `sums [n, K]` the `answers [known, K]` of the `count` nearest of each row of `away [n, known]`."""
    nearest = np.empty(count, dtype=np.int64)
    distance = np.empty(count, dtype=np.float64)
    for row in range(len(away)):
        held = 0
        for known in range(away.shape[1]):
            value = away[row, known]
            if held == count and not value < distance[held - 1]:
                continue
            at = held if held < count else held - 1
            while at > 0 and value < distance[at - 1]:
                distance[at] = distance[at - 1]
                nearest[at] = nearest[at - 1]
                at -= 1
            distance[at] = value
            nearest[at] = known
            held = min(held + 1, count)
        for i in range(held):
            for head in range(answers.shape[1]):
                sums[row, head] += answers[nearest[i], head]
