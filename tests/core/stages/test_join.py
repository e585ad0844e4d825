"""The join stage: its rules one by one, then the laws."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from streamserve.core.effects import (
    Continue,
    Effect,
    EmitDeadLetters,
    EmitOutcomes,
    ForwardFeedback,
    Pause,
    Settle,
)
from streamserve.core.events import Drain, Event, FeedbackFetched, ProduceFailed, Revoked, Tick
from streamserve.core.records import OutcomeRecord
from streamserve.core.stages.join import JoinStage
from streamserve.testing.laws import StageLaws, check_laws
from tests.core.stages.learning_case import (
    HOME,
    NOW_MS,
    ack,
    answers,
    answers_fetched,
    assigned,
    counts,
    feedback,
    fetched,
    join_of,
    of_kind,
    only,
    prediction,
    predictions,
)
from tests.effort import examples

WAIT_MS = 10_000


def owning(*partitions: int, **options: Any) -> JoinStage:
    stage = join_of(**options)
    assert stage.handle(assigned(*(partitions or (0,))), NOW_MS) == []
    return stage


def letter(effects: list[Effect]) -> str:
    return only(effects, EmitDeadLetters).letters.reasons[0]


# -- matching ----------------------------------------------------------------------------------------------------


def test_feedback_meets_its_prediction_by_ref_and_is_settled_when_the_outcome_is_acknowledged() -> None:
    stage = owning()
    assert stage.handle(predictions(0, prediction(7)), NOW_MS) == []
    effects = stage.handle(fetched(feedback(0, ref=(0, 7), label=1)), NOW_MS + 1)
    sent = only(effects, EmitOutcomes)
    (outcome,) = sent.outcomes
    assert outcome.losses == {"a@1": 0.0, "b@1": 1.0}
    assert (outcome.to_partition, outcome.ref, outcome.feedback, outcome.open_offset) == (HOME, (0, 7), (0, 0), 0)
    assert counts(effects) == {"matched": 1}
    assert not of_kind(effects, Settle)
    assert not stage.idle
    assert only(stage.handle(ack(sent), NOW_MS + 2), Settle).offsets.tolist() == [0]
    assert stage.idle


def test_a_fetch_gives_one_emission() -> None:
    stage = owning()
    stage.handle(predictions(0, *(prediction(n) for n in range(5))), NOW_MS)
    effects = stage.handle(fetched(*(feedback(n, ref=(0, n)) for n in range(5))), NOW_MS)
    assert [outcome.ref[1] for outcome in only(effects, EmitOutcomes).outcomes] == [0, 1, 2, 3, 4]


def test_feedback_by_id_meets_the_newest_prediction_of_that_id() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1, id_="x"), prediction(2, id_="x")), NOW_MS)
    effects = stage.handle(fetched(feedback(0, id="x")), NOW_MS)
    assert only(effects, EmitOutcomes).outcomes[0].ref == (0, 2)


def test_the_first_terminal_record_of_a_ref_counts() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1), prediction(1, members={"a@1": [9]}, chosen=["a@1"])), NOW_MS)
    effects = stage.handle(fetched(feedback(0, ref=(0, 1))), NOW_MS)
    assert only(effects, EmitOutcomes).outcomes[0].losses == {"a@1": 0.0, "b@1": 1.0}


@pytest.mark.parametrize("by", [{"ref": (0, 1)}, {"id": "0-1"}])
def test_feedback_waits_for_a_prediction_that_comes_later(by: dict[str, Any]) -> None:
    stage = owning()
    assert stage.handle(fetched(feedback(0, **by)), NOW_MS) == []
    assert stage.next_deadline_ms() == NOW_MS + WAIT_MS
    effects = stage.handle(predictions(0, prediction(1)), NOW_MS + 5_000)
    assert counts(effects) == {"matched": 1}
    assert stage.next_deadline_ms() is None


def test_late_members_teach_through_their_answers() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(3, members={"a@1": [1]}, outcome="partial")), NOW_MS)
    blocks = (answers("b@1", [3, 5], [1, 4]), answers("b@1", [3], [9]), answers("a@1", [3], [9]))
    stage.handle(answers_fetched(*blocks, next_offset=2), NOW_MS)
    outcome = only(stage.handle(fetched(feedback(0, ref=(0, 3), label=1)), NOW_MS), EmitOutcomes).outcomes[0]
    assert outcome.losses == {"a@1": 0.0, "b@1": 0.0}  # the first answer of b counts, a's is in the prediction
    assert outcome.decision.members == {"a@1": [1], "b@1": [1]}


def test_a_late_answer_that_is_no_answer_teaches_nothing() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(3, members={"a@1": [1]})), NOW_MS)
    block = replace(answers("b@1", [3], [1], missing=[3]), labels=None, row_starts=np.zeros(2, np.int64))
    stage.handle(answers_fetched(block, next_offset=1), NOW_MS)
    outcome = only(stage.handle(fetched(feedback(0, ref=(0, 3))), NOW_MS), EmitOutcomes).outcomes[0]
    assert outcome.losses == {"a@1": 0.0}


def test_outcomes_carry_the_lowest_open_offset() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1), prediction(2)), NOW_MS)
    effects = stage.handle(fetched(feedback(4, ref=(0, 99)), feedback(5, ref=(0, 1))), NOW_MS)
    assert only(effects, EmitOutcomes).outcomes[0].open_offset == 4


def test_a_record_that_is_fetched_again_is_not_joined_again() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1)), NOW_MS)
    first, second = feedback(0, ref=(0, 1)), feedback(1, ref=(0, 1))
    assert counts(stage.handle(fetched(first), NOW_MS)) == {"matched": 1}
    assert counts(stage.handle(fetched(first, second), NOW_MS)) == {"matched": 1}


# -- what does not match -----------------------------------------------------------------------------------------


def test_an_orphan_is_dead_lettered_after_its_wait_and_settled_when_that_is_acknowledged() -> None:
    stage = owning()
    stage.handle(fetched(feedback(0, ref=(0, 1))), NOW_MS)
    assert stage.handle(Tick(), NOW_MS + WAIT_MS - 1) == []
    effects = stage.handle(Tick(), NOW_MS + WAIT_MS)
    assert counts(effects) == {"orphan": 1}
    sent = only(effects, EmitDeadLetters)
    assert (sent.letters.source, sent.letters.values, sent.letters.offsets.tolist()) == ("feedback", [b"raw"], [0])
    assert only(stage.handle(ack(sent), NOW_MS + WAIT_MS), Settle).offsets.tolist() == [0]
    assert stage.idle


def test_the_wait_goes_on_while_predictions_are_still_being_read() -> None:
    stage = owning()
    stage.handle(fetched(feedback(0, ref=(0, 50))), NOW_MS)
    for turn in range(1, 6):  # a new owner re-reads its window, slowly
        effects = stage.handle(predictions(0, prediction(turn, NOW_MS - 1_000)), NOW_MS + turn * 8_000)
        assert effects == []
    assert counts(stage.handle(predictions(0, prediction(50, NOW_MS - 1)), NOW_MS + 48_000)) == {"matched": 1}


def test_the_wait_is_over_when_much_later_predictions_have_come() -> None:
    stage = owning()
    stage.handle(fetched(feedback(0, ref=(0, 50))), NOW_MS)
    assert stage.handle(predictions(0, prediction(60, NOW_MS + WAIT_MS)), NOW_MS + 1) == []
    assert counts(stage.handle(predictions(0, prediction(61, NOW_MS + WAIT_MS + 1)), NOW_MS + 2)) == {"orphan": 1}


def test_feedback_after_the_window_is_late() -> None:
    stage = owning(window_ms=1_000)
    stage.handle(predictions(0, prediction(1), prediction(2)), NOW_MS)
    effects = stage.handle(fetched(feedback(0, ref=(0, 1), append_ms=NOW_MS + 1_001)), NOW_MS + 1_001)
    assert (counts(effects), letter(effects)) == ({"late": 1}, "late")
    # By now it has been forgotten, and is still told from an orphan.
    stage.handle(fetched(feedback(1, ref=(0, 2), append_ms=NOW_MS + 9_000)), NOW_MS + 9_000)
    effects = stage.handle(Tick(), NOW_MS + 9_000 + WAIT_MS)
    assert (counts(effects), letter(effects)) == ({"late": 1}, "late")


def test_the_window_stands_still_while_no_feedback_comes() -> None:
    """After an outage of an hour, labels of an hour ago still find their predictions."""
    stage = owning(window_ms=1_000)
    stage.handle(predictions(0, prediction(1, NOW_MS)), NOW_MS + 3_600_000)
    effects = stage.handle(fetched(feedback(0, ref=(0, 1), append_ms=NOW_MS + 500)), NOW_MS + 3_600_001)
    assert counts(effects) == {"matched": 1}


def test_the_window_is_bounded_by_bytes() -> None:
    stage = owning(window_bytes=20_000)
    for n in range(500):
        stage.handle(predictions(0, prediction(n), next_offset=n + 1), NOW_MS)
    assert len(stage._partitions[0].store) < 60  # type: ignore[arg-type]
    assert counts(stage.handle(fetched(feedback(0, ref=(0, 499))), NOW_MS)) == {"matched": 1}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ref": None, "id": None}, "no_ref_no_id"),
        ({"reward": math.nan}, "bad_reward"),
        ({"reward": 1.5}, "bad_reward"),
        ({"label": "one"}, "label_kind"),
        ({"label": [1, 2]}, "label_rows"),
        ({"model": "z"}, "unknown_model"),
    ],
)
def test_invalid_feedback_is_dead_lettered_and_counted(fields: dict[str, Any], reason: str) -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1)), NOW_MS)
    effects = stage.handle(fetched(feedback(0, **{"ref": (0, 1), **fields})), NOW_MS)
    assert (counts(effects), letter(effects)) == ({"invalid": 1}, reason)
    assert not of_kind(effects, EmitOutcomes)


@pytest.mark.parametrize(("change", "reason"), [({"route": "gone"}, "unknown_route"), ({}, "prediction_unreadable")])
def test_a_prediction_that_cannot_be_used_makes_its_feedback_invalid(change: dict[str, Any], reason: str) -> None:
    stage = owning()
    record = prediction(1, **change)
    if not change:
        record = type(record)(request_offset=1, append_ms=NOW_MS, id="x", raw=b"not json")
    stage.handle(predictions(0, record), NOW_MS)
    effects = stage.handle(fetched(feedback(0, ref=(0, 1))), NOW_MS)
    assert (counts(effects), letter(effects)) == ({"invalid": 1}, reason)


# -- forwarding --------------------------------------------------------------------------------------------------


def test_feedback_for_another_partition_is_forwarded_once() -> None:
    stage = owning(0, 2)
    effects = stage.handle(fetched(feedback(5, ref=(2, 9))), NOW_MS)
    sent = only(effects, ForwardFeedback)
    assert counts(effects) == {"forwarded": 1}
    assert (sent.forward.to_partition, sent.forward.record.origin, sent.forward.record.value) == (2, (0, 5), b"raw")
    assert only(stage.handle(ack(sent), NOW_MS), Settle).offsets.tolist() == [5]
    stage.handle(predictions(2, prediction(9)), NOW_MS)
    there = feedback(0, partition=2, ref=(2, 9), origin=(0, 5))
    outcome = only(stage.handle(fetched(there), NOW_MS), EmitOutcomes).outcomes[0]
    assert (outcome.feedback, outcome.ref) == ((0, 5), (2, 9))
    # One that comes to a wrong place although it was forwarded does not travel on.
    effects = stage.handle(fetched(feedback(6, ref=(1, 9), origin=(2, 3))), NOW_MS)
    assert (counts(effects), letter(effects)) == ({"orphan": 1}, "orphan")


@pytest.mark.parametrize("partition", [-1, 3, 1 << 40])
def test_a_ref_of_a_partition_that_does_not_exist_is_an_orphan(partition: int) -> None:
    effects = owning().handle(fetched(feedback(0, ref=(partition, 1))), NOW_MS)
    assert counts(effects) == {"orphan": 1}


def test_feedback_without_ref_looks_once_in_each_partition() -> None:
    stage = owning(0, 1, 2)
    now_ms, record, visited = NOW_MS, feedback(0, partition=1, id="lost"), []
    while True:
        visited.append(record.partition)
        stage.handle(fetched(record), now_ms)
        now_ms += WAIT_MS
        effects = stage.handle(Tick(), now_ms)
        if of_kind(effects, EmitDeadLetters):
            break
        forward = only(effects, ForwardFeedback).forward
        fields = {"id": "lost", "origin": forward.record.origin}
        record = feedback(0 if forward.to_partition != 1 else 1, partition=forward.to_partition, **fields)
    assert visited == [1, 2, 0]
    assert counts(effects) == {"orphan": 1}


def test_a_forwarded_record_that_comes_twice_is_joined_once() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1)), NOW_MS)
    first = feedback(0, ref=(0, 1), origin=(2, 8))
    assert counts(stage.handle(fetched(first), NOW_MS)) == {"matched": 1}
    effects = stage.handle(fetched(feedback(1, ref=(0, 1), origin=(2, 8))), NOW_MS)
    assert counts(effects) == {"duplicate": 1}
    assert only(effects, Settle).offsets.tolist() == [1]
    # Another kind, or another record for the same request, is not the same feedback.
    others = feedback(2, ref=(0, 1), origin=(2, 9)), feedback(3, ref=(0, 1), origin=(2, 8), reward=0.5)
    assert counts(stage.handle(fetched(*others), NOW_MS)) == {"matched": 2}


@pytest.mark.parametrize(("later_ms", "known"), [(599_000, True), (601_000, False)])
def test_a_second_copy_of_a_forwarded_record_is_known_beyond_a_short_window(later_ms: int, known: bool) -> None:
    """It comes when its forwarder has been away for longer than the window before it could commit."""
    stage = owning(window_ms=1_000)
    stage.handle(predictions(0, prediction(1)), NOW_MS)
    first = feedback(0, ref=(0, 1), origin=(2, 8))
    assert counts(stage.handle(fetched(first), NOW_MS)) == {"matched": 1}
    later = NOW_MS + later_ms
    stage.handle(fetched(replace(feedback(1, ref=(0, 9)), append_ms=first.append_ms + later_ms)), later)
    again = replace(feedback(2, ref=(0, 1), origin=(2, 8)), append_ms=first.append_ms + later_ms)
    assert counts(stage.handle(fetched(again), later)).get("duplicate", 0) == known


def test_a_new_owner_reads_the_prediction_of_a_request_that_was_answered_late() -> None:
    """After others that are forgotten already, though they came behind it: its feedback is still to come."""
    stage = owning(window_ms=1_000)
    stage.handle(predictions(0, prediction(7), next_offset=40), NOW_MS)
    late = replace(prediction(3), append_ms=NOW_MS + 900)
    stage.handle(predictions(0, late, next_offset=41), NOW_MS + 900)
    stage.handle(fetched(replace(feedback(0, ref=(0, 99)), append_ms=NOW_MS + 1_500)), NOW_MS + 1_500)
    stage.handle(predictions(0, replace(prediction(12), append_ms=NOW_MS + 12_000), next_offset=42), NOW_MS + 1_500)
    assert json.loads(stage.commit_metadata(0))["predictions_from"] == 40


def test_a_new_owner_knows_duplicates_from_what_it_re_reads() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1), next_offset=40), NOW_MS)
    sent = only(stage.handle(fetched(feedback(6, ref=(0, 1), origin=(2, 8))), NOW_MS), EmitOutcomes)
    stage.handle(ack(sent), NOW_MS)
    metadata = stage.commit_metadata(0)
    assert json.loads(metadata) == {"v": 1, "rebuild_from": 6, "predictions_from": 0, "answers_from": 0}

    successor = join_of()
    successor.handle(assigned(0, position=7, metadata=metadata), NOW_MS)
    successor.handle(predictions(0, prediction(1), next_offset=40), NOW_MS)
    assert successor.handle(fetched(feedback(6, ref=(0, 1), origin=(2, 8))), NOW_MS) == []
    assert counts(successor.handle(fetched(feedback(7, ref=(0, 1), origin=(2, 8))), NOW_MS)) == {"duplicate": 1}
    assert successor.idle is True


def test_metadata_names_the_predictions_of_the_window_only() -> None:
    stage = join_of(window_ms=1_000)
    stage.handle(assigned(0, metadata='{"v":1,"rebuild_from":0,"predictions_from":100}'), NOW_MS)
    for turn in range(5):
        stage.handle(predictions(0, prediction(turn, NOW_MS + turn * 1_000), next_offset=110 + turn), NOW_MS)
    assert json.loads(stage.commit_metadata(0))["predictions_from"] == 100
    stage.handle(fetched(feedback(0, ref=(0, 4), append_ms=NOW_MS + 4_100)), NOW_MS + 4_100)
    assert json.loads(stage.commit_metadata(0))["predictions_from"] == 113
    assert stage.commit_metadata(9) == ""


def test_metadata_names_the_answers_that_are_remembered_only() -> None:
    stage = owning(answers_bytes=3_000)
    for turn in range(20):
        block = answers("b@1", [turn], [1])
        stage.handle(answers_fetched(block, next_offset=turn + 1), NOW_MS)
    assert json.loads(stage.commit_metadata(0))["answers_from"] == 16
    stage.handle(predictions(0, prediction(19, members={"a@1": [1]})), NOW_MS)
    outcome = only(stage.handle(fetched(feedback(0, ref=(0, 19))), NOW_MS), EmitOutcomes).outcomes[0]
    assert outcome.losses == {"a@1": 0.0, "b@1": 0.0}


def test_a_commit_before_the_rebuild_leaves_it_to_the_next_owner() -> None:
    stage = join_of()
    metadata = '{"v":1,"rebuild_from":3,"predictions_from":0,"answers_from":0}'
    stage.handle(assigned(0, position=20, metadata=metadata), NOW_MS)
    assert json.loads(stage.commit_metadata(0))["rebuild_from"] == 3


def test_what_is_kept_about_fetches_is_bounded_though_no_feedback_comes() -> None:
    stage = owning(window_bytes=10_000)
    for n in range(500):
        stage.handle(predictions(0, prediction(n), next_offset=n + 1), NOW_MS)
    assert len(stage._partitions[0]._fetches) < 30
    assert json.loads(stage.commit_metadata(0))["predictions_from"] > 470


# -- failures, pauses, ownership -----------------------------------------------------------------------------------


def test_what_the_broker_did_not_take_is_sent_again_one_by_one_with_growing_pauses() -> None:
    stage = owning(retry_ms=200)
    stage.handle(predictions(0, prediction(1), prediction(2)), NOW_MS)
    sent = only(stage.handle(fetched(feedback(0, ref=(0, 1)), feedback(1, ref=(0, 2))), NOW_MS), EmitOutcomes)
    assert stage.handle(ProduceFailed(token=sent.token, error="broker gone"), NOW_MS) == []
    assert stage.next_deadline_ms() == NOW_MS + 200
    again = of_kind(stage.handle(Tick(), NOW_MS + 200), EmitOutcomes)
    assert [len(effect.outcomes) for effect in again] == [1, 1]
    assert only(stage.handle(ack(again[1]), NOW_MS + 200), Settle).offsets.tolist() == [1]
    stage.handle(ProduceFailed(token=again[0].token, error="broker gone"), NOW_MS + 200)
    assert stage.next_deadline_ms() == NOW_MS + 600


def test_an_outcome_that_is_refused_for_ever_becomes_a_dead_letter() -> None:
    stage = owning(give_up_ms=1_000)
    stage.handle(predictions(0, prediction(1)), NOW_MS)
    sent: Any = only(stage.handle(fetched(feedback(0, ref=(0, 1))), NOW_MS), EmitOutcomes)
    now_ms = NOW_MS
    while isinstance(sent, EmitOutcomes):
        stage.handle(ProduceFailed(token=sent.token, error="too large"), now_ms)
        now_ms = stage.next_deadline_ms() or 0
        (sent,) = stage.handle(Tick(), now_ms)
    assert sent.letters.reasons == ["not_produced"]
    assert now_ms < NOW_MS + 10_000
    assert only(stage.handle(ack(sent), now_ms), Settle).offsets.tolist() == [0]


def test_fetching_pauses_while_too_much_waits() -> None:
    stage = owning(max_waiting=4)
    effects = stage.handle(fetched(*(feedback(n, ref=(0, n)) for n in range(5))), NOW_MS)
    assert only(effects, Pause) == Pause(source="feedback", partitions=(0,))
    effects = stage.handle(predictions(0, *(prediction(n) for n in range(3))), NOW_MS)
    assert only(effects, Continue) == Continue(source="feedback", partitions=(0,))


def test_no_more_is_read_while_too_much_is_not_in_the_log() -> None:
    stage = owning(max_unacknowledged=3)
    stage.handle(predictions(0, *(prediction(n) for n in range(4))), NOW_MS)
    effects = stage.handle(fetched(*(feedback(n, ref=(0, n)) for n in range(3))), NOW_MS)
    sent = only(effects, EmitOutcomes)
    assert not stage.takes_more
    assert stage.fills()["unacknowledged_feedback"] == (3, 3)
    stage.handle(ProduceFailed(token=sent.token, error="no"), NOW_MS)
    assert not stage.takes_more  # they are to be sent again
    (first, *_) = of_kind(stage.handle(Tick(), NOW_MS + 10_000), EmitOutcomes)
    stage.handle(ack(first), NOW_MS + 10_000)
    assert stage.takes_more


def test_of_forwarded_records_the_oldest_are_forgotten_above_the_bound() -> None:
    stage = owning(max_remembered=2)
    stage.handle(predictions(0, *(prediction(n) for n in range(3))), NOW_MS)
    forwarded = [feedback(n, ref=(0, n), origin=(1, n)) for n in range(3)]
    stage.handle(fetched(*forwarded), NOW_MS)
    assert stage.fills()["remembered_feedback"] == (2, 2)
    again = [replace(record, offset=record.offset + 3) for record in forwarded]
    assert counts(stage.handle(fetched(again[1], again[2]), NOW_MS)) == {"duplicate": 2}
    assert counts(stage.handle(fetched(replace(again[0], offset=6)), NOW_MS)) == {"matched": 1}  # it counts twice


def test_nothing_is_sent_for_a_revoked_partition() -> None:
    stage = owning(0, 1)
    stage.handle(predictions(0, prediction(1)), NOW_MS)
    sent = only(stage.handle(fetched(feedback(0, ref=(0, 1)), feedback(1, ref=(0, 5))), NOW_MS), EmitOutcomes)
    assert stage.handle(Revoked(partitions=(0,)), NOW_MS) == []
    assert stage.handle(ack(sent), NOW_MS) == []
    assert stage.handle(fetched(feedback(2, ref=(0, 1))), NOW_MS) == []
    assert stage.handle(predictions(0, prediction(5)), NOW_MS) == []
    assert stage.next_deadline_ms() is None
    assert stage.idle


def test_a_drained_stage_leaves_what_waits_to_the_next_owner() -> None:
    stage = owning()
    stage.handle(predictions(0, prediction(1)), NOW_MS)
    sent = only(stage.handle(fetched(feedback(0, ref=(0, 1)), feedback(1, ref=(0, 5))), NOW_MS), EmitOutcomes)
    assert stage.handle(Drain(), NOW_MS) == []
    assert not stage.idle
    assert stage.handle(fetched(feedback(2, ref=(0, 1))), NOW_MS) == []
    assert only(stage.handle(ack(sent), NOW_MS), Settle).offsets.tolist() == [0]
    assert stage.idle
    assert stage.next_deadline_ms() is None


def test_an_event_of_another_role_is_a_bug() -> None:
    with pytest.raises(TypeError, match="join"):
        join_of().handle(object(), NOW_MS)  # type: ignore[arg-type]


# -- laws --------------------------------------------------------------------------------------------------------

SEED = st.tuples(
    st.sampled_from(["feedback", "feedback", "predictions", "answers", "revoke"]),
    st.integers(0, 1),  # partition
    st.lists(
        st.tuples(st.integers(-1, 3), st.integers(0, 8), st.sampled_from(["ref", "id", "forwarded", "bad"])),
        min_size=1,
        max_size=4,
    ),
)


def own(outcomes: Iterable[OutcomeRecord]) -> list[tuple[int, int]]:
    """Feedback of outcomes, by its place; forwarded records name their origin, of which there may be several copies:
    those are left to other checks."""
    return [outcome.feedback for outcome in outcomes if outcome.feedback[0] == outcome.ref[0]]


class JoinLaws(StageLaws):
    """Two of three partitions are owned; refs point everywhere, some twice."""

    def new_stage(self) -> JoinStage:
        return join_of(wait_ms=40, window_ms=200, max_waiting=3, retry_ms=20, give_up_ms=100)

    def seeds(self) -> st.SearchStrategy[Any]:
        return SEED

    def first_events(self) -> list[Event]:
        self.next_offsets = {0: 0, 1: 0}
        self.in_the_log: set[tuple[int, int]] = set()
        return [assigned(0, 1)]

    def event_of(self, seed: Any) -> Event | None:
        kind, partition, items = seed
        if kind == "feedback":
            return fetched(*(self.record(partition, *item) for item in items))
        if kind == "predictions":
            records = [prediction(offset, self.now_ms - 5) for _, offset, _ in items]
            return predictions(partition, *records)
        if kind == "answers":
            blocks = tuple(answers("b@1", [offset], [1]) for _, offset, _ in items)
            return answers_fetched(*blocks, partition=partition, next_offset=1)
        self.give(Revoked(partitions=(partition,)))
        self.in_the_log.clear()  # the next owner reads the feedback again
        for token in [token for token, sent in self.unacknowledged.items() if self.is_of(sent, partition)]:
            del self.unacknowledged[token]
        return assigned(partition, position=self.next_offsets[partition])

    def record(self, partition: int, target: int, offset: int, kind: str) -> Any:
        mine = self.next_offsets[partition]
        self.next_offsets[partition] += 1
        fields = {
            "ref": {"ref": (target, offset)},
            "id": {"id": f"0-{offset}"},
            "forwarded": {"ref": (partition, offset), "origin": (2, offset)},
            "bad": {"ref": (partition, offset), "label": [1, 2, 3]},
        }[kind]
        return feedback(mine, partition=partition, append_ms=self.now_ms, **fields)

    def opens(self, event: Event) -> list[tuple[int, int]]:
        if not isinstance(event, FeedbackFetched):
            return []
        return [(record.partition, record.offset) for record in event.feedback.records]

    def carries(self, effect: Effect) -> list[tuple[int, int]]:
        match effect:
            case EmitOutcomes():
                return own(effect.outcomes)
            case EmitDeadLetters():
                return [(effect.letters.partition, offset) for offset in effect.letters.offsets.tolist()]
            case ForwardFeedback():
                return [(effect.forward.record.partition, effect.forward.record.offset)]
            case _:
                return []

    def failure(self, token: int, effect: Effect) -> Event:
        """Of some the first half is in the log all the same: none of that is sent again."""
        written: dict[int, int] = {}
        if isinstance(effect, EmitOutcomes) and token % 2:
            half = effect.outcomes[: (len(effect.outcomes) + 1) // 2]
            written = {half[0].to_partition: len(half)}
            self.in_the_log.update(own(half))
        return ProduceFailed(token=token, error="not taken", written=written)

    def is_of(self, effect: Effect, partition: int) -> bool:
        match effect:
            case EmitOutcomes():
                return effect.outcomes[0].ref[0] == partition
            case EmitDeadLetters():
                return effect.letters.partition == partition
            case ForwardFeedback():
                return effect.forward.record.partition == partition
            case _:
                return False

    def check(self, event: Event, effects: list[Effect]) -> None:
        """No orphan before its wait; nothing forwarded twice by ref; refs of outcomes are the feedback's."""
        for bound in ("window_bytes", "window_answers_bytes", "remembered_feedback"):
            fill = self.stage.fills()[bound]
            assert fill.used <= fill.limit, f"{bound}: {fill}"
        for sent in of_kind(effects, EmitDeadLetters):
            for reason, append_ms in zip(sent.letters.reasons, sent.letters.append_ms.tolist(), strict=True):
                named_here = sent.letters.details[0].startswith("no prediction")
                assert reason != "orphan" or not named_here or self.now_ms >= append_ms + 40
        for outcomes in of_kind(effects, EmitOutcomes):
            assert len({outcome.to_partition for outcome in outcomes.outcomes}) == 1, (
                "what fails in part, fails by place"
            )
            again = self.in_the_log & set(own(outcomes.outcomes))
            assert not again, f"in the log, and sent again: {again}"
        for forward in of_kind(effects, ForwardFeedback):
            assert forward.forward.to_partition != forward.forward.record.partition
            assert forward.forward.record.origin is not None


class TightLaws(JoinLaws):
    """Windows of two predictions; of duplicates the newest is known."""

    def new_stage(self) -> JoinStage:
        bounds = {"window_bytes": 1_500, "answers_bytes": 2_000, "max_remembered": 1, "max_unacknowledged": 1}
        return join_of(wait_ms=40, window_ms=200, max_waiting=1, retry_ms=20, give_up_ms=100, **bounds)


@pytest.mark.parametrize("case", [JoinLaws, TightLaws])
def test_the_join_keeps_the_laws(case: type[JoinLaws]) -> None:
    check_laws(case, examples=examples(60), steps=30)
