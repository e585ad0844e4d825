"""What a model returned, checked row by row: a bad row costs its request, never its neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from streamserve.core.fast import distinct, every, indices, some
from streamserve.core.messages import F64, I64, U8, AnyArray, Flags, Outputs
from streamserve.core.presence import all_present
from streamserve.core.reasons import Missing
from streamserve.core.values import unchanging

#: A record of the answers topic takes 8 MiB; 64 KiB are left for what stands around the answer.
MOST_ANSWER_BYTES = (8 << 20) - (64 << 10)
_ROUNDING = 1e-6


@unchanging(eq=False)
class Checked:
    """Verdict on a call's outputs, one entry a request."""

    missing: U8
    details: dict[int, str]


def check_outputs(outputs: Outputs, n_rows: I64, most_bytes: int = MOST_ANSWER_BYTES) -> Checked:
    """n_rows: `[n]`, rows of each request, in their order. most_bytes: of one request's answer."""
    n, total = len(n_rows), int(n_rows.sum())
    wrong = _wrong_form(outputs, total)
    if wrong:
        return Checked(missing=np.full(n, Missing.WRONG_ROW_COUNT, np.uint8), details=dict.fromkeys(range(n), wrong))
    finite, row_bytes = _finite(outputs), _row_bytes(outputs)
    may_be_large = row_bytes * total > most_bytes
    if finite is None and not outputs.row_errors and not may_be_large:
        return Checked(missing=all_present(n), details={})
    missing = np.zeros(n, np.uint8)
    details: dict[int, str] = {}
    if finite is not None or outputs.row_errors:
        request_of = np.arange(n) if total == n else np.repeat(np.arange(n), n_rows)
        if finite is not None:
            for request in distinct(request_of[~finite]):
                missing[request] = Missing.NOT_FINITE
                details[request] = "the model answered with NaN or infinity"
        for row, words in outputs.row_errors.items():
            if 0 <= row < total:
                request = int(request_of[row])
                missing[request] = Missing.ROW_ERROR
                details[request] = words
    if may_be_large and row_bytes * int(n_rows.max()) > most_bytes:
        for request in indices(n_rows * row_bytes > most_bytes).tolist():
            missing[request] = Missing.OUTPUT_TOO_LARGE
            size = int(n_rows[request]) * row_bytes
            details[request] = f"the answer takes {size} bytes; a record may have {most_bytes}"
    return Checked(missing=missing, details=details)


def _row_bytes(outputs: Outputs) -> int:
    """What a row takes in an answers record, at most."""
    labels, probabilities = outputs.labels, outputs.probabilities
    width = math.prod(labels.shape[1:])
    item = labels.dtype.itemsize
    if labels.dtype == object:
        item = max((len(label) for label in labels.flat if isinstance(label, str | bytes)), default=0)
    return width * item + (0 if probabilities is None else probabilities.shape[1] * probabilities.dtype.itemsize)


def _wrong_form(outputs: Outputs, total: int) -> str:
    if outputs.labels.ndim < 1 or len(outputs.labels) != total:
        got = len(outputs.labels) if outputs.labels.ndim else "no"
        return f"the model returned {got} rows for a batch of {total}"
    probabilities = outputs.probabilities
    return "" if probabilities is None else _wrong_probabilities(probabilities, outputs.classes, total)


def _wrong_probabilities(probabilities: F64, classes: AnyArray | None, total: int) -> str:
    if probabilities.ndim != 2 or len(probabilities) != total:
        return f"the model returned probabilities of shape {probabilities.shape} for a batch of {total} rows"
    if not probabilities.shape[1]:
        return "the model returned probabilities without a column"
    if probabilities.size and not _within_unit(probabilities):
        return "the model returned probabilities that are not between 0 and 1"
    if classes is not None and len(classes) != probabilities.shape[1]:
        return f"the model names {len(classes)} classes for {probabilities.shape[1]} columns of probabilities"
    return ""


def _within_unit(probabilities: F64) -> bool:
    """NaN and infinity pass: they are found row by row. What is decided early relies on this."""
    if probabilities.min() >= -_ROUNDING and probabilities.max() <= 1.0 + _ROUNDING:
        return True
    outside = (probabilities < -_ROUNDING) | (probabilities > 1.0 + _ROUNDING)
    return not some(outside & np.isfinite(probabilities))


def _finite(outputs: Outputs) -> Flags | None:
    """Which rows hold finite numbers only; None where all do."""
    rows: Flags | None = None
    for array in (outputs.labels, outputs.probabilities):
        if array is None or array.dtype.kind not in "fc":
            continue
        finite = np.isfinite(array)
        if every(finite):
            continue
        mine: Flags = np.all(finite.reshape(len(array), -1), axis=1)
        rows = mine if rows is None else rows & mine
    return rows


def alike(one: Outputs, other: Outputs) -> bool:
    """The rows of both can stand in one array."""
    if one.labels.shape[1:] != other.labels.shape[1:]:
        return False
    if one.probabilities is None or other.probabilities is None:
        return one.probabilities is other.probabilities
    if one.probabilities.shape[1:] != other.probabilities.shape[1:]:
        return False
    return one.classes is other.classes or np.array_equal(np.asarray(one.classes), np.asarray(other.classes))


def joined(parts: Sequence[Outputs]) -> Outputs:
    """The rows of all, one after the other; they are `alike`."""
    probabilities = None
    if parts[0].probabilities is not None:
        probabilities = np.concatenate([part.probabilities for part in parts if part.probabilities is not None])
    return Outputs(
        labels=np.concatenate([part.labels for part in parts]),
        probabilities=probabilities,
        classes=parts[0].classes,
        head=min(part.head for part in parts),  # of a request in parts: what all of them knew at least
    )
