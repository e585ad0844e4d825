"""Operators of several models that run as one: scores side by side, and each model's part of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from streamserve.core.messages import F64
from streamserve.plan.graph import Node
from streamserve.plan.operators.base import operator
from streamserve.plan.operators.chains import chain, members_of


@operator("heads", shape="scores")
def heads(node: Node, inputs: Sequence[Any]) -> Any:
    """Some columns of the scores of several models: `[n, count]`, `[n]` of one where `ravel`."""
    first, count = int(node.param("first")), int(node.param("count"))
    scores = inputs[0]
    return scores[:, first] if node.param("ravel") and count == 1 else scores[:, first : first + count]


@operator("logistics", shape="dense", each_row_alone=False)
def logistics(_: Node, inputs: Sequence[Any]) -> F64:
    """Probabilities of K models of two classes: `[n, K, 2]`."""
    chances = expit(inputs[0])
    pairs: F64 = np.empty((*chances.shape, 2))
    pairs[..., 1] = chances
    np.subtract(1, chances, out=pairs[..., 0])
    return pairs


@operator("pair", shape="answers")
def pair(node: Node, inputs: Sequence[Any]) -> Any:
    """One model's probabilities of the K models': `[n, 2]`."""
    return inputs[0][:, int(node.param("first"))]


@operator("chained_heads", shape="scores", each_row_alone=False)
def chained_heads(node: Node, inputs: Sequence[Any]) -> F64:
    """Each model's own chain over the columns, then its own weights and intercept: `[n, K]`."""
    weights = node.array("weights")
    scores: F64 = np.empty((len(inputs[0]), len(weights)))
    for head, member in enumerate(members_of(node)):
        scores[:, head] = chain(member, inputs) @ weights[head]
    scores += node.array("intercept")
    return scores
