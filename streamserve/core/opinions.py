"""Which first answers are not sure enough, and get a second opinion while there is time for one (a cascade)."""

from __future__ import annotations

import numpy as np

from streamserve.core.epochs import EpochTable
from streamserve.core.messages import F64, I64, Answers, Flags
from streamserve.core.reasons import PRESENT
from streamserve.core.routes import Route


def evidence_of(probabilities: F64, row_starts: I64) -> F64:
    """`[n]`: how sure a model is of its answers: the mean, over a request's rows, of its highest probability; NaN where
    it has no rows. `probabilities`: `[rows, classes]`."""
    counts = np.diff(row_starts)
    if not len(probabilities):
        return np.full(len(counts), np.nan)
    highest: F64 = probabilities.max(axis=1).astype(np.float64)
    if len(highest) == len(counts) and counts.min() == 1:
        return highest
    starts = np.minimum(row_starts[:-1], len(highest) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: F64 = np.where(counts > 0, np.add.reduceat(highest, starts) / counts, np.nan)
    return found


def unsure(answers: Answers, route: Route, index: int, epochs: EpochTable) -> Flags:
    """`[n]`: which answers of one model, asked alone, are less sure than the route's threshold.

    By the learnt state that each request was decided by, so another process that hears the same answer says the same.
    An answer without probabilities, of a model that was asked with others, or of the second one where the request was
    given to that alone, is never unsure.
    """
    confident, bit = route.confident, route.models.index(answers.model)
    if answers.model == route.second:
        return np.zeros(len(answers), np.bool_)
    alone = (answers.choice.chosen == np.uint64(1 << bit)) & (answers.missing == PRESENT)
    if confident is None or answers.probabilities is None or not alone.any():
        return np.zeros(len(answers), np.bool_)
    evidence = evidence_of(answers.probabilities, answers.row_starts)
    numbers, decided = epochs.deciding(index, answers.choice.epoch)
    confidence = np.full(len(answers), np.nan)
    for number, one in enumerate(decided):
        mine = numbers == number
        confidence[mine] = confident.confidence(one.value, evidence[mine])
    found: Flags = alone & (confidence < route.confidence_threshold)
    return found
