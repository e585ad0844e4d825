"""What any runtime answered, made plain: arrays of kinds that can be compared, hashed, kept and written.

Done on the model's thread, so that what is odd about an answer fails its own call and nothing else. What passes here
raises nowhere later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from streamserve.core.messages import F64, AnyArray, Outputs
from streamserve.errors import ModelError

_NUMBERS = "biuf"
_LARGEST = 1 << 63
_FORMS = "Outputs(labels=..., probabilities=..., classes=...) holds arrays or lists"


def plain_outputs(outputs: object) -> Outputs:
    """`Outputs` whose labels are numbers of at most 64 bits or objects that are str, int, float, bool or None.

    Times become ISO text, other objects their `str`. A masked or non-finite label among objects refuses its row.
    Raises ModelError in words for what cannot be used, and whatever an object's own `str` raises.
    """
    if not isinstance(outputs, Outputs):
        raise ModelError(f"the runtime answered {type(outputs).__name__}; {_FORMS}")
    if _is_plain(outputs):
        return outputs
    row_errors = {_whole(row): str(words) for row, words in outputs.row_errors.items()}
    labels = _labels(outputs.labels, row_errors)
    classes = None if outputs.classes is None else _labels(outputs.classes, None)
    if classes is not None and classes.ndim != 1:
        raise ModelError(f"the model names classes of shape {list(classes.shape)}; they are [classes]")
    return Outputs(
        labels=labels,
        probabilities=None if outputs.probabilities is None else _probabilities(outputs.probabilities),
        classes=classes,
        row_errors=row_errors,
        metrics={str(name): float(value) for name, value in outputs.metrics.items()},
        head=outputs.head,
    )


def _is_plain(outputs: Outputs) -> bool:
    """The usual case, at a glance."""
    labels, probabilities, classes = outputs.labels, outputs.probabilities, outputs.classes
    if type(labels) is not np.ndarray or not _is_number(labels) or outputs.row_errors or outputs.metrics:
        return False
    if probabilities is not None and (type(probabilities) is not np.ndarray or probabilities.dtype != np.float64):
        return False
    return classes is None or (type(classes) is np.ndarray and _is_number(classes) and classes.ndim == 1)


def _is_number(array: AnyArray) -> bool:
    return array.dtype.kind in _NUMBERS and array.dtype.itemsize <= 8 and array.dtype.isnative and array.ndim > 0


def _whole(row: object) -> int:
    if isinstance(row, int | np.integer) and not isinstance(row, bool):
        return int(row)
    raise ModelError(f"row_errors names row {row!r}; rows are numbers from 0")


def _probabilities(values: object) -> F64:
    try:
        return np.asarray(np.ma.filled(cast(Any, values), np.nan), np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"the model answered probabilities that are no matrix of numbers ({error})") from error


def _labels(values: object, row_errors: dict[int, str] | None) -> AnyArray:
    """row_errors: gets the rows that hold no label; None: there are no rows to refuse (classes)."""
    if values is None or isinstance(values, str | bytes | Mapping):
        raise ModelError(f"the model answered {type(values).__name__} for labels; {_FORMS}")
    masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        array = np.asarray(values)
    except ValueError as ragged:
        raise ModelError(f"the model answered labels of different shapes ({ragged})") from ragged
    if array.ndim == 0:
        raise ModelError("the model answered one value instead of one a row")
    if masked is not None and row_errors is not None:
        for row in np.flatnonzero(masked.reshape(len(array), -1).any(axis=1)).tolist():
            row_errors.setdefault(row, "the model masked its answer")
    return _of_kind(array, row_errors)


def _of_kind(array: AnyArray, row_errors: dict[int, str] | None) -> AnyArray:
    kind = array.dtype.kind
    if kind in _NUMBERS:
        return array.astype(np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("="), copy=False)
    if kind in "US":
        return array.astype(object) if kind == "U" else _each(array, _text, None)
    if kind in "Mm":
        return _each(np.datetime_as_string(cast(Any, array)) if kind == "M" else array.astype(str), str, None)
    if kind != "O":
        raise ModelError(f"the model answered labels of dtype {array.dtype}; they are numbers, text or objects")
    return _each(array, _plain, row_errors)


def _each(array: AnyArray, change: Callable[[Any], Any], row_errors: dict[int, str] | None) -> AnyArray:
    plain = np.empty(array.shape, object)
    flat, values = plain.reshape(-1), array.reshape(-1).tolist()
    for i, value in enumerate(values):
        flat[i] = change(value)
    if row_errors is not None:
        width = max(1, len(values) // max(1, len(array)))
        for i, value in enumerate(flat):
            if isinstance(value, float) and not math.isfinite(value):
                row_errors.setdefault(i // width, "the model answered with NaN or infinity")
                flat[i] = 0.0
    return plain


def _plain(value: Any) -> str | int | float | bool | None:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | float):
        return bool(value) if isinstance(value, bool) else None if value is None else float(value)
    if isinstance(value, int):
        return int(value) if -_LARGEST <= value < _LARGEST else str(value)
    return _text(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
