from __future__ import annotations

import numpy as np
import pytest

from streamserve.core.bounds import Bounds
from streamserve.core.effects import Count, EmitAnswers, RunBatch
from streamserve.core.events import BatchFinished, Revoked, Tick
from streamserve.core.messages import Outputs
from streamserve.core.reasons import Missing
from streamserve.core.selection.hedge import Hedge
from streamserve.core.stages.aggregator import EARLY_WAIT_MS
from streamserve.core.stages.fused import FusedStage
from tests.core.kit import (
    CODECS,
    START_MS,
    World,
    app,
    assigned,
    epochs,
    finished,
    model_rules,
    of,
    requests,
    route,
)


def world(rules=None, run=finished, **model_changes) -> World:
    rules = rules or app()
    stage = FusedStage(rules, model_rules(rules, **model_changes), CODECS, epochs(rules))
    made = World(stage, run)
    made.feed(assigned(0, 1))
    return made


def test_every_request_is_answered_once_and_settled() -> None:
    w = world()
    w.feed(requests([b"a:1,2", b"b:3,4", b":5,6"]))
    assert [w.outcome(i) for i in range(3)] == [("ok", "all_answered")] * 3
    assert [w.labels(i) for i in range(3)] == [[1], [3], [5]]
    assert w.records[0, 0][0].ids == ["a", "b", None]
    assert sorted(w.settled) == [(0, 0), (0, 1), (0, 2)]
    assert w.stage.idle


def test_a_request_of_many_rows_is_split_and_answered_once_in_order() -> None:
    w = world(max_batch=4, batching="fixed", batch_size=4)
    rows = b"big:" + b";".join(b"%d,0" % i for i in range(11))
    w.feed(requests([b"small:7,7", rows, b"after:9,9"]))
    assert w.labels(1) == list(range(11))
    assert w.labels(0) == [7]
    assert w.labels(2) == [9]
    assert max(len(batch.inputs) for batch in w.batches) <= 4
    assert len(w.settled) == 3


def test_requests_share_batches_while_a_call_is_running() -> None:
    held: list[RunBatch] = []

    def hold(effect: RunBatch) -> BatchFinished | None:
        held.append(effect)
        return None

    w = world(run=hold)
    w.feed(requests([b":1,1"]))
    w.feed(requests([b":2,2", b":3,3"], first=1))
    w.feed(requests([b":4,4"], first=3, partition=1))
    assert len(held) == 1
    w.feed(finished(held[0]))
    assert [len(effect.inputs) for effect in held] == [1, 3]
    w.feed(finished(held[1]))
    assert len(w.records) == 4


@pytest.mark.parametrize(
    ("value", "reason"), [(None, "not_json"), (b"x:not numbers", "not_json"), (b"\xff\xfe", "not_json")]
)
def test_a_bad_value_gets_its_error_and_a_dead_letter_and_stops_nobody(value, reason) -> None:
    w = world()
    w.feed(requests([b"a:1,2", value, b"b:3,4"]))
    assert w.outcome(1) == ("error", reason)
    assert w.labels(0) == [1]
    assert w.labels(2) == [3]
    assert [letter.offsets.tolist() for letter in w.letters] == [[1]]
    assert w.letters[0].values == [value]
    assert len(w.settled) == 3


def test_rows_of_another_shape_are_not_in_the_same_batch() -> None:
    w = world(trailing_shape=(2,))
    w.feed(requests([b":1,2", b":1,2,3", b":3,4"]))
    assert w.outcome(1) == ("error", "wrong_shape")
    assert "takes rows of [2]" in w.records[0, 1][0].details[0]
    assert w.labels(2) == [3]


def test_each_request_is_told_of_its_own_rows() -> None:
    w = world(trailing_shape=(2,), takes_text=False)
    w.feed(requests([b":1,2,3", b":1", b":1,2", b":1,2,3,4", b":1,2,3"]))
    said = {offset: w.records[0, offset][0].details for offset in range(5)}
    told = {offset: words[w.records[0, offset][1]] for offset, words in said.items() if words}
    assert told == {
        offset: f"a@1: a@1 takes rows of [2] numbers, this request has rows of [{width}] numbers"
        for offset, width in ((0, 3), (1, 1), (3, 4), (4, 3))
    }


def test_a_bad_row_is_found_by_bisecting() -> None:
    def refuses_13(effect: RunBatch) -> BatchFinished:
        if (effect.inputs[:, 0] == 13).any():
            return BatchFinished(batch=effect.batch, outputs=None, error="no thirteens", duration_ms=1.0)
        return finished(effect)

    w = world(run=refuses_13)
    w.feed(requests([b":%d,0" % i for i in range(16)]))
    assert w.outcome(13) == ("error", "refused")
    assert [w.labels(i) for i in range(16) if i != 13] == [[i] for i in range(16) if i != 13]
    assert sum(len(letter.offsets) for letter in w.letters) == 1
    assert len(w.batches) <= 2 + 2 * 5
    assert "no thirteens" in w.records[0, 13][0].details[0]


def test_a_model_that_always_fails_is_not_taken_for_poison() -> None:
    def broken(effect: RunBatch) -> BatchFinished:
        return BatchFinished(batch=effect.batch, outputs=None, error="out of order", duration_ms=1.0)

    w = world(app(route(default=-1, has_default=True)), run=broken)
    w.feed(requests([b":%d,0" % i for i in range(200)]))
    assert len(w.batches) < 40
    assert {w.outcome(i) for i in range(200)} == {("default", "all_members_failed")}
    assert w.labels(5) == [-1]
    assert not w.letters


def test_without_a_default_a_failed_model_is_an_error_without_dead_letter() -> None:
    def broken(effect: RunBatch) -> BatchFinished:
        return BatchFinished(batch=effect.batch, outputs=None, error="out of order", duration_ms=1.0)

    w = world(run=broken)
    w.feed(requests([b":%d,0" % i for i in range(50)]))
    assert {w.outcome(i) for i in range(50)} == {("error", "all_members_failed")}
    assert not w.letters


@pytest.mark.parametrize(
    ("outputs", "outcome"),
    [
        (Outputs(labels=np.array([1.0])), ("error", "all_members_failed")),
        (Outputs(labels=np.array([1.0, np.nan, 3.0])), ("error", "all_members_failed")),
    ],
)
def test_wrong_outputs_are_missing_answers(outputs, outcome) -> None:
    w = world(run=lambda effect: BatchFinished(batch=effect.batch, outputs=outputs, duration_ms=1.0))
    w.feed(requests([b":1,1", b":2,2", b":3,3"]))
    assert w.outcome(1) == outcome


def test_a_row_that_the_model_refuses_costs_its_request_only() -> None:
    w = world(run=lambda effect: finished(effect, row_errors={1: "too old"}))
    w.feed(requests([b":1,1", b":2,2", b":3,3"]))
    assert w.outcome(1) == ("error", "refused")
    assert w.records[0, 1][0].details == {0: "a@1: too old"}
    assert w.labels(2) == [3]


def test_a_call_that_never_returns_leaves_nobody_without_an_answer() -> None:
    w = world(app(route(default=7, has_default=True), guard_ms=10), run=lambda _: None)
    w.feed(requests([b"a:1,1", b"b:2,2"]))
    w.feed(requests([b"c:3,3"], first=2))
    w.at(89)
    assert not w.records
    w.at(90)
    assert [w.outcome(i) for i in range(3)] == [("default", "no_answer_in_time")] * 3
    assert w.labels(2) == [7]
    w.at(200)
    assert w.stage.idle
    assert len(w.settled) == 3


def test_a_value_that_was_shed_unread_and_cannot_be_used_is_an_error_all_the_same() -> None:
    w = world(app(route(default=-1, has_default=True), guard_ms=10), run=lambda _: None)
    w.feed(requests([b":1,1"]))  # the model never returns
    w.feed(requests([b"junk", None, b"me:2,2"], first=1))
    w.at(100)
    assert [w.outcome(offset) for offset in range(4)] == [
        ("default", "no_answer_in_time"),
        ("error", "not_json"),
        ("error", "not_json"),
        ("default", "no_answer_in_time"),
    ]
    assert sorted(offset for letters in w.letters for offset in letters.offsets.tolist()) == [1, 2]
    block, i = w.records[0, 3]
    assert block.ids[i] == "me"


def test_an_answer_larger_than_a_record_is_missing_and_costs_nobody_else() -> None:
    def run(effect: RunBatch) -> BatchFinished:
        if effect.model == "a@1":
            return finished(effect, np.zeros((len(effect.inputs), 1_100_000)))
        return finished(effect)

    w = world(app(route(("a@1", "b@1"))), run=run)
    w.feed(requests([b":1,1", b":2,2"]))
    assert [w.outcome(offset) for offset in (0, 1)] == [("partial", "members_missing")] * 2
    assert (w.labels(0), w.labels(1)) == ([1], [2])
    block, i = w.records[0, 0]
    assert [str(Missing(code)) for code in block.missing[i].tolist()] == ["output_too_large", "present"]


def test_a_backlog_is_left_in_the_log_only_when_no_model_has_room() -> None:
    rules = app(route(("a@1",), name="r"), route(("a@1", "b@1"), name="s"), bounds=Bounds(queue_requests=20))
    w = world(rules, run=lambda _: None)
    for step in range(2):
        assert w.stage.takes_more
        w.feed(requests([b":1,1"] * 40, first=step * 100, headers=(("ss-route", b"r"),)))
    assert w.stage.takes_more  # b has nothing to do: a hanging model must not starve it
    w.feed(requests([b":1,1"] * 40, first=200, headers=(("ss-route", b"s"),)))
    assert not w.stage.takes_more
    w.at(200)
    assert w.stage.takes_more


def test_a_model_that_hangs_holds_up_nobody_and_no_more_than_its_bound() -> None:
    """Others have room, so reading goes on: what comes to the full queue is answered without this model at once."""
    bounds = Bounds(queue_requests=20, fetched_records=10)
    w = world(app(route(("a@1", "b@1")), bounds=bounds), run=lambda e: None if e.model == "a@1" else finished(e))
    for step in range(5):
        assert w.stage.takes_more
        w.feed(requests([b":1,1"] * 20, first=step * 20))
    assert w.stage.fills()["queue_requests"] == (40, 40)
    shed = [effect for effect in of(w.other, Count) if effect.what == "shed"]
    assert {(effect.model, effect.label) for effect in shed} == {("a@1", "full")}
    assert sum(effect.n for effect in shed) == len(w.records) == 100 - len(w.batches[0].inputs) - 40
    assert w.outcome(99) == ("partial", "members_missing")


def test_a_queue_is_bounded_by_the_bytes_of_its_bodies_too() -> None:
    bounds = Bounds(queue_bytes=100, fetched_bytes=50)
    w = world(app(bounds=bounds), run=lambda _: None)
    w.feed(requests([b"call:1,1"]))
    w.feed(requests([b"x" * 36 + b":1,1"] * 2, first=1))
    assert w.stage.takes_more
    w.feed(requests([b"x" * 36 + b":1,1"] * 4, first=3))
    assert not w.stage.takes_more
    assert w.stage.fills()["queue_bytes"] == (200, 200)
    assert w.outcome(6) == ("expired", "shed")


@pytest.mark.slow
def test_bodies_are_let_go_behind_a_request_that_waits_long() -> None:
    w = world(run=lambda e: None if (e.inputs[:, 0] == 9).any() else finished(e), batching="none")
    w.feed(requests([b":9,9"], headers=(("ss-deadline-ms", b"50000"),)))
    kept = [w.stage._worker._table, w.stage._aggregator._window.table]
    for step in range(1, 12):
        w.feed(requests([b":1,1"] * 1_000, first=step * 1_000, append_ms=w.now_ms - 200))
    assert len(kept[1]) > 10_000
    assert sum(value is not None for value in kept[1].lists["values"]) <= 5_000


def test_late_on_arrival_is_expired_not_defaulted_and_not_run() -> None:
    w = world(app(route(default=7, has_default=True)))
    w.feed(requests([b"a:1,1"], append_ms=START_MS - 500))
    assert w.outcome(0) == ("expired", "late_on_arrival")
    assert not w.batches
    assert w.records[0, 0][0].ids == ["a"]


@pytest.mark.parametrize("budget", [b"0", b"-5", b"soon", b"315360000000", b"\xff", b"1e3", b""])
def test_a_budget_that_cannot_be_is_refused(budget) -> None:
    w = world()
    w.feed(requests([b"a:1,1"], headers=(("ss-deadline-ms", budget),)))
    assert w.outcome(0)[0] == "error"
    assert w.outcome(0)[1] in ("bad_deadline", "bad_header")
    assert not w.records[0, 0][0].missing.any()  # no model was asked
    assert len(w.letters) == 1


def test_unknown_routes_and_models_are_errors() -> None:
    w = world()
    w.feed(requests([b"a:1,1"], headers=(("ss-route", b"nowhere"),)))
    w.feed(requests([b"a:1,1"], first=1, headers=(("mlserver-model", b"nobody"),)))
    assert w.outcome(0) == ("error", "unknown_route")
    assert w.outcome(1) == ("error", "unknown_model")
    assert len(w.letters) == 2


def test_one_named_model_answers_alone() -> None:
    w = world(app(route(("a@1", "b@1"))))
    w.feed(requests([b"a:1,1"], headers=(("mlserver-model", b"b"),)))
    assert w.outcome(0) == ("ok", "all_answered")
    assert [batch.model for batch in w.batches] == ["b@1"]
    assert w.records[0, 0][0].off_epoch.tolist() == [True]


def test_partial_at_the_deadline_when_one_member_hangs() -> None:
    rules = app(route(("a@1", "b@1", "c@1"), decide_early=False), guard_ms=10)
    w = world(rules, run=lambda e: None if e.model == "b@1" else finished(e))
    w.feed(requests([b"x:1,1"]))
    w.at(90)
    assert w.outcome(0) == ("partial", "members_missing")
    block, i = w.records[0, 0]
    assert block.missing[i].tolist() == [0, 1, 0]
    assert block.confidence[i] == pytest.approx(2 / 3)


def test_decided_early_when_the_rest_cannot_change_the_answer() -> None:
    held: list[RunBatch] = []
    rules = app(route(("a@1", "b@1", "c@1")))
    w = world(rules, run=lambda e: held.append(e) if e.model == "c@1" else finished(e))
    w.feed(requests([b"x:1,1"]))
    assert not w.records
    w.at(EARLY_WAIT_MS)
    assert w.outcome(0) == ("ok", "decided_early")
    assert len(held) == 1


def test_a_member_that_answers_within_the_wait_is_in_the_record() -> None:
    held: list[RunBatch] = []
    rules = app(route(("a@1", "b@1", "c@1")))
    w = world(rules, run=lambda e: held.append(e) if e.model == "c@1" else finished(e))
    w.feed(requests([b"x:1,1"]))
    w.at(EARLY_WAIT_MS - 1)
    w.feed(finished(held.pop()))
    assert w.outcome(0) == ("ok", "all_answered")
    assert w.stage.idle
    assert w.stage.next_deadline_ms() is None


def test_what_is_decided_is_no_partial_answer_at_its_deadline() -> None:
    rules = app(route(("a@1", "b@1", "c@1")), guard_ms=10)
    held: list[RunBatch] = []
    w = world(rules, run=held.append)
    w.feed(requests([b"x:1,1"]))
    w.at(88)
    for effect in held[:2]:
        w.feed(finished(effect))
    w.at(90)
    assert w.outcome(0) == ("ok", "decided_early")


def test_disagreement_is_not_decided_early() -> None:
    rules = app(route(("a@1", "b@1", "c@1")))
    w = world(rules, run=lambda e: None if e.model == "c@1" else finished(e, [1] if e.model == "a@1" else [2]))
    w.feed(requests([b"x:1,1"]))
    assert not w.records


def test_members_that_differ_are_in_the_record() -> None:
    w = world(app(route(("a@1", "b@1", "c@1"))), run=lambda e: finished(e, [4] if e.model == "b@1" else [5]))
    w.feed(requests([b"x:1,1"]))
    block, _ = w.records[0, 0]
    assert w.labels(0) == [5]
    assert [(member.model, member.labels.tolist()) for member in block.members] == [("b@1", [4])]


def test_late_answers_of_a_learning_route_go_to_the_answers_topic() -> None:
    held: list[RunBatch] = []
    rules = app(route(("a@1", "b@1"), policy=Hedge(eta=0.3, half_life_events=350), learns=True), guard_ms=10)
    w = world(rules, run=lambda e: held.append(e) if e.model == "b@1" else finished(e))
    w.feed(requests([b"x:1,1"]))
    w.at(150)
    assert w.outcome(0) == ("partial", "members_missing")
    w.feed(finished(held[0], [9]))
    late = of(w.other, EmitAnswers)
    assert [(e.answers.model, e.answers.labels.tolist(), e.answers.offsets.tolist()) for e in late] == [
        ("b@1", [9], [0])
    ]


def test_what_a_predecessor_answered_is_not_answered_again() -> None:
    rules = app()
    w = World(FusedStage(rules, model_rules(rules), CODECS, epochs(rules)))
    w.feed(assigned(0, position=10, answered=np.array([11, 12])))
    w.feed(requests([b":%d,0" % i for i in range(10, 15)], first=10))
    assert sorted(offset for _, offset in w.records) == [10, 13, 14]
    assert sorted(offset for _, offset in w.settled) == [10, 11, 12, 13, 14]
    assert sum(len(batch.inputs) for batch in w.batches) == 3


def test_nothing_is_emitted_for_a_revoked_partition() -> None:
    held: list[RunBatch] = []
    w = world(run=held.append)
    w.feed(requests([b":1,1"]))
    w.feed(requests([b":2,2"], partition=1))
    w.feed(Revoked(partitions=(0,)))
    w.feed(finished(held[0]))
    w.feed(finished(held[1]))
    assert list(w.records) == [(1, 0)]
    assert w.settled == [(1, 0)]
    assert w.stage.idle


def test_equal_inputs_are_evaluated_once_and_remembered() -> None:
    w = world(cache_bytes=10_000)
    w.feed(requests([b"a:1,1", b"b:1,1", b"c:2,2"]))
    w.feed(requests([b"d:1,1"], first=3))
    assert sum(len(batch.inputs) for batch in w.batches) == 2
    assert [w.labels(i) for i in range(4)] == [[1], [1], [2], [1]]
    assert [w.records[0, i][0].ids[w.records[0, i][1]] for i in range(4)] == ["a", "b", "c", "d"]


def test_followers_of_a_failed_call_are_answered_too() -> None:
    def broken(effect: RunBatch) -> BatchFinished:
        return BatchFinished(batch=effect.batch, outputs=None, error="no", duration_ms=1.0)

    w = world(cache_bytes=10_000, run=broken)
    w.feed(requests([b"a:1,1", b"b:1,1"]))
    assert len(w.records) == 2
    w.run = finished
    w.feed(requests([b"c:1,1"], first=2))
    assert w.labels(2) == [1]


def test_a_short_batch_waits_as_long_as_it_may() -> None:
    w = world(max_wait_ms=5, max_batch=4)
    w.feed(requests([b":1,1"]))
    assert not w.batches
    w.now_ms = START_MS + 4
    w.feed(requests([b":2,2"], first=1))
    assert not w.batches
    assert w.stage.next_deadline_ms() == START_MS + 5
    w.now_ms = START_MS + 5
    w.feed(Tick())
    assert [len(batch.inputs) for batch in w.batches] == [2]
    w.feed(requests([b":%d,3" % i for i in range(4)], first=2, append_ms=START_MS + 5))
    assert [len(batch.inputs) for batch in w.batches] == [2, 4]


def test_low_confidence_gets_the_default_with_its_reason() -> None:
    rules = app(route(("a@1", "b@1", "c@1"), confidence_threshold=0.6, default=-1, has_default=True))
    said = {"a@1": 1, "b@1": 2, "c@1": 3}
    w = world(rules, run=lambda e: finished(e, [said[e.model]] if e.inputs[0, 0] == 1 else None))
    w.feed(requests([b":1,1"]))
    w.feed(requests([b":5,1"], first=1))
    assert w.outcome(0) == ("default", "low_confidence")
    assert w.labels(0) == [-1]
    assert len(w.records[0, 0][0].members) == 3
    assert w.outcome(1)[0] == "ok"
