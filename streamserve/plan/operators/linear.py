"""Linear models: scores, and what answers are made of them.

Source: scikit-learn's `linear_model/_base.py`, `_logistic.py`, `_stochastic_gradient.py`; `utils/extmath.py` for the
softmax. On a CSR matrix every score is the sum of value times weight in ascending order of features, one product and
one addition at a time, as scipy's CSR product has it; on an array it is whatever BLAS makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from streamserve.core.messages import F64, AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.operators.base import operator


@operator("linear", shape="scores", each_row_alone=False)
def linear(node: Node, inputs: Sequence[Any]) -> F64:
    """Times the weights, plus the intercept: `[n, K]`, `[n]` for one head of a classifier."""
    weights = node.array("coef")
    product = inputs[0] @ weights.T if weights.ndim == 2 else inputs[0] @ weights
    scores: F64 = (product.toarray() if sparse.issparse(product) else np.asarray(product)) + node.array("intercept")
    return scores.reshape(-1) if node.param("ravel") and scores.ndim == 2 and scores.shape[1] == 1 else scores


@operator("dot", shape="scores")
def dot(node: Node, inputs: Sequence[Any]) -> AnyArray:
    """A CSR block times its own weights `[features, K]`, on top of the scores so far; all in the weights' type."""
    matrix, weights = inputs[0], node.array("weights")
    scores: AnyArray = zero_scores(matrix.shape[0], weights) if len(inputs) == 1 else np.array(inputs[1])
    add_dot(matrix, weights, scores)
    return scores


def zero_scores(rows: int, weights: AnyArray) -> AnyArray:
    """`[n, K]` in the type of the weights `[features, K]`: float32 where they are."""
    return np.zeros((rows, weights.shape[1]), dtype=np.float32 if weights.dtype == np.float32 else np.float64)


def add_dot(matrix: Any, weights: AnyArray, scores: AnyArray) -> None:
    """Add the products to the scores, one after the other, in order."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    data = matrix.data.astype(np.float32) if weights.dtype == np.float32 else matrix.data
    np.add.at(scores, rows, data[:, None] * weights[matrix.indices])


@operator("intercept", shape="scores")
def intercept(node: Node, inputs: Sequence[Any]) -> F64:
    """Plus the intercept: `[n, K]`, `[n]` where `ravel`."""
    scores: F64 = inputs[0] + node.array("intercept")
    return scores.reshape(-1) if node.param("ravel") and scores.shape[1] == 1 else scores


def classes_of(node: Node) -> AnyArray:
    """The classes that a node answers with."""
    kept: AnyArray | None = node.constants["classes"].array if "classes" in node.constants else None
    if kept is not None:
        return kept
    words = list(node.param("classes"))
    return np.array(words, dtype=object if node.param("as_objects") else None)


@operator("choose", shape="answers")
def choose(node: Node, inputs: Sequence[Any]) -> AnyArray:
    """The class of the highest score, the first of equals; of one score, the second class where it is above a bound."""
    scores = inputs[0]
    best = (scores > node.params.get("above", 0)).astype(np.intp) if scores.ndim == 1 else np.argmax(scores, axis=1)
    labels: AnyArray = classes_of(node)[best]
    return labels


@operator("logistic", shape="answers", each_row_alone=False)
def logistic(node: Node, inputs: Sequence[Any]) -> F64:
    """Probabilities of one logistic function a class, normalised where there are more than two."""
    scores = inputs[0]
    if scores.ndim == 1:
        pair: F64 = np.empty((len(scores), 2))
        chances = expit(2 * scores if node.params.get("doubled") else scores)
        pair[:, 1] = chances
        np.subtract(1, chances, out=pair[:, 0])
        return pair
    return _normalised(expit(scores))


def _normalised(chances: F64) -> F64:
    """Divided by each row's sum; a row of zeros becomes uniform."""
    total = chances.sum(axis=1)
    nothing = total == 0
    if np.any(nothing):
        chances[nothing, :] = 1
        total[nothing] = chances.shape[1]
    chances /= total[:, None]
    return chances


@operator("both", shape="answers")
def both(_: Node, inputs: Sequence[Any]) -> AnyArray:
    """Probabilities of two classes of the second one's, `[n]`."""
    pair: AnyArray = np.vstack([1 - inputs[0], inputs[0]]).T
    return pair


@operator("softmax", shape="answers", each_row_alone=False)
def softmax(_: Node, inputs: Sequence[Any]) -> F64:
    """Probabilities in proportion to the exponentials, the largest score taken off first."""
    scores = np.array(inputs[0])
    scores -= np.max(scores, axis=1).reshape((-1, 1))
    np.exp(scores, out=scores)
    scores /= np.sum(scores, axis=1).reshape((-1, 1))
    return scores


@operator("huber", shape="answers", each_row_alone=False)
def huber(_: Node, inputs: Sequence[Any]) -> F64:
    """Probabilities of the modified Huber loss: scores clipped to -1 ... 1, brought to 0 ... 1, normalised."""
    scores = inputs[0]
    chances: F64 = np.clip(scores, -1, 1)
    chances += 1.0
    chances /= 2.0
    if scores.ndim == 1:
        pair = np.ones((len(scores), 2))
        pair[:, 1] = chances
        pair[:, 0] -= chances
        return pair
    return _normalised(chances)
