"""What a callable may answer, brought into the one form `Outputs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.core.messages import F64, AnyArray, Outputs
from streamserve.runtimes.base import ModelSpec

_FORMS = (
    "predict(batch) answers labels (an array or a list), (labels, probabilities), "
    '{"labels": ..., "probabilities": ..., "classes": ...} or Outputs'
)
_KEYS = frozenset({"labels", "probabilities", "classes"})


def as_outputs(answer: object, spec: ModelSpec) -> Outputs:
    """Turn what a callable answered into `Outputs`; an exception in a list of labels refuses that row.

    Raises `ModelError` for a form that is none of those in `_FORMS`. The number of rows is not checked here.
    """
    if isinstance(answer, Outputs):
        return answer
    if isinstance(answer, Mapping):
        return _from_mapping(answer, spec)
    if isinstance(answer, tuple):
        if len(answer) != 2:
            raise spec.error(f"predict answered a tuple of {len(answer)}; {_FORMS}")
        return _build(answer[0], answer[1], None, spec)
    return _build(answer, None, None, spec)


def plain_strings(values: AnyArray) -> AnyArray:
    """The array, with numpy's fixed-width strings turned into Python's (dtype object)."""
    return values.astype(object) if values.dtype.kind in "US" else values


def _from_mapping(answer: Mapping[Any, Any], spec: ModelSpec) -> Outputs:
    unknown = [str(key) for key in answer if key not in _KEYS]
    if unknown or not ({"labels", "probabilities"} & set(answer)):
        raise spec.error(f"predict answered a dict with the keys {', '.join(map(str, answer)) or 'none'}; {_FORMS}")
    classes, probabilities = answer.get("classes"), answer.get("probabilities")
    labels = answer.get("labels")
    if labels is None:
        matrix = _probabilities(probabilities, {}, spec)
        best = matrix.argmax(axis=1)
        labels = best if classes is None else np.asarray(classes)[best]
    return _build(labels, probabilities, classes, spec)


def _build(labels: object, probabilities: object, classes: object, spec: ModelSpec) -> Outputs:
    label_array, row_errors = _labels(labels, spec)
    matrix = None if probabilities is None else _probabilities(probabilities, row_errors, spec)
    class_array = None if classes is None else plain_strings(np.asarray(classes))
    if matrix is not None and len(matrix) != len(label_array):
        raise spec.error(f"predict answered {len(label_array)} labels but {len(matrix)} rows of probabilities")
    if class_array is not None and (matrix is None or class_array.shape != matrix.shape[1:]):
        columns = "no probabilities" if matrix is None else f"{matrix.shape[1]} columns of probabilities"
        raise spec.error(f"predict answered classes of shape {class_array.shape} for {columns}")
    return Outputs(labels=label_array, probabilities=matrix, classes=class_array, row_errors=row_errors)


def _labels(labels: object, spec: ModelSpec) -> tuple[AnyArray, dict[int, str]]:
    if isinstance(labels, list) or (isinstance(labels, np.ndarray) and labels.dtype == object and labels.ndim == 1):
        return _labels_of_list(list(labels), spec)
    if not hasattr(labels, "__array__"):
        raise spec.error(f"predict answered {type(labels).__name__}; {_FORMS}")
    array = np.asarray(labels)
    if array.ndim == 0:
        raise spec.error(f"predict answered one value instead of one a row; {_FORMS}")
    return plain_strings(array), {}


def _labels_of_list(labels: list[Any], spec: ModelSpec) -> tuple[AnyArray, dict[int, str]]:
    row_errors = {i: _words(label) for i, label in enumerate(labels) if isinstance(label, Exception)}
    good = _array([label for label in labels if not isinstance(label, Exception)], spec)
    if not row_errors:
        return good, {}
    if not len(good):
        return np.zeros(len(labels), dtype=np.int64), row_errors
    # A refused row's label is ignored, but must not be NaN or of another type: repeat the first good one.
    full = np.repeat(good[:1], len(labels), axis=0)
    full[[i for i in range(len(labels)) if i not in row_errors]] = good
    return full, row_errors


def _array(values: list[Any], spec: ModelSpec) -> AnyArray:
    if any(isinstance(value, str) for value in values):
        # numpy would make text of the numbers beside a string
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array
    try:
        return plain_strings(np.asarray(values))
    except ValueError as ragged:
        raise spec.error(f"predict answered labels of different shapes ({ragged})") from ragged


def _probabilities(probabilities: object, row_errors: Mapping[int, str], spec: ModelSpec) -> F64:
    if row_errors and isinstance(probabilities, list):
        shapes = [np.shape(row) for i, row in enumerate(probabilities) if i not in row_errors]
        empty = np.zeros(shapes[0] if shapes else 1)
        probabilities = [empty if i in row_errors else row for i, row in enumerate(probabilities)]
    try:
        matrix = np.array(probabilities, dtype=np.float64)
    except (TypeError, ValueError) as unusable:
        raise spec.error(f"predict answered probabilities that are not a matrix of numbers ({unusable})") from unusable
    if matrix.ndim != 2:
        raise spec.error(f"predict answered probabilities of shape {matrix.shape}; they are [rows, classes]")
    if row_errors:
        matrix[[i for i in row_errors if i < len(matrix)]] = 0.0
    return matrix


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
