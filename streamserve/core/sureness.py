"""What a prediction says of how sure its answer is, where its route learns that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamserve.core.combining import Combined
from streamserve.core.epochs import EpochTable
from streamserve.core.fast import distinct
from streamserve.core.messages import F64, I64, NamedRows
from streamserve.core.selection.confident import Confident, ConfidentState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Said:
    """Columns of a block of predictions."""

    confidence: F64
    """`[n]`: probability that the answer is right."""
    set_size: F64 | None = None
    extras: tuple[NamedRows, ...] = ()


def sureness(
    confident: Confident, states: tuple[EpochTable, int], epochs: I64, agreement: F64, said: tuple[Combined, I64]
) -> Said:
    """By the state of each request's epoch. `states`: the table and the route; `said`: answers, and `row_starts`."""
    table, route = states
    combined, row_starts = said
    found = [(epoch, table.value(route, epoch)) for epoch in distinct(epochs)]
    confidence = np.empty(len(epochs))
    for epoch, state in found:
        mine = epochs == epoch
        confidence[mine] = confident.confidence(state, agreement[mine])
    columns = _ranges(confident, found, np.repeat(epochs, np.diff(row_starts)), combined)
    if not columns:
        return Said(confidence=confidence)
    names = ("in_set",) if len(columns) == 1 else ("lower", "upper")
    told = np.ones(len(epochs), np.bool_)
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
    confident: Confident, found: list[tuple[int, ConfidentState]], row_epochs: I64, combined: Combined
) -> tuple[np.ndarray, ...]:
    """`[rows, classes]` flags, or two columns `[rows]` of ends; empty where the route has neither."""
    if confident.rules.tracking is None or not len(row_epochs):
        return ()
    if combined.probabilities is not None:
        within = np.zeros(combined.probabilities.shape, np.bool_)
        for epoch, state in found:
            mine = row_epochs == epoch
            classes = confident.classes(state, combined.probabilities[mine])
            if classes is not None:
                within[mine] = classes
        return (within,)
    if confident.combine != "mean" or combined.labels.ndim != 1 or combined.labels.dtype.kind not in "iuf":
        return ()
    ends = np.empty((2, len(row_epochs)))
    for epoch, state in found:
        mine = row_epochs == epoch
        interval = confident.interval(state, combined.labels[mine].astype(np.float64))
        if interval is not None:
            ends[0, mine], ends[1, mine] = interval
    return ends[0], ends[1]
