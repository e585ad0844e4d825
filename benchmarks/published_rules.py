"""Clipper's own selection rules, as its failure experiment used them, on a stream like that one.

Sources: Crankshaw et al., Clipper (NSDI 2017), section 5.1 and figure 8: Exp3 with eta 0.05, Exp4 with eta 0.2, 20,000
queries, the best of five models answers at random from query 5,000 to 10,000, 50 trials, cumulative mean error.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

ERRORS = (0.250, 0.357, 0.182, 0.463, 0.104)
FAILS_AT, MENDED_AT = 5_000, 10_000
#: How far the repaired model is watched.
QUERIES = 11_000
_BEST, _CLASSES = 4, 10
#: How much of what makes a query hard is common to all models, and how often wrong models say the same wrong class:
#: chosen so that the majority vote is no better than .10, as on the images of the experiment.
_SHARED, _SAME_MISTAKE = 0.5, 0.5
_ETA_3, _ETA_4 = 0.05, 0.2

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trials:
    """Answers of five models in several trials; class 0 is always the right one."""

    said: I64
    """`[trials, queries, models]`"""

    @property
    def losses(self) -> F64:
        wrong: F64 = (self.said != 0).astype(float)
        return wrong


def trials(n: int, seed: int, queries: int = QUERIES, fails: bool = True) -> Trials:
    """Answers drawn with these error rates, and difficulty shared between the models."""
    random = np.random.default_rng(seed)
    shape = (n, queries, len(ERRORS))
    hard = np.sqrt(_SHARED) * random.normal(size=(n, queries, 1)) + np.sqrt(1 - _SHARED) * random.normal(size=shape)
    wrong = hard < np.array([NormalDist().inv_cdf(error) for error in ERRORS])
    common = random.integers(1, _CLASSES, (n, queries, 1))
    mistake = np.where(random.random(shape) < _SAME_MISTAKE, common, random.integers(1, _CLASSES, shape))
    said = np.where(wrong, mistake, 0)
    if fails:
        said[:, FAILS_AT:MENDED_AT, _BEST] = random.integers(0, _CLASSES, (n, min(MENDED_AT, queries) - FAILS_AT))
    return Trials(said=said)


def majority_error(found: Trials) -> float:
    """Of the plain vote of all five; ties go to the class said first."""
    counts = (found.said[..., None] == np.arange(_CLASSES)).sum(axis=2)
    return float((counts.argmax(axis=2) != 0).mean())


def exp3(found: Trials, seed: int) -> tuple[F64, F64]:
    """Errors `[trials, queries]` and the shares of each model `[trials, models]` at the end, by the published Exp3."""
    random, losses = np.random.default_rng(seed), found.losses
    n, queries, k = losses.shape
    logs, errors = np.zeros((n, k)), np.empty((n, queries))
    rows = np.arange(n)
    for query in range(queries):
        shares = _shares(logs)
        drawn = _draw(shares, random)
        errors[:, query] = losses[rows, query, drawn]
        logs[rows, drawn] -= _ETA_3 * errors[:, query] / shares[rows, drawn]
    return errors, _shares(logs)


def exp4(found: Trials, seed: int) -> tuple[F64, F64]:
    """The same by the published Exp4: a class is drawn by the weight that votes for it, and only it is judged."""
    random = np.random.default_rng(seed)
    n, queries, k = found.said.shape
    logs, errors = np.zeros((n, k)), np.empty((n, queries))
    rows = np.arange(n)
    for query in range(queries):
        shares, said = _shares(logs), found.said[:, query]
        answer = said[rows, _draw(shares, random)]
        agree = said == answer[:, None]
        errors[:, query] = answer != 0
        chance = (shares * agree).sum(axis=1)
        logs -= _ETA_4 * agree * (errors[:, query] / chance)[:, None]
    return errors, _shares(logs)


def _shares(logs: F64) -> F64:
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: F64 = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _draw(shares: F64, random: np.random.Generator) -> I64:
    edges = np.cumsum(shares, axis=1)
    edges[:, -1] = 1.0
    drawn: I64 = (random.random((len(shares), 1)) >= edges).sum(axis=1)
    return drawn
