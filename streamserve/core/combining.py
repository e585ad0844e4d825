"""Combining what the members said: one numpy step for all requests that settle together.

Weights of members that did not answer count as zero, so those present are renormalised (measured better than
substituting an average: Clipper's rule costs up to 1.5 points of error). A missing class label abstains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from streamserve.core.fast import every, indices, some
from streamserve.core.messages import F64, I64, AnyArray, Flags
from streamserve.core.values import unchanging

#: What a probability counts as at least, where its logarithm is taken: one member cannot veto a class.
LEAST_PROBABILITY = 1e-3
#: Kinds of labels that compare as whole columns.
_PLAIN = "biufUS"


@unchanging(eq=False)
class MemberRows:
    """What one member said of R rows; rows where it is not `present` hold anything."""

    present: Flags
    """`[R]`"""
    labels: AnyArray
    """`[R, ...]`"""
    probabilities: F64 | None
    """`[R, classes]`"""
    classes: AnyArray | None


@unchanging(eq=False)
class Combined:
    """The ensemble's answer for R rows; every row has at least one member present."""

    labels: AnyArray
    probabilities: F64 | None
    classes: AnyArray | None
    agrees: Flags
    """`[R, members]`: present, and said the same as `labels`."""
    lead: F64
    """`[R]`: by how much weight the answer leads the next one; infinity where there is no contest."""


def combine(rule: str, weights: F64, members: Sequence[MemberRows], draws: F64 | None = None) -> Combined:
    """weights: `[R, members]`, >= 0. Members without weight still vote where nobody else is there.

    draws: `[R]` in [0, 1), only for the rule `drawn`, alike for all rows of a request: one member answers them.
    """
    if len(members) == 1 and rule in ("vote", "best", "drawn") and every(members[0].present):
        return _alone(members[0])
    present = _present(members)
    shares = np.where(present, weights, 0.0)
    nobody = shares.sum(axis=1) <= 0.0
    if some(nobody):  # all weight is with absent members: those present count alike
        shares[nobody] = present[nobody]
    if rule == "mean_probability" and members[0].labels.ndim == 1:
        averaged = _mean_probability(shares, members)
        if averaged is not None:
            return averaged
    if rule == "log_probability" and members[0].labels.ndim == 1:
        pooled = _log_probability(shares, members)
        if pooled is not None:
            return pooled
    if rule == "mean":
        averaged = _mean(shares, members, present)
        if averaged is not None:
            return averaged
    if rule in ("best", "drawn"):
        return _best(shares, members, present) if draws is None else _drawn(shares, members, draws)
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
    wanted = [k for k in range(len(members)) if some(winner == k)]
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
    """`[R, members]`: present, and said the same as `labels`."""
    return _said(members)(labels)


def _said(members: Sequence[MemberRows]) -> Callable[[AnyArray], Flags]:
    """Labels -> which members, `[R, members]`, are present and said that: one comparison for all where they can stand
    in one array."""
    present = _present(members)
    dtype = members[0].labels.dtype
    plain = dtype.kind in _PLAIN and all(m.labels.ndim == 1 and m.labels.dtype == dtype for m in members)
    stacked = np.array([member.labels for member in members]) if plain else None

    def saying(labels: AnyArray) -> Flags:
        if stacked is not None and labels.ndim == 1 and labels.dtype == dtype:
            alike = stacked == labels
        else:
            alike = np.array([same_labels(member.labels, labels) for member in members])
        said: Flags = present & alike.T
        return said

    return saying


def _present(members: Sequence[MemberRows]) -> Flags:
    return np.array([member.present for member in members]).T


def _vote(shares: F64, members: Sequence[MemberRows], present: Flags) -> Combined:
    """Each label's weight is that of the members who said it; the first member in order wins a tie."""
    rows, k = shares.shape
    if k == 1:
        return _alone(members[0])
    saying = _said(members)
    first = np.zeros((rows, k), np.int64)  # who was the first to say what this member says
    open_ = present.copy()
    for one in range(k):
        if not some(open_):
            break
        if some(open_[:, one]):
            alike = saying(members[one].labels) & open_[:, one : one + 1]
            first[alike] = one
            open_ &= ~alike
    at = np.arange(rows)
    places = (at[:, None] * k + first).ravel()
    score = np.bincount(places, np.where(present, shares, 0.0).ravel(), rows * k).reshape(rows, k)
    score[~_begins(first, present)] = -1.0
    winner = score.argmax(axis=1)
    best = score[at, winner]
    score[at, winner] = 0.0
    return Combined(
        labels=_taken(members, winner),
        probabilities=None,
        classes=None,
        agrees=present & (first == winner[:, None]),
        lead=best - np.maximum(score.max(axis=1), 0.0),
    )


def _begins(first: I64, present: Flags) -> Flags:
    """`[R, members]`: present, and the first to say what they say."""
    begins: Flags = present & (first == np.arange(first.shape[1]))
    return begins


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
    """Averaged probabilities. None: nobody gives any.

    A member that gives none counts as sure of its label. Members may know different classes: a class that one does
    not know has probability 0 with it. A label that is no class stands in a column of its own, after the classes.
    """
    classes = _all_classes(members)
    if classes is None:
        return None
    width = len(classes)
    labelled = [k for k, member in enumerate(members) if member.probabilities is None]
    total = np.zeros((len(shares), width + len(labelled)))
    for k, member in enumerate(members):
        if member.probabilities is not None:
            said = in_columns(member, classes)
            if not every(member.present):
                said = np.where(member.present[:, None], said, 0.0)
            total[:, :width] += said * shares[:, k : k + 1]
    for place, k in enumerate(labelled):
        column = _columns_of(members, labelled[: place + 1], classes)
        rows = indices(members[k].present)
        total[rows, column[rows]] += shares[rows, k]
    winner = total.argmax(axis=1)
    labels = _class_or_label(members, labelled, classes, winner)
    best = total[np.arange(len(total)), winner]
    second = np.partition(total, -2, axis=1)[:, -2] if total.shape[1] > 1 else np.zeros(len(total))
    return Combined(
        labels=labels,
        probabilities=total[:, :width] / shares.sum(axis=1, keepdims=True),
        classes=classes,
        agrees=_agreement(members, labels),
        lead=best - second,
    )


def _log_probability(shares: F64, members: Sequence[MemberRows]) -> Combined | None:
    """Weighted mean of log-probabilities, none below `log(LEAST_PROBABILITY)`. None: nobody gives any.

    A member that gives none, and a class that a member does not know, count as with `mean_probability`.
    """
    classes = _all_classes(members)
    if classes is None:
        return None
    width = len(classes)
    labelled = [k for k, member in enumerate(members) if member.probabilities is None]
    total = np.zeros((len(shares), width + len(labelled)))
    named = np.zeros(total.shape, np.bool_)  # by a member that is there: what only an absent one knows cannot win
    for k, member in enumerate(members):
        said = np.zeros_like(total)
        if member.probabilities is not None:
            said[:, :width] = in_columns(member, classes)
            named[:, :width] |= member.present[:, None] & _knows(member, classes)
        else:
            place = labelled.index(k)
            rows, column = np.arange(len(said)), _columns_of(members, labelled[: place + 1], classes)
            said[rows, column] = 1.0
            named[rows, column] |= member.present
        logs = np.log(np.maximum(said, LEAST_PROBABILITY))
        total += np.where(member.present[:, None], logs, 0.0) * shares[:, k : k + 1]
    total /= shares.sum(axis=1, keepdims=True)
    total[:, width:][~named[:, width:]] = -np.inf  # a label that is a class leaves its own column to nobody
    winner = np.where(named, total, -np.inf).argmax(axis=1)
    labels = _class_or_label(members, labelled, classes, winner)
    best = total[np.arange(len(total)), winner]
    second = np.partition(total, -2, axis=1)[:, -2] if total.shape[1] > 1 else best - np.inf
    probabilities = np.exp(total - best[:, None])
    return Combined(
        labels=labels,
        probabilities=probabilities[:, :width] / probabilities.sum(axis=1, keepdims=True),
        classes=classes,
        agrees=_agreement(members, labels),
        lead=best - second,
    )


def _classes_of(member: MemberRows) -> AnyArray | None:
    if member.probabilities is None:
        return None
    return member.classes if member.classes is not None else np.arange(member.probabilities.shape[1])


def _all_classes(members: Sequence[MemberRows]) -> AnyArray | None:
    """The classes that any member knows, in the order of the first member that knows them; None: nobody names any."""
    named = [classes for member in members if (classes := _classes_of(member)) is not None]
    if not named:
        return None
    if all(classes is named[0] or np.array_equal(classes, named[0]) for classes in named[1:]):
        return named[0]
    union = list(dict.fromkeys(name for classes in named for name in classes.tolist()))
    if len({classes.dtype.kind for classes in named}) == 1 and named[0].dtype != object:
        return np.asarray(union)
    mixed = np.empty(len(union), object)
    mixed[:] = union
    return mixed


def in_columns(member: MemberRows, classes: AnyArray) -> F64:
    """`[R, len(classes)]`: a member's probabilities, moved to the columns of all classes."""
    mine = _classes_of(member)
    assert mine is not None
    assert member.probabilities is not None
    if mine is classes or np.array_equal(mine, classes):
        return member.probabilities
    column = {name: k for k, name in enumerate(classes.tolist())}
    moves = np.zeros((len(mine), len(classes)))
    for k, name in enumerate(mine.tolist()):
        moves[k, column[name]] = 1.0
    moved: F64 = member.probabilities @ moves
    return moved


def _knows(member: MemberRows, classes: AnyArray) -> Flags:
    """`[len(classes)]`: which of all classes this member has probabilities for."""
    mine = _classes_of(member)
    assert mine is not None
    names = set(mine.tolist())
    return np.fromiter((name in names for name in classes.tolist()), np.bool_, len(classes))


def _columns_of(members: Sequence[MemberRows], labelled: Sequence[int], classes: AnyArray) -> I64:
    """`[R]`: where the label of the last of these members stands: its class, or the first member's column with it."""
    last = members[labelled[-1]]
    known = np.asarray(last.labels[:, None] == classes[None, :])
    width = len(classes)
    column = np.full(len(last.labels), width + len(labelled) - 1, np.int64)
    for place, k in reversed(list(enumerate(labelled[:-1]))):
        column[members[k].present & same_labels(members[k].labels, last.labels)] = width + place
    if known.ndim == 2:  # kinds that can be compared
        column = np.where(known.any(axis=1), known.argmax(axis=1), column)
    return column


def _class_or_label(members: Sequence[MemberRows], labelled: Sequence[int], classes: AnyArray, winner: I64) -> AnyArray:
    width = len(classes)
    if not some(winner >= width):
        return classes[winner]
    labels = np.empty(len(winner), object)
    labels[:] = classes[np.minimum(winner, width - 1)]
    kinds = {classes.dtype.kind}
    for place, k in enumerate(labelled):
        rows = winner == width + place
        if some(rows):
            labels[rows] = members[k].labels[rows]
            kinds.add(members[k].labels.dtype.kind)
    return np.asarray(labels.tolist()) if kinds <= set("iufb") else labels


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
    chosen = members[int(winner[0])] if every(winner == winner[0]) else None
    return Combined(
        labels=labels,
        probabilities=chosen.probabilities if chosen is not None else None,
        classes=chosen.classes if chosen is not None else None,
        agrees=_agreement(members, labels),
        lead=shares[np.arange(len(shares)), winner],
    )


def _drawn(shares: F64, members: Sequence[MemberRows], draws: F64) -> Combined:
    """The answer of one member, drawn by the weights of those who answered: the first whose sum is above the draw."""
    edges = np.cumsum(shares, axis=1)
    winner = (draws[:, None] * edges[:, -1:] >= edges).sum(axis=1)
    last = shares.shape[1] - 1 - (shares[:, ::-1] > 0.0).argmax(axis=1)
    winner = np.minimum(winner, last)  # a draw of nearly 1 may round to the sum of all
    labels = _taken(members, winner)
    return Combined(
        labels=labels,
        probabilities=None,
        classes=None,
        agrees=_agreement(members, labels),
        lead=np.zeros(len(shares)),
    )


def served_probability(weights: F64, agrees: Flags, present: Flags, row_starts: I64) -> F64:
    """`[n]`: with which probability the rule `drawn` gives this answer to each of n requests, given who answered.

    weights, present: `[n, members]`; agrees: `[R, members]`. Those who gave it count, in all rows, by their weight.
    """
    if len(agrees) != len(weights):
        agrees = np.logical_and.reduceat(agrees, row_starts[:-1], axis=0)
    shares = np.where(present, weights, 0.0)
    total = shares.sum(axis=1)
    alike = present.astype(np.float64)
    shares = np.where((total > 0.0)[:, None], shares, alike)
    probability: F64 = (shares * agrees).sum(axis=1) / np.maximum(shares.sum(axis=1), 1e-300)
    return probability
