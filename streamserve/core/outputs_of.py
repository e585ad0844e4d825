"""What stands in a prediction's outputs: defaults, and what members said where that is something else."""

from __future__ import annotations

import numpy as np

from streamserve.core.combining import Combined, MemberRows, in_columns
from streamserve.core.fast import some
from streamserve.core.messages import I64, AnyArray, Flags, MemberOutput, ToldProbabilities
from streamserve.core.routes import Route

#: A prediction of more classes does not carry what each member gave each: it would be many times as large.
MOST_TOLD_CLASSES = 100


def default_rows(rule: Route, n: int) -> AnyArray:
    """The route's default, once a row; text and null as objects."""
    one = _as_numbers(rule.default)
    if one is None:
        rows = np.empty(n, object)
        for i in range(n):
            rows[i] = rule.default
        return rows
    return np.repeat(one[None, ...], n, axis=0)


def _as_numbers(default: object) -> AnyArray | None:
    try:
        one = np.asarray(default)
    except ValueError:  # a list of lists of different lengths
        return None
    return one if one.dtype.kind in "iufb" else None


def told_probabilities(
    rule: Route, combined: Combined, members: list[tuple[int, MemberRows]], row_starts: I64
) -> tuple[ToldProbabilities, ...]:
    """Each member's probabilities in the combined classes; none where there are more than `MOST_TOLD_CLASSES`."""
    classes = combined.classes
    if classes is None or len(classes) > MOST_TOLD_CLASSES:
        return ()
    first = row_starts[:-1]
    return tuple(
        ToldProbabilities(model=rule.models[bit], rows=in_columns(rows, classes), told=rows.present[first])
        for bit, rows in members
        if rows.probabilities is not None
    )


def member_outputs(
    rule: Route, combined: Combined, members: list[tuple[int, MemberRows]], row_starts: I64, low: Flags
) -> tuple[MemberOutput, ...]:
    """What each member said where that is not what the prediction says."""
    n = len(row_starts) - 1
    outputs = []
    for k, (bit, rows) in enumerate(members):
        differs = rows.present & ~combined.agrees[:, k]
        if rule.combine == "mean":
            differs = rows.present
        if len(differs) != n:
            differs = np.logical_or.reduceat(differs, row_starts[:-1])
            present = rows.present[row_starts[:-1]]
        else:
            present = rows.present
        differs = differs | (present & low)
        if some(differs):
            outputs.append(MemberOutput(model=rule.models[bit], labels=rows.labels, differs=differs))
    return tuple(outputs)
