"""What a record changes is counted once, whatever the process dies of."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.contexts import ContextRule
from streamserve.core.records import OutcomeRecord
from streamserve.core.routes import Route
from streamserve.core.selection.static import Static
from streamserve.insights.cells import Cell, Row
from streamserve.insights.drift import DriftRule
from streamserve.insights.slices import InsightRules, Key, Slice, likeness, served_loss
from tests.effort import examples
from tests.insights.kit import MODELS, RULES, apply, decision, outcome, written_by

Record = tuple[str, int, int, Any]
"""Source, offset, append time, and what it says."""


def read(slice_: Slice, record: Record) -> None:
    source, offset, append_ms, said = record
    if source == "predictions":
        slice_.prediction(offset, append_ms, *said)
    else:
        slice_.outcome(said, offset, append_ms)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Both topics of a partition as they come, some records a second time (another offset, the same ref)."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    records: list[Record] = []
    offsets = {"predictions": 0, "outcomes": 0}
    for at in range(draw(st.integers(1, 200))):
        source = chance.choice(list(offsets))
        offset, append_ms = offsets[source], 1_000 + 100 * at
        offsets[source] += chance.choice((1, 1, 1, 2))
        said: Any
        if source == "predictions":
            ref = chance.randrange(90)
            said = (ref, decision(outcome=chance.choice(("ok", "partial")), label=[chance.randrange(2)]))
        else:
            said = outcome(
                offset,
                feedback=(0, chance.randrange(300)),
                append_ms=append_ms,
                prediction_ms=append_ms - chance.randrange(900),
                feedback_ms=append_ms,
                losses={"a@1": float(chance.random() < at / 200), "b@1": 1.0},
            )
        records.append((source, offset, append_ms, said))
    return records


EAGER = replace(RULES, drift=DriftRule(threshold=0.5, tolerance=0.0))


@settings(max_examples=examples(60), deadline=None)
@given(log=logs(), seed=st.integers(0, 1 << 32))
def test_whatever_it_dies_of_each_record_counts_once(log: list[Record], seed: int) -> None:
    """Killed in any step of a write, of which any part is in the changelog; offsets committed behind the mark."""
    chance = random.Random(seed)
    whole = Slice(EAGER)
    for record in log:
        read(whole, record)
    held: dict[Key, bytes] = {}
    committed = at = 0
    slice_ = Slice(EAGER)
    while at < len(log):
        for record in log[at : (at := at + chance.randrange(1, 12))]:
            read(slice_, record)
        steps = slice_.changes().steps
        if chance.random() < 0.5:
            for step in steps:
                apply(step, held)
            committed = at if chance.random() < 0.7 else committed
            continue
        for step in steps[: (cut := chance.randrange(len(steps) + 1))]:
            apply(step, held)
        for step in steps[cut : cut + 1]:
            apply({key: value for key, value in step.items() if chance.random() < 0.5}, held)
        at, slice_ = committed, Slice(EAGER, held)
    assert slice_.cells == whole.cells
    assert slice_.left_out == whole.left_out
    written_by(slice_, held)
    again = Slice(EAGER, held)
    assert again.cells == whole.cells
    for record in log:
        read(again, record)
    assert again.cells == whole.cells


def test_the_first_record_of_a_ref_counts() -> None:
    slice_ = Slice(RULES)
    slice_.prediction(0, 1_000, 7, decision())
    slice_.prediction(1, 1_000, 7, decision(outcome="expired"))
    slice_.prediction(2, 1_000, None, None)
    assert slice_.cells[Row("main", "", "", 1_000)].outcomes == {"ok": 1}
    assert slice_.left_out == {"second_prediction": 1, "unreadable_prediction": 1}


def test_a_model_is_counted_for_what_it_was_chosen_for() -> None:
    slice_ = Slice(RULES)
    slice_.prediction(0, 1_000, 0, decision())
    slice_.prediction(1, 1_999, 1, decision(chosen=("a@1",), members={}, label=None, outcome="expired"))
    route, a, b = (slice_.cells[Row("main", model, "", 1_000)] for model in ("", *MODELS))
    assert (route.predictions, a.predictions, b.predictions) == (2, 2, 1)
    assert (route.answered, a.answered, b.answered) == (1, 1, 1)
    assert (route.agreement, a.agreement, b.agreement) == ([0.5, 1], [1.0, 1], [0.0, 1])


def test_feedback_changes_the_window_of_what_it_speaks_of() -> None:
    slice_ = Slice(RULES)
    slice_.outcome(outcome(0, prediction_ms=1_000, feedback_ms=61_000), 0, 61_000)
    slice_.outcome(outcome(1, feedback=(0, 0)), 1, 61_000)
    cell = slice_.cells[Row("main", "b@1", "", 1_000)]
    assert (cell.feedback, cell.loss, sum(cell.delays.values())) == (1, [1.0, 1], 1)
    assert slice_.left_out == {"second_outcome": 1}


def test_an_outcome_of_an_older_release_has_no_delay() -> None:
    slice_ = Slice(RULES)
    slice_.outcome(outcome(0, prediction_ms=-1, feedback_ms=5_100), 0, 5_200)
    assert slice_.cells[Row("main", "", "", 5_000)].delays == {}


def test_predictions_count_in_every_level_of_their_context() -> None:
    route = Route(name="main", models=MODELS, policy=Static(), combine="vote", deadline_ms=100, contexts=ContextRule())
    slice_ = Slice(replace(RULES, routes={"main": route}))
    slice_.prediction(0, 1_000, 0, decision(context="eu/alice"))
    assert {row.context for row in slice_.cells} == {"", "eu", "eu/alice"}


def test_keys_have_no_rows_of_their_own() -> None:
    route = Route(
        name="main", models=MODELS, policy=Static(), combine="vote", deadline_ms=100, contexts=ContextRule(keyed=True)
    )
    slice_ = Slice(replace(RULES, routes={"main": route}))
    slice_.prediction(0, 1_000, 0, decision(context="eu//alice"))
    slice_.outcome(outcome(0, context="eu//alice"), 0, 1_600)
    slice_.outcome(outcome(1, context="eu", primary=False, feedback=(0, 0)), 1, 1_600)
    assert {row.context: cell.feedback for row, cell in slice_.cells.items() if row.model == ""} == {"": 0, "eu": 1}


def test_what_needs_more_rows_than_there_may_be_is_left_out() -> None:
    slice_ = Slice(InsightRules(routes={}, window_ms=1_000, most_cells=3))
    slice_.prediction(0, 1_000, 0, decision())
    slice_.prediction(1, 2_000, 1, decision())
    assert len(slice_.cells) == 3
    assert slice_.left_out == {"too_many_rows": 3}


def test_a_closed_window_leaves_the_changelog_last_and_is_not_opened_again() -> None:
    held: dict[Key, bytes] = {}
    slice_ = Slice(RULES)
    slice_.prediction(0, 1_000, 0, decision())
    written_by(slice_, held)
    slice_.close([Row("main", model, "", 1_000) for model in ("", *MODELS)], 2_000)
    *_, marked, gone = slice_.changes().steps
    assert set(marked) == {("mark",)}
    assert set(gone) == {("cell", "main", model, "", 1_000) for model in ("", *MODELS)}
    apply(marked, held)
    apply(gone, held)
    again = Slice(RULES, held)
    again.prediction(1, 1_500, 1, decision())
    assert (again.cells, again.left_out) == ({}, {"window_closed": 3})


def test_a_rise_of_losses_raises_the_alarm_in_its_window() -> None:
    slice_ = Slice(RULES)
    for offset in range(400):
        wrong = 1.0 if offset >= 200 else 0.0
        at = {"losses": {"a@1": wrong, "b@1": 1.0}, "prediction_ms": 1_000 + 10 * offset, "feedback_ms": 9_000 + offset}
        slice_.outcome(outcome(offset, **at), offset, 10_000)
    alarms = {(row.model, row.from_ms): cell.alarm_ms for row, cell in slice_.cells.items() if cell.alarms}
    assert alarms == {("a@1", 3_000): 9_222}


@pytest.mark.parametrize(
    ("combine", "answer", "served", "expected"),
    [
        ("vote", [1, 2], [1, 3], 0.5),
        ("mean", [1.0], [3.0], pytest.approx(0.5)),
        ("vote", None, [1], None),
        ("vote", [1], None, None),
        ("vote", [], [], None),
        ("vote", [1, 2], [1], None),
    ],
)
def test_likeness(combine: str, answer: Any, served: Any, expected: float | None) -> None:
    assert likeness(combine, answer, served) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0.0),
        ({"label": 0}, 1.0),
        ({"decision": decision(label=None)}, None),
        ({"decision": decision(label=None, withheld=[1])}, 0.0),
        ({"decision": decision(label=[1, 0]), "label": [1, 1]}, 0.5),
        ({"label": [1, 2, 3]}, None),
        ({"has_label": False, "reward": 0.25, "losses": {}}, 0.75),
        ({"has_label": False, "reward": 0.25, "losses": {"a@1": 0.75}}, None),
        ({"has_label": False, "reward": 0.25, "losses": {"a@1": 0.75}, "decision": decision(chosen=("a@1",))}, 0.75),
        ({"has_label": False, "reward": 0.25, "losses": {}, "decision": decision(outcome="default")}, None),
    ],
)
def test_the_loss_of_what_was_served(fields: dict[str, Any], expected: float | None) -> None:
    record: OutcomeRecord = outcome(0, **fields)
    assert served_loss("vote", record) == expected


def test_a_cell_is_written_small() -> None:
    assert Cell() == Cell(predictions=0)
