from __future__ import annotations

from streamserve.core.epochs import outcome_partition
from streamserve.insights.board import SLACK_MS, Board
from streamserve.insights.cells import Row
from streamserve.insights.slices import Slice
from streamserve.insights.web import Question, view
from tests.insights.kit import MODELS, RULES, decision, outcome

JOIN_WINDOW_MS = 10_000
KEPT_MS = 1_000 + JOIN_WINDOW_MS + SLACK_MS
DRAINED = {0: (True, True), 1: (True, True)}


def board() -> Board:
    made = Board(RULES, 2, JOIN_WINDOW_MS)
    made.slices = {0: Slice(RULES), 1: Slice(RULES)}
    return made


def test_a_row_is_the_sum_over_partitions() -> None:
    made = board()
    for number in (0, 1, 1):
        made.slices[number].prediction(10 * len(made.slices[number].cells), 1_000, number + 10, decision())
    made.slices[1].outcome(outcome(0), 0, 1_600)
    value = made.row(Row("main", "b@1", "", 1_000))
    assert (value.predictions, value.feedback, value.accuracy) == (2, 1, 0.0)


def test_a_turn_tells_what_has_changed_since_the_last() -> None:
    made = board()
    made.slices[0].prediction(0, 1_000, 0, decision())
    assert {row.model for row in made.turn(DRAINED).rows} == {"", *MODELS}
    assert made.turn(DRAINED).rows == {}
    made.slices[1].prediction(0, 1_000, 0, decision(chosen=("a@1",)))
    rows = made.turn(DRAINED).rows
    assert {row.model: value.predictions for row, value in rows.items()} == {"": 2, "a@1": 2}


def test_a_window_is_over_when_no_feedback_can_come_for_it() -> None:
    made = board()
    made.slices[0].prediction(0, 1_000, 0, decision())
    made.turn(DRAINED)
    made.slices[1].prediction(0, 1_000 + KEPT_MS, 0, decision())
    assert not any(value.final for value in made.turn(DRAINED).rows.values())
    made.slices[1].prediction(1, 1_001 + KEPT_MS, 1, decision())
    turn = made.turn(DRAINED)
    over = {row: value for row, value in turn.rows.items() if value.final}
    assert {row.from_ms for row in over} == {1_000}
    assert all(value.predictions == 1 for value in over.values())
    gone = made.turn(DRAINED).changes[0].gone
    assert set(gone) == {("cell", "main", model, "", 1_000) for model in ("", *MODELS)}


def test_what_is_behind_keeps_windows_open() -> None:
    made = board()
    made.slices[0].prediction(0, 1_000, 0, decision())
    made.slices[1].prediction(0, 9_000 + KEPT_MS, 0, decision())
    behind = {0: (True, False), 1: (True, True)}
    assert not any(value.final for value in made.turn(behind).rows.values())
    made.slices[0].outcome(outcome(0), 0, 8_000 + KEPT_MS)
    rows = made.turn(behind).rows
    assert {value.feedback for value in rows.values() if value.final} == {1}


def test_nothing_is_over_where_nothing_was_read() -> None:
    made = board()
    assert made.turn({}).rows == {}
    assert made.closing_ms(DRAINED) < 0


def test_a_row_has_one_home() -> None:
    assert board().home(Row("main", "a@1", "eu", 1)) == outcome_partition("main", "eu", 2)


def test_the_page_shows_the_newest_windows_of_what_is_asked_for() -> None:
    made = board()
    for at in range(12):
        made.slices[0].prediction(at, 1_000 * at, at, decision())
    made.slices[0].prediction(12, 11_000, 0, decision())
    page = view("app", made, Question.of({"model": "a@1", "windows": "2"}))
    assert [row.from_ms for row in page["rows"]] == [11_000, 10_000]
    assert {row.model for row in page["rows"]} == {"a@1"}
    assert page["left_out"] == {"second_prediction": 1}
    assert len(view("app", made, Question.of({"windows": "no number"}))["rows"]) == 30
    assert view("app", made, Question.of({"route": "other"}))["rows"] == []
    assert {row.model for row in view("app", made, Question.of({"model": ""}))["rows"]} == {""}
