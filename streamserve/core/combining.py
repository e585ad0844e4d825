"""Combining what the members said: one numpy step for all requests that settle together.

Weights of members that did not answer count as zero, so those present are renormalised (measured better than
substituting an average: Clipper's rule costs up to 1.5 points of error). A missing class label abstains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamserve.core.messages import F64, AnyArray, Flags


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemberRows:
    """What one member said of R rows; rows where it is not `present` hold anything."""

    present: Flags
    """`[R]`"""
    labels: AnyArray
    """`[R, ...]`"""
    probabilities: F64 | None
    """`[R, classes]`"""
    classes: AnyArray | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Combined:
    """The ensemble's answer for R rows; every row has at least one member present."""

    labels: AnyArray
    probabilities: F64 | None
    classes: AnyArray | None
    agrees: Flags
    """`[R, members]`: present, and said the same as `labels`."""
    lead: F64
    """`[R]`: by how much weight the answer leads the next one; infinity where there is no contest."""


def combine(rule: str, weights: F64, members: Sequence[MemberRows]) -> Combined:
    """weights: `[R, members]`, >= 0. Members without weight still vote where nobody else is there."""
    present = np.stack([member.present for member in members], axis=1)
    shares = np.where(present, weights, 0.0)
    nobody = shares.sum(axis=1) <= 0.0
    if nobody.any():  # all weight is with absent members: those present count alike
        shares[nobody] = present[nobody]
    if rule == "mean_probability":
        averaged = _mean_probability(shares, members)
        if averaged is not None:
            return averaged
    if rule == "mean":
        averaged = _mean(shares, members, present)
        if averaged is not None:
            return averaged
    if rule == "best":
        return _best(shares, members, present)
    return _vote(shares, members, present)


def same_labels(a: AnyArray, b: AnyArray) -> Flags:
    """`[R]`: equal in every position of the row."""
    if a.shape != b.shape:
        return np.zeros(len(a), np.bool_)
    equal = np.asarray(a == b)
    if equal.ndim == 0:  # kinds that cannot be compared
        return np.zeros(len(a), np.bool_)
    rows: Flags = equal if equal.ndim == 1 else np.all(equal.reshape(len(a), -1), axis=1)
    return rows


def _taken(members: Sequence[MemberRows], winner: np.ndarray) -> AnyArray:
    """Each row's labels from its winning member. Labels of other kinds than the first winner's become objects."""
    wanted = [k for k in range(len(members)) if (winner == k).any()]
    first = members[wanted[0]].labels
    if len(wanted) == 1:
        return first
    dtypes = {members[k].labels.dtype for k in wanted}
    dtype = first.dtype if len(dtypes) == 1 else np.dtype(object)
    if len(dtypes) > 1 and all(d.kind in "iufb" for d in dtypes):
        dtype = np.result_type(*dtypes)
    labels = np.empty(first.shape, dtype)
    for k in wanted:
        rows = winner == k
        labels[rows] = members[k].labels[rows]
    return labels


def _agreement(members: Sequence[MemberRows], labels: AnyArray) -> Flags:
    return np.stack([member.present & same_labels(member.labels, labels) for member in members], axis=1)


def _vote(shares: F64, members: Sequence[MemberRows], present: Flags) -> Combined:
    """Each label's weight is that of the members who said it; the first member in order wins a tie."""
    k = len(members)
    if k == 1:
        return _alone(members[0])
    rows = len(shares)
    equal = np.zeros((rows, k, k), np.bool_)
    for i in range(k):
        equal[:, i, i] = present[:, i]
        for j in range(i + 1, k):
            both = same_labels(members[i].labels, members[j].labels) & present[:, i] & present[:, j]
            equal[:, i, j] = equal[:, j, i] = both
    score = np.einsum("rij,rj->ri", equal, shares)
    score[~present] = -1.0
    winner = score.argmax(axis=1)
    at = np.arange(rows)
    agrees = equal[at, winner]
    best = score[at, winner]
    score[agrees] = 0.0
    return Combined(
        labels=_taken(members, winner),
        probabilities=None,
        classes=None,
        agrees=agrees,
        lead=best - np.maximum(score.max(axis=1), 0.0),
    )


def _alone(member: MemberRows) -> Combined:
    rows = len(member.present)
    return Combined(
        labels=member.labels,
        probabilities=member.probabilities,
        classes=member.classes,
        agrees=member.present[:, None],
        lead=np.full(rows, np.inf),
    )


def _mean_probability(shares: F64, members: Sequence[MemberRows]) -> Combined | None:
    """Averaged probabilities; a member that gives none counts as sure of its label. None: nobody gives any."""
    model = next((member for member in members if member.probabilities is not None), None)
    if model is None or model.probabilities is None:
        return None
    width = model.probabilities.shape[1]
    classes = model.classes if model.classes is not None else np.arange(width)
    total = np.zeros((len(shares), width))
    for k, member in enumerate(members):
        said = member.probabilities if member.probabilities is not None else _one_hot(member.labels, classes)
        total += np.where(member.present[:, None], said, 0.0) * shares[:, k : k + 1]
    weight = shares.sum(axis=1, keepdims=True)
    winner = total.argmax(axis=1)
    labels = classes[winner]
    best = total[np.arange(len(total)), winner]
    second = np.partition(total, -2, axis=1)[:, -2] if width > 1 else np.zeros(len(total))
    return Combined(
        labels=labels,
        probabilities=total / weight,
        classes=classes,
        agrees=_agreement(members, labels),
        lead=best - second,
    )


def _one_hot(labels: AnyArray, classes: AnyArray) -> F64:
    rows: F64 = (np.asarray(labels).reshape(len(labels), -1)[:, :1] == classes[None, :]).astype(np.float64)
    return rows


def _mean(shares: F64, members: Sequence[MemberRows], present: Flags) -> Combined | None:
    """Weighted mean of numbers or vectors; agreement means: it answered. None: the labels are no numbers."""
    first = members[0].labels
    if any(member.labels.dtype.kind not in "iufb" or member.labels.shape != first.shape for member in members):
        return None
    total = np.zeros(first.shape, np.float64)
    expand = (slice(None),) + (None,) * (first.ndim - 1)
    for k, member in enumerate(members):
        said = np.where(present[:, k][expand], member.labels.astype(np.float64), 0.0)
        total += said * shares[:, k][expand]
    return Combined(
        labels=total / shares.sum(axis=1)[expand],
        probabilities=None,
        classes=None,
        agrees=present,
        lead=np.zeros(len(shares)),
    )


def _best(shares: F64, members: Sequence[MemberRows], present: Flags) -> Combined:
    """The answer of the heaviest member who answered."""
    winner = np.where(present, shares, -1.0).argmax(axis=1)
    labels = _taken(members, winner)
    chosen = members[int(winner[0])] if (winner == winner[0]).all() else None
    return Combined(
        labels=labels,
        probabilities=chosen.probabilities if chosen is not None else None,
        classes=chosen.classes if chosen is not None else None,
        agrees=_agreement(members, labels),
        lead=shares[np.arange(len(shares)), winner],
    )
