"""Text stages: what rules make of a chain of text operators, done by one call of the text kernel."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.kernels.stage import TextStage
from streamserve.plan.kernels.texts import Texts
from streamserve.plan.operators.base import operator
from streamserve.plan.operators.linear import zero_scores

_lock = threading.Lock()
_stages: weakref.WeakValueDictionary[str, TextStage] = weakref.WeakValueDictionary()


def stage_of(node: Node) -> TextStage:
    """The node's stage: one for all equal nodes of a process, as long as somebody holds it."""
    key = node.own_key()
    with _lock:
        stage = _stages.get(key)
        if stage is None:
            stage = _stages[key] = TextStage(node)
        return stage


@operator("features", shape="sparse")
def features(node: Node, inputs: Sequence[Any]) -> Any:
    """Segment, n-grams, look-up, weights and norm in one pass: CSR `[n, features]`."""
    return stage_of(node).matrix(inputs[0])


@operator("score", shape="scores")
def score(node: Node, inputs: Sequence[Any]) -> AnyArray:
    """The same, and the dot product with K heads on top of the scores so far: `[n, K]`, no matrix made."""
    texts: Texts = inputs[0]
    scores = np.array(inputs[1]) if len(inputs) > 1 else zero_scores(len(texts), node.array("weights"))
    stage_of(node).add_scores(texts, scores)
    return scores
