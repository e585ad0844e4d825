"""Matrix products and distances over dense columns, in numpy's own operations and scikit-learn's own order.

Source: scikit-learn's `metrics/pairwise.py`, `neural_network/_multilayer_perceptron.py`, `_base.py`, `naive_bayes.py`,
`neighbors/_classification.py`, `_regression.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from streamserve.core.messages import F64, AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.kernels.neighbours import add_nearest
from streamserve.plan.operators.base import operator

#: Rows whose distances to all known rows are held at once.
_ROWS_AT_ONCE = 256


def _times(values: Any, weights: AnyArray) -> Any:
    product = values @ weights
    return product.toarray() if sparse.issparse(product) else product


@operator("distances", shape="dense", each_row_alone=False)
def distances(node: Node, inputs: Sequence[Any]) -> F64:
    """Euclidean distance to every centre: `[n, centres]`, by the expanded square."""
    values = inputs[0] if inputs[0].dtype == np.float64 else inputs[0].astype(np.float64)
    squares = values.multiply(values).sum(axis=1) if sparse.issparse(values) else np.einsum("ij,ij->i", values, values)
    found = _squared(values, squares, node)
    return np.sqrt(found, out=found)


def _squared(values: Any, squares: Any, node: Node) -> F64:
    centres: AnyArray = node.array("centres")
    found: F64 = _times(values, centres.T)
    found *= -2
    found += np.asarray(squares).reshape(-1, 1)
    found += node.array("squares")
    return np.maximum(found, 0, out=found)


def _softmax(values: F64) -> None:
    lowered = values - values.max(axis=1)[:, np.newaxis]
    np.exp(lowered, out=values)
    values /= values.sum(axis=1)[:, np.newaxis]


#: What a layer does to its sums, in place.
ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "identity": lambda values: None,
    "exp": lambda values: np.exp(values, out=values),
    "logistic": lambda values: expit(values, out=values),
    "tanh": lambda values: np.tanh(values, out=values),
    "relu": lambda values: np.maximum(values, 0, out=values),
    "softmax": _softmax,
}


@operator("layer", shape="dense", each_row_alone=False)
def layer(node: Node, inputs: Sequence[Any]) -> AnyArray:
    """Times the weights, plus the intercepts, through an activation: one layer of a network."""
    values: F64 = _times(inputs[0], node.array("weights"))
    values += node.array("intercept")
    with np.errstate(all="ignore"):
        ACTIVATIONS[node.param("activation")](values)
    return values


@operator("gaussian", shape="scores", each_row_alone=False)
def gaussian(node: Node, inputs: Sequence[Any]) -> F64:
    """Logarithm of each class's share times its normal density: `[n, classes]`."""
    values = inputs[0]
    means, variances, shares, heights = (node.array(name) for name in ("means", "variances", "shares", "heights"))
    found = []
    with np.errstate(all="ignore"):
        for i in range(len(means)):
            found.append(shares[i] + (heights[i] - 0.5 * np.sum(((values - means[i]) ** 2) / variances[i], axis=1)))
    return np.stack(found).T


@operator("exponentials", shape="answers", each_row_alone=False)
def exponentials(_: Node, inputs: Sequence[Any]) -> F64:
    """Probabilities of logarithms that are known up to a summand."""
    scores: F64 = inputs[0]
    highest = np.max(scores, axis=1, keepdims=True)
    is_highest = scores == highest
    lower = np.where(is_highest, -np.inf, scores)
    many = np.sum(is_highest.astype(np.float64), axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        rest = np.sum(np.exp(lower - np.where(np.isfinite(highest), highest, 0)), axis=1, keepdims=True)
        rest = np.where(rest == 0, rest, rest / many)
        found: F64 = np.exp(scores - (np.log1p(rest) + np.log(many) + highest))
    return found


@operator("neighbours", shape="scores", each_row_alone=False)
def neighbours(node: Node, inputs: Sequence[Any]) -> F64:
    """What the k nearest known rows say, the first of equally near ones: the mean of their values, `[n, values]`."""
    table = inputs[0] if inputs[0].dtype == np.float64 else inputs[0].astype(np.float64)
    answers, count = node.array("answers"), int(node.param("count"))
    found: F64 = np.zeros((len(table), answers.shape[1]))
    for start in range(0, len(table), _ROWS_AT_ONCE):
        part = table[start : start + _ROWS_AT_ONCE]
        away = _squared(part, np.einsum("ij,ij->i", part, part), node)
        add_nearest(away, answers, count, found[start : start + len(part)])
    found /= count
    return found
