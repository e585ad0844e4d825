"""Answers made of the answers of several models.

Source: scikit-learn's `ensemble/_voting.py`, `_stacking.py`, `calibration.py`, `isotonic.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from streamserve.core.messages import F64, AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.operators.base import operator, refuse
from streamserve.plan.operators.linear import classes_of

#: Probabilities that are above 1 by no more than this are 1.
_BARELY = 1e-5


@operator("average", shape="answers")
def average(node: Node, inputs: Sequence[Any]) -> AnyArray:
    """The weighted mean of several answers of one shape."""
    weights = node.param("weights") or None
    if not len(inputs[0]):
        return np.zeros(inputs[0].shape)
    if inputs[0].ndim == 1:
        found: AnyArray = np.average(np.asarray(inputs).T, axis=1, weights=weights)
    else:
        found = np.average(np.asarray(inputs), axis=0, weights=weights)
    return found


@operator("votes", shape="scores")
def votes(node: Node, inputs: Sequence[Any]) -> F64:
    """Weights of the models that say each class, `[n, classes]`; models say the class's number."""
    weights = node.param("weights") or (1.0,) * len(inputs)
    found: F64 = np.zeros((len(inputs[0]), int(node.param("count"))))
    rows = np.arange(len(found))
    for said, weight in zip(inputs, weights, strict=True):
        found[rows, said] += weight
    return found


@operator("relabel", shape="answers")
def relabel(node: Node, inputs: Sequence[Any]) -> AnyArray:
    """The class of each number."""
    labels: AnyArray = classes_of(node)[inputs[0]]
    return labels


@operator("as_column", shape="dense")
def as_column(_: Node, inputs: Sequence[Any]) -> AnyArray:
    """`[n, 1]` of `[n]`; a matrix stays."""
    values: AnyArray = inputs[0]
    return values.reshape(-1, 1) if values.ndim == 1 else values


@operator("calibrated", shape="answers")
def calibrated(node: Node, inputs: Sequence[Any]) -> F64:
    """Probabilities of scores, by a sigmoid or a monotone curve for each class."""
    scores: AnyArray = inputs[0]
    count = int(node.param("count"))
    if scores.ndim == 2 and count == 2:
        scores = scores[:, 1]
    columns = scores.T if scores.ndim == 2 else scores[None, :]
    found: F64 = np.zeros((len(scores), count))
    for i, (place, column) in enumerate(zip(node.array("places").tolist(), columns, strict=True)):
        found[:, place + (count == 2)] = _curve(node, i, column)
    if count == 2:
        found[:, 0] = 1.0 - found[:, 1]
    else:
        total = np.sum(found, axis=1)[:, np.newaxis]
        found = np.divide(found, total, out=np.full_like(found, 1 / count), where=total != 0)
    found[(found > 1.0) & (found <= 1.0 + _BARELY)] = 1.0
    return found


def _curve(node: Node, i: int, scores: F64) -> AnyArray:
    if node.param("method") == "sigmoid":
        slope, offset = node.array("lines")[i]
        chances: AnyArray = expit(-(slope * scores + offset))
        return chances
    refuse(~np.isfinite(scores), "a score is not finite, and its calibration needs it")
    starts = node.array("starts")
    known = slice(int(starts[i]), int(starts[i + 1]))
    curve: AnyArray = np.interp(scores, node.array("scores")[known], node.array("chances")[known])
    return curve


@operator("mean", shape="answers")
def mean(_: Node, inputs: Sequence[Any]) -> F64:
    """The sum of several answers in order, divided by their number."""
    found: F64 = np.zeros(inputs[0].shape)
    for one in inputs:
        found += one
    found /= len(inputs)
    return found
