"""Combining against a slow, obvious reference; an early decision never contradicts the full answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamserve.core.combining import LEAST_PROBABILITY, Combined, MemberRows, combine
from tests.effort import examples

RULES = ("vote", "mean_probability", "mean", "best")
Row = tuple[bool, Any, list[float] | None]
"""present, label, probabilities"""

small = settings(max_examples=examples(60))


def member(rows: list[Row], classes: list[Any] | None = None, kind: str = "int") -> MemberRows:
    dtype = {"int": np.int64, "float": np.float64, "text": object}[kind]
    labels = np.array([label for _, label, _ in rows], dtype)
    given_probabilities = rows[0][2] is not None
    return MemberRows(
        present=np.array([present for present, _, _ in rows]),
        labels=labels,
        probabilities=np.array([p for _, _, p in rows]) if given_probabilities else None,
        classes=None if classes is None else np.array(classes, object if kind == "text" else None),
    )


@st.composite
def ensembles(draw: Any, kind: str = "int", vectors: bool = False, probabilities: bool = False) -> Any:
    """(weights `[R, K]`, members); each row has someone present. Weights are small whole numbers: sums are exact."""
    k, n = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    names = {"int": [0, 1, 2], "float": [0.0, 1.0, 2.0], "text": ["cat", "dog", "emu"]}[kind]
    weights = np.array([[draw(st.integers(0, 4)) for _ in range(k)] for _ in range(n)], np.float64)
    members = []
    for _ in range(k):
        gives = probabilities and draw(st.booleans())
        classes = draw(st.permutations(names)) if gives else None
        if classes is not None:
            classes = classes[: draw(st.integers(1, len(names)))]
        rows: list[Row] = []
        for _ in range(n):
            label = [draw(st.sampled_from(names)) for _ in range(2)] if vectors else draw(st.sampled_from(names))
            shares = [draw(st.integers(0, 8)) for _ in classes or ()]
            probability = [share / 8 / max(1, len(shares)) for share in shares] if gives else None
            rows.append((draw(st.booleans()), label, probability))
        members.append(member(rows, classes, kind))
    for row in range(n):
        if not any(m.present[row] for m in members):
            members[draw(st.integers(0, k - 1))].present[row] = True
    return weights, members


def shares_of(weights: np.ndarray, members: list[MemberRows], row: int) -> list[float]:
    there = [float(w) if m.present[row] else 0.0 for w, m in zip(weights[row], members, strict=True)]
    return there if sum(there) > 0 else [float(m.present[row]) for m in members]


def key(label: Any) -> Any:
    return tuple(label.tolist()) if isinstance(label, np.ndarray) else label


def votes(weights: np.ndarray, members: list[MemberRows], row: int) -> dict[Any, float]:
    found: dict[Any, float] = {}
    for m, share in zip(members, shares_of(weights, members, row), strict=True):
        if m.present[row]:
            found[key(m.labels[row])] = found.get(key(m.labels[row]), 0.0) + share
    return found


def averages(weights: np.ndarray, members: list[MemberRows], row: int) -> dict[Any, float]:
    found: dict[Any, float] = {}
    for m, share in zip(members, shares_of(weights, members, row), strict=True):
        if m.probabilities is None:
            if m.present[row]:
                found[m.labels[row]] = found.get(m.labels[row], 0.0) + share
            continue
        names = range(m.probabilities.shape[1]) if m.classes is None else m.classes.tolist()
        for name, p in zip(names, m.probabilities[row], strict=True):
            found[name] = found.get(name, 0.0) + (p * share if m.present[row] else 0.0)
    return found


def agrees_with(combined: Combined, members: list[MemberRows]) -> None:
    for row in range(len(combined.agrees)):
        for k, m in enumerate(members):
            same = m.present[row] and key(m.labels[row]) == key(combined.labels[row])
            assert combined.agrees[row, k] == same


@pytest.mark.parametrize(("kind", "vectors"), [("int", False), ("text", False), ("int", True), ("float", False)])
def test_vote_is_the_heaviest_label_and_the_first_member_wins_a_tie(kind: str, vectors: bool) -> None:
    @small
    @given(ensembles(kind=kind, vectors=vectors))
    def check(case: Any) -> None:
        weights, members = case
        combined = combine("vote", weights, members)
        agrees_with(combined, members)
        for row in range(len(weights)):
            found = votes(weights, members, row)
            best = max(found.values())
            first = next(key(m.labels[row]) for m in members if m.present[row] and found[key(m.labels[row])] == best)
            assert key(combined.labels[row]) == first
            second = max([weight for label, weight in found.items() if label != first], default=0.0)
            assert combined.lead[row] == best - second or len(members) == 1

    check()


@pytest.mark.parametrize("kind", ["int", "text"])
def test_mean_probability_is_the_class_with_the_most_weight(kind: str) -> None:
    @small
    @given(ensembles(kind=kind, probabilities=True))
    def check(case: Any) -> None:
        weights, members = case
        combined = combine("mean_probability", weights, members)
        agrees_with(combined, members)
        for row in range(len(weights)):
            found = averages(weights, members, row)
            best = key(combined.labels[row])
            assert found[best] == pytest.approx(max(found.values()))
            second = max([weight for label, weight in found.items() if label != best], default=0.0)
            assert combined.lead[row] == pytest.approx(found[best] - second) or combined.lead[row] == np.inf
            if combined.probabilities is not None and combined.classes is not None:
                total = sum(shares_of(weights, members, row))
                for name, p in zip(combined.classes.tolist(), combined.probabilities[row], strict=True):
                    assert p == pytest.approx(found.get(name, 0.0) / total)

    check()


def log_averages(weights: np.ndarray, members: list[MemberRows], row: int) -> dict[Any, float]:
    """Of each class that any member names, and each label said."""
    shares, given_of = shares_of(weights, members, row), []
    for m in members:
        if m.probabilities is None:
            given_of.append({m.labels[row]: 1.0})
        else:
            names = range(m.probabilities.shape[1]) if m.classes is None else m.classes.tolist()
            given_of.append(dict(zip(names, m.probabilities[row].tolist(), strict=True)))
    said = {name for m, named in zip(members, given_of, strict=True) if m.present[row] for name in named}
    total = sum(shares)
    return {
        name: sum(
            share * math.log(max(named.get(name, 0.0), LEAST_PROBABILITY))
            for share, named, m in zip(shares, given_of, members, strict=True)
            if m.present[row]
        )
        / total
        for name in said
    }


@pytest.mark.parametrize("kind", ["int", "text"])
def test_log_probability_is_the_class_with_the_highest_mean_logarithm(kind: str) -> None:
    @small
    @given(ensembles(kind=kind, probabilities=True))
    def check(case: Any) -> None:
        weights, members = case
        if all(m.probabilities is None for m in members):
            return  # then it is a vote
        combined = combine("log_probability", weights, members)
        agrees_with(combined, members)
        for row in range(len(weights)):
            found = log_averages(weights, members, row)
            assert found[key(combined.labels[row])] == pytest.approx(max(found.values()))
            assert combined.probabilities is not None
            assert combined.classes is not None
            names, unsaid = combined.classes.tolist(), math.log(LEAST_PROBABILITY)
            scores = {name: unsaid for name in names} | found  # a label that is no class has its share too
            total = sum(map(math.exp, scores.values()))
            for name, p in zip(names, combined.probabilities[row], strict=True):
                assert p == pytest.approx(math.exp(scores[name]) / total)

    check()


@pytest.mark.parametrize("vectors", [False, True])
def test_mean_is_the_weighted_mean_of_those_present(vectors: bool) -> None:
    @small
    @given(ensembles(kind="float", vectors=vectors))
    def check(case: Any) -> None:
        weights, members = case
        combined = combine("mean", weights, members)
        for row in range(len(weights)):
            shares = shares_of(weights, members, row)
            expected = sum(s * np.asarray(m.labels[row]) for s, m in zip(shares, members, strict=True)) / sum(shares)
            assert combined.labels[row] == pytest.approx(expected)

    check()


@small
@given(ensembles(kind="text"))
def test_best_is_the_heaviest_member_present(case: Any) -> None:
    weights, members = case
    combined = combine("best", weights, members)
    for row in range(len(weights)):
        there = [s if m.present[row] else -1.0 for s, m in zip(shares_of(weights, members, row), members, strict=True)]
        assert combined.labels[row] == members[there.index(max(there))].labels[row]


@pytest.mark.parametrize("rule", ["vote", "mean_probability", "best"])
def test_what_is_decided_early_stays_so_whatever_the_rest_say(rule: str) -> None:
    """The aggregator's rule: the lead is larger than the weight (for `best`: the heaviest) still to come."""

    @settings(max_examples=examples(150))
    @given(ensembles(probabilities=rule == "mean_probability"), st.integers(0, 15))
    def check(case: Any, first: int) -> None:
        weights, members = case
        early = [i for i in range(len(members)) if first >> i & 1]
        rest = [i for i in range(len(members)) if not first >> i & 1]
        rows = np.array([any(members[i].present[row] for i in early) for row in range(len(weights))], np.bool_)
        assume(early and rest and rows.any())

        def of(i: int) -> MemberRows:
            m = members[i]
            p = None if m.probabilities is None else m.probabilities[rows]
            return MemberRows(present=m.present[rows], labels=m.labels[rows], probabilities=p, classes=m.classes)

        part = combine(rule, weights[rows][:, early], [of(i) for i in early])
        full = combine(rule, weights[rows], [of(i) for i in range(len(members))])
        came = np.stack([members[i].present[rows] for i in early], axis=1)
        left = weights[rows][:, rest]
        open_weight = left.max(axis=1) if rule == "best" else left.sum(axis=1)
        heard = np.where(came, weights[rows][:, early], 0.0).sum(axis=1)
        decided = (heard > open_weight) & (part.lead > open_weight + 1e-9)
        assert part.labels[decided].tolist() == full.labels[decided].tolist()

    check()


def test_what_only_an_absent_member_knows_cannot_win() -> None:
    """Thousands of classes, say: all that the one that is there gives may be below the least that counts."""
    there, away = np.array([True]), np.array([False])
    nothing = {"labels": np.array(["cat"], object), "probabilities": np.array([[0.0]])}
    one = MemberRows(present=away, classes=np.array(["cat"], object), **nothing)
    two = MemberRows(present=there, classes=np.array(["dog"], object), **nothing)
    for members in ([one, two], [two, one]):
        assert combine("log_probability", np.zeros((1, 2)), members).labels.tolist() == ["dog"]


def test_members_that_know_other_classes_are_aligned_by_name() -> None:
    one = MemberRows(
        present=np.array([True]),
        labels=np.array(["b"], object),
        probabilities=np.array([[0.1, 0.9]]),
        classes=np.array(["a", "b"], object),
    )
    two = MemberRows(
        present=np.array([True]),
        labels=np.array(["b"], object),
        probabilities=np.array([[0.7, 0.2, 0.1]]),
        classes=np.array(["b", "c", "a"], object),
    )
    combined = combine("mean_probability", np.array([[1.0, 1.0]]), [one, two])
    assert combined.labels.tolist() == ["b"]
    assert combined.classes is not None
    assert combined.classes.tolist() == ["a", "b", "c"]
    assert combined.probabilities is not None
    assert combined.probabilities[0] == pytest.approx([0.1, 0.8, 0.1])


def test_labels_that_are_no_class_count_together() -> None:
    sure = MemberRows(
        present=np.array([True]), labels=np.array([0]), probabilities=np.array([[0.6, 0.4]]), classes=None
    )
    said = [MemberRows(present=np.array([True]), labels=np.array([7]), probabilities=None, classes=None)] * 2
    combined = combine("mean_probability", np.array([[1.5, 1.0, 1.0]]), [sure, *said])
    assert combined.labels.tolist() == [7]
    assert combined.lead[0] == pytest.approx(2.0 - 0.9)
