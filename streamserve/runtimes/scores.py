"""Turn a network's raw scores into `Outputs`: `logits`, `probabilities` or `value`."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamserve.core.messages import F64, AnyArray, Outputs
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.conversion import plain_strings

#: What a network's output can mean (`options.output`).
MEANINGS = ("logits", "probabilities", "value")


def outputs_from_scores(scores: AnyArray, meaning: str, classes: AnyArray | None, spec: ModelSpec) -> Outputs:
    """Scores `[n, classes]` (or `[n]`, `[n, 1]` for two classes) as labels and probabilities; `value`: as they are.

    Probabilities are float64; softmax for logits, the logistic function where there is one column. Raises
    `ModelError` where the shape does not fit the meaning.
    """
    if meaning == "value":
        return Outputs(labels=scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores)
    matrix = scores.astype(np.float64)
    if matrix.ndim == 1:
        matrix = matrix[:, None]
    if matrix.ndim != 2:
        raise spec.error(f"its output has the shape {scores.shape}; {meaning} are [rows, classes]")
    probabilities = _from_logits(matrix) if meaning == "logits" else _two_columns(matrix)
    best = probabilities.argmax(axis=1)
    if classes is None:
        return Outputs(labels=best.astype(np.int64), probabilities=probabilities)
    if len(classes) != probabilities.shape[1]:
        raise spec.error(f"options.classes names {len(classes)} classes, its output has {probabilities.shape[1]}")
    return Outputs(labels=classes[best], probabilities=probabilities, classes=classes)


def class_array(values: list[Any] | None) -> AnyArray | None:
    """The option `classes` as an array."""
    return None if values is None else plain_strings(np.asarray(values))


def _from_logits(logits: F64) -> F64:
    if logits.shape[1] == 1:
        # the logistic function in a form that cannot overflow
        return _two_columns(0.5 * (1.0 + np.tanh(0.5 * logits)))
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: F64 = exponents / exponents.sum(axis=1, keepdims=True)
    return result


def _two_columns(probabilities: F64) -> F64:
    if probabilities.shape[1] > 1:
        return probabilities
    return np.hstack([1.0 - probabilities, probabilities])
