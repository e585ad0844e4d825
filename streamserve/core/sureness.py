"""What a prediction says of how sure its answer is, where its route learns that."""

from __future__ import annotations

import numpy as np

from streamserve.core.combining import Combined
from streamserve.core.epochs import Decided
from streamserve.core.messages import F64, I64, NamedRows
from streamserve.core.selection.confident import Confident, ConfidentState
from streamserve.core.values import unchanging


@unchanging(eq=False)
class Said:
    """Columns of a block of predictions."""

    confidence: F64
    """`[n]`: probability that the answer is right."""
    set_size: F64 | None = None
    extras: tuple[NamedRows, ...] = ()


def sureness(
    confident: Confident, states: tuple[I64, list[Decided]], agreement: F64, said: tuple[Combined, I64]
) -> Said:
    """By what decided each request. `states`: of `EpochTable.deciding`; `said`: answers, and `row_starts`."""
    numbers, decided = states
    combined, row_starts = said
    found = [(number, each.value) for number, each in enumerate(decided)]
    confidence = np.empty(len(numbers))
    for number, state in found:
        mine = numbers == number
        confidence[mine] = confident.confidence(state, agreement[mine])
    columns = _ranges(confident, found, np.repeat(numbers, np.diff(row_starts)), combined)
    if not columns:
        return Said(confidence=confidence)
    names = ("in_set",) if len(columns) == 1 else ("lower", "upper")
    told = np.ones(len(numbers), np.bool_)
    sizes = columns[0].sum(axis=1) if len(columns) == 1 else columns[1] - columns[0]
    counts = np.diff(row_starts)
    starts = np.minimum(row_starts[:-1], len(sizes) - 1)
    mean = np.add.reduceat(sizes.astype(np.float64), starts) / np.maximum(counts, 1)
    return Said(
        confidence=confidence,
        set_size=np.where(counts > 0, mean, np.nan),
        extras=tuple(NamedRows(name=name, rows=rows, told=told) for name, rows in zip(names, columns, strict=True)),
    )


def _ranges(
    confident: Confident, found: list[tuple[int, ConfidentState]], of_rows: I64, combined: Combined
) -> tuple[np.ndarray, ...]:
    """`[rows, classes]` flags, or two columns `[rows]` of ends; empty where the route has neither."""
    if confident.rules.tracking is None or not len(of_rows):
        return ()
    if combined.probabilities is not None:
        within = np.zeros(combined.probabilities.shape, np.bool_)
        for number, state in found:
            mine = of_rows == number
            classes = confident.classes(state, combined.probabilities[mine])
            if classes is not None:
                within[mine] = classes
        return (within,)
    if confident.combine != "mean" or combined.labels.ndim != 1 or combined.labels.dtype.kind not in "iuf":
        return ()
    ends = np.empty((2, len(of_rows)))
    for number, state in found:
        mine = of_rows == number
        interval = confident.interval(state, combined.labels[mine].astype(np.float64))
        if interval is not None:
            ends[0, mine], ends[1, mine] = interval
    return ends[0], ends[1]
