"""A candidate's answers against those that were given: counts against a plain recount."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.evaluation.agreement import OTHER_REFUSALS, SERVED, Comparison, Replayed
from streamserve.core.evaluation.durations import RELATIVE_ERROR, Durations
from streamserve.core.records import Decision

CLASSES = st.integers(0, 3)


def decision(label: Any, members: dict[str, Any] | None = None, outcome: str = "ok") -> Decision:
    return Decision(
        id="x",
        route="r",
        outcome=outcome,
        epoch=-1,
        probability=1.0,
        off_epoch=False,
        chosen=tuple(members or ()),
        label=label,
        members=members or {},
        rows=len(label or ()),
    )


@st.composite
def requests(draw: st.DrawFn) -> Replayed:
    rows = draw(st.integers(1, 3))
    answers = st.lists(CLASSES, min_size=rows, max_size=rows)
    members = draw(st.dictionaries(st.sampled_from(("a@1", "b@1")), answers))
    served = draw(st.none() | answers)
    has_label = draw(st.booleans())
    known = draw(st.none() | st.just(decision(served, members, "ok" if served else "expired")))
    return Replayed(
        ref=f"0-{draw(st.integers(0, 99))}",
        id="x",
        answer=draw(st.none() | answers),
        refusal="no",
        decision=known,
        label=draw(CLASSES | answers) if has_label else None,
        has_label=has_label,
    )


def correct(answer: list[int], label: Any) -> float:
    labels = label if isinstance(label, list) else [label] * len(answer)
    return sum(a == b for a, b in zip(answer, labels, strict=True)) / len(answer)


@given(st.lists(requests(), max_size=30))
def test_every_count_is_that_of_a_plain_recount(found: list[Replayed]) -> None:
    comparison = Comparison("vote")
    listed = [one for one in found if comparison.add(one)]
    answered = [one for one in found if one.answer is not None]
    assert (comparison.requests, comparison.answered) == (len(found), len(answered))
    assert sum(one.requests for one in comparison.refusals.values()) == len(found) - len(answered)
    assert comparison.without_prediction == sum(one.decision is None for one in found)
    assert sum(comparison.unanswered.values()) == sum(
        one.decision is not None and one.decision.label is None for one in found
    )
    differs = [one for one in answered if one.decision and one.decision.label and one.decision.label != one.answer]
    assert comparison.disagreements == len(differs)
    assert listed == [one for one in found if one.answer is None or one in differs]
    labelled = [one for one in answered if one.has_label]
    assert comparison.labelled == len(labelled)
    if labelled:
        mine = sum(correct(one.answer or [], one.label) for one in labelled) / len(labelled)
        assert comparison.accuracy == pytest.approx(mine)
    for name in (SERVED, "a@1", "b@1"):
        check_versus(comparison, name, answered)


def check_versus(comparison: Comparison, name: str, answered: list[Replayed]) -> None:
    pairs = []
    for one in answered:
        said = None
        if one.decision is not None:
            said = one.decision.label if name == SERVED else one.decision.members.get(name)
        if said is not None:
            pairs.append((one, one.answer or [], said))
    versus = comparison.versus.get(name)
    if not pairs:
        assert versus is None
        return
    assert versus is not None
    assert versus.requests == len(pairs)
    assert versus.agree == sum(mine == theirs for _, mine, theirs in pairs)
    assert versus.rows == sum(len(mine) for _, mine, _ in pairs)
    assert versus.rows_agree == sum(a == b for _, mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))
    scores = [(correct(mine, o.label), correct(theirs, o.label)) for o, mine, theirs in pairs if o.has_label]
    assert versus.labelled == len(scores)
    assert versus.better == sum(mine > theirs for mine, theirs in scores)
    assert versus.worse == sum(mine < theirs for mine, theirs in scores)
    if scores:
        assert versus.candidate_accuracy == pytest.approx(sum(mine for mine, _ in scores) / len(scores))
        assert versus.accuracy == pytest.approx(sum(theirs for _, theirs in scores) / len(scores))


@given(st.lists(requests().filter(lambda one: one.answer is not None), min_size=1, max_size=20))
def test_a_candidate_that_answers_as_was_served_agrees_with_all_of_it(found: list[Replayed]) -> None:
    comparison = Comparison("vote")
    for one in found:
        assert not comparison.add(replace(one, decision=decision(one.answer)))
    versus = comparison.versus[SERVED]
    assert (versus.agreement, versus.better, versus.worse) == (1.0, 0, 0)
    assert versus.accuracy == versus.candidate_accuracy == comparison.accuracy


@pytest.mark.parametrize(
    ("mine", "served", "agrees"),
    [
        ([1.0], [1.0], True),
        ([1.0], [1.01], True),  # |a - b| / (|a| + |b|) = 0.005
        ([1.0], [1.1], False),
        ([[1.0, 2.0]], [[1.0, 2.001]], True),
        ([[1.0, 2.0]], [[1.0]], False),
        ([1.0], [None], False),  # NaN, as it is written
        ([1.0], ["n/a"], False),
        ([10**400], [10**400], True),
        ([1.0, 1.0], [1.0], False),
    ],
)
def test_numbers_agree_up_to_the_tolerance(mine: list[Any], served: list[Any], agrees: bool) -> None:
    comparison = Comparison("mean", 0.01)
    assert comparison.add(Replayed(ref="0-0", id="x", answer=mine, decision=decision(served))) is not agrees
    assert comparison.versus[SERVED].agree == agrees


def test_a_label_that_fits_nothing_is_counted_with_its_reason() -> None:
    comparison = Comparison("vote")
    comparison.add(Replayed(ref="0-0", id="x", answer=[1, 2], label=[1, 2, 3], has_label=True))
    comparison.add(Replayed(ref="0-1", id="x", answer=[1], label="one", has_label=True))
    assert comparison.unusable_labels == {"label_rows": 1, "label_kind": 1}
    assert (comparison.labelled, comparison.accuracy) == (0, None)


def test_many_kinds_of_refusal_take_no_more_room_than_some() -> None:
    comparison = Comparison("vote")
    for number in range(1_000):
        comparison.add(Replayed(ref=f"0-{number}", id="x", answer=None, refusal=f"row {number}"))
    assert len(comparison.refusals) == 21
    assert comparison.refusals["row 3"].first == "0-3"
    assert comparison.refusals[OTHER_REFUSALS].requests == 980


@given(
    st.lists(st.tuples(st.floats(1e-5, 1e7), st.integers(1, 50)), min_size=1, max_size=60),
    st.sampled_from((0.0, 0.5, 0.9, 0.99, 1.0)),
)
def test_a_quantile_is_within_its_error_of_the_exact_one(added: list[tuple[float, int]], share: float) -> None:
    durations = Durations()
    for ms, weight in added:
        durations.add(ms, weight)
    total = sum(weight for _, weight in added)
    below = itertools.accumulate(weight for _, weight in sorted(added))
    exact = next(ms for (ms, _), weight in zip(sorted(added), below, strict=True) if weight >= share * total)
    found = durations.quantile(share)
    assert found == pytest.approx(exact, rel=RELATIVE_ERROR * (1 + 1e-6))
    assert durations.weight == total


def test_durations_take_bounded_room_and_zero() -> None:
    durations = Durations()
    assert durations.quantile(0.5) is None
    for number in range(20_000):
        durations.add(number / 7)
    assert len(list(durations.bins())) < 1_000
    assert durations.quantile(0.0) == pytest.approx(1e-6, rel=0.01)
