from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streamserve.core.bounds import Bounds
from streamserve.core.effects import Continue, EmitAnswers, EmitPredictions, Pause, Settle
from streamserve.core.events import AnswersFetched, Produced, ProduceFailed, RequestsFetched, Revoked, StatesFetched
from streamserve.core.messages import Answers, Choice
from streamserve.core.reasons import Missing
from streamserve.core.records import StateRecord
from streamserve.core.selection.hedge import Hedge
from streamserve.core.slicing import answers_by_partition
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.worker import WorkerStage
from streamserve.core.takeover import parse_metadata
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, finished, model_rules, of, requests, route

MODELS = ("a@1", "b@1", "c@1")


def world(rules=None, **resume) -> World:
    rules = rules or app(route(MODELS, decide_early=False), guard_ms=10)
    w = World(AggregatorStage(rules, epochs(rules), CODECS))
    w.feed(assigned(0, **resume))
    return w


def answers(model: str, offsets: list[int], labels: list[int], **changes) -> AnswersFetched:
    n = len(offsets)
    block = Answers(
        partition=np.zeros(n, np.int64),
        route="r",
        model=model,
        offsets=np.array(offsets),
        row_starts=np.arange(n + 1),
        labels=np.array(labels),
        probabilities=None,
        classes=None,
        missing=np.zeros(n, np.uint8),
        ids=[f"id{o}" for o in offsets],
        choice=Choice(
            chosen=np.full(n, 7, np.uint64),
            probability=np.full(n, 1 << 32),
            epoch=np.full(n, -1),
            stale=np.zeros(n, np.bool_),
        ),
        queue_ms=np.full(n, 3, np.int32),
        inference_ms=np.full(n, 2, np.int32),
        log_offset=np.full(n, changes.pop("log_offset", 0)),
    )
    next_offset = changes.pop("next_offset", 0)
    return AnswersFetched(blocks=(replace(block, **changes),), positions={0: next_offset})


def test_answers_when_all_members_have() -> None:
    w = world()
    w.feed(requests([b"x:1,1", b"y:1,1"]))
    for model in MODELS[:2]:
        w.feed(answers(model, [0, 1], [1, 2]))
    assert not w.records
    w.feed(answers("c@1", [1, 0], [2, 5]))
    assert [w.outcome(i) for i in (0, 1)] == [("ok", "all_answered")] * 2
    assert (w.labels(0), w.labels(1)) == ([1], [2])
    assert w.records[0, 0][0].ids == ["id0", "id1"]


def test_answers_may_come_before_their_request() -> None:
    w = world()
    w.feed(requests([b"x:1,1"]))
    for model in MODELS:
        w.feed(answers(model, [0, 1, 2], [1, 1, 1]))
    assert list(w.records) == [(0, 0)]
    w.feed(requests([b"y:1,1"], first=1))
    assert (0, 1) in w.records
    w.feed(requests([b"z:1,1"], first=2))
    assert (0, 2) in w.records


def test_a_second_answer_of_a_model_does_not_count() -> None:
    w = world()
    w.feed(requests([b"x:1,1"]))
    w.feed(answers("a@1", [0], [1]))
    w.feed(answers("a@1", [0], [9]))
    w.feed(answers("b@1", [0], [1]))
    assert not w.records
    w.feed(answers("c@1", [0], [2]))
    assert w.labels(0) == [1]


def test_a_request_whose_workers_are_all_down_gets_its_record_with_its_id() -> None:
    w = world()
    w.feed(requests([b"mine:1,1"]))
    w.at(90)
    assert w.outcome(0) == ("expired", "deadline_passed")
    assert w.records[0, 0][0].ids == ["mine"]


def test_after_a_takeover_answers_in_the_log_are_used_before_a_deadline_fires() -> None:
    w = world(answers_from=0, answers_end=6)
    w.feed(requests([b"x:1,1"], append_ms=START_MS - 1000))
    w.at(50)
    assert not w.records
    w.feed(answers("a@1", [0], [4], next_offset=3))
    assert not w.records
    w.feed(answers("b@1", [0], [4], next_offset=6))
    assert w.outcome(0) == ("partial", "members_missing")
    assert w.records[0, 0][0].late.tolist() == [True]


def test_after_a_takeover_what_nobody_answered_in_time_expires_and_is_never_defaulted() -> None:
    w = world(app(route(MODELS, default=0, has_default=True)), answers_from=0, answers_end=6)
    w.feed(requests([b"x:1,1"], append_ms=START_MS - 1000))
    w.feed(answers("a@1", [7], [4], next_offset=6))
    assert w.outcome(0)[0] == "expired"


def test_an_answer_under_a_newer_epoch_is_adopted_at_once() -> None:
    w = world()
    w.feed(requests([b"x:1,1"]))
    choice = Choice(
        chosen=np.array([1], np.uint64),
        probability=np.array([1 << 31]),
        epoch=np.array([12]),
        stale=np.array([False]),
    )
    w.feed(answers("a@1", [0], [4], choice=choice))
    block, _ = w.records[0, 0]
    assert w.outcome(0) == ("ok", "all_answered")
    assert block.off_epoch.tolist() == [True]
    assert block.choice.epoch.tolist() == [12]
    assert block.choice.probability.tolist() == [1 << 31]


def test_weights_of_the_epoch_in_force_decide() -> None:
    policy = Hedge(eta=0.3, half_life_events=350)
    rules = app(route(MODELS, policy=policy, learns=True, decide_early=False))
    w = World(AggregatorStage(rules, epochs(rules), CODECS))
    w.feed(assigned(0))
    state = policy.initial(MODELS)
    for _ in range(200):
        state = policy.learn(state, _outcome({"a@1": 0.0, "b@1": 1.0, "c@1": 1.0}))
    record = StateRecord(
        route="r",
        context="",
        policy="hedge",
        data=policy.dump(state),
        includes={},
        partition=0,
        epoch=5,
        append_ms=START_MS - 1000,
    )
    w.feed(StatesFetched(states=(record,)))
    w.feed(requests([b"x:1,1"]))
    choice = Choice(
        chosen=np.array([7], np.uint64), probability=np.array([1 << 32]), epoch=np.array([5]), stale=np.array([False])
    )
    for model, label in zip(MODELS, (1, 2, 2), strict=True):
        w.feed(answers(model, [0], [label], choice=choice))
    assert w.labels(0) == [1]
    assert w.records[0, 0][0].confidence[0] > 0.9


def _outcome(losses: dict[str, float]):
    from streamserve.core.records import Decision, OutcomeRecord

    decision = Decision(
        id="i",
        route="r",
        outcome="ok",
        epoch=-1,
        probability=1.0,
        off_epoch=False,
        chosen=tuple(losses),
        label=[1],
        members={},
        rows=1,
    )
    return OutcomeRecord(
        to_partition=0,
        route="r",
        context="",
        ref=(0, 0),
        decision=decision,
        feedback=(0, 0),
        feedback_ms=0,
        label=[1],
        has_label=True,
        losses=losses,
    )


def test_what_could_not_be_sent_is_sent_again_and_settled_once() -> None:
    w = world(app(route(("a@1",))))
    effects = w.stage.handle(requests([b"x:1,1"]), START_MS)
    effects = w.stage.handle(answers("a@1", [0], [4]), START_MS)
    token = effects[0].token
    again = w.stage.handle(ProduceFailed(token=token, error="broker away"), START_MS)
    assert [type(effect).__name__ for effect in again] == ["Count", "EmitPredictions"]
    assert again[1].predictions.offsets.tolist() == [0]


def test_a_send_of_an_earlier_ownership_is_not_repeated_in_a_later_one() -> None:
    rules = app(route(("a@1",)))
    stage = AggregatorStage(rules, epochs(rules), CODECS)
    token = 0
    for event in (assigned(0), requests([b"x:1,1"]), answers("a@1", [0], [4])):
        for effect in stage.handle(event, START_MS):
            token = effect.token
    stage.handle(Revoked(partitions=(0,)), START_MS)
    stage.handle(assigned(0), START_MS)
    assert stage.handle(ProduceFailed(token=token, error="unknown"), START_MS) == []
    assert stage.idle


def test_commit_metadata_tells_a_successor_where_to_read_from() -> None:
    w = world()
    w.feed(requests([b"x:1,1", b"y:1,1", b"z:1,1"]))
    for model in MODELS:
        w.feed(answers(model, [0], [1], log_offset=10, next_offset=11))
    assert parse_metadata(w.stage.commit_metadata(0)) == (11, 0)
    w.feed(answers("a@1", [2], [1], log_offset=17, next_offset=18))
    w.feed(answers("b@1", [1], [1], log_offset=18, next_offset=19))
    assert parse_metadata(w.stage.commit_metadata(0)) == (17, 0)
    w.at(100)
    assert w.stage.idle
    assert parse_metadata(w.stage.commit_metadata(0)) == (19, 1)


def under(epoch: int, chosen: int) -> Choice:
    return Choice(
        chosen=np.array([chosen], np.uint64),
        probability=np.array([1 << 31]),
        epoch=np.array([epoch]),
        stale=np.zeros(1, np.bool_),
    )


@pytest.mark.parametrize(
    ("models", "chosen", "waits_for"),
    [(("b@1", "c@1", "a@1"), 0b001, []), (("b@1", "d@1"), 0b01, []), (("b@1", "d@1"), 0b11, ["a@1", "c@1"])],
)
def test_a_choice_is_adopted_by_the_names_of_its_models(models, chosen, waits_for) -> None:
    """In a deploy a pool may have other models for the route, or the same in another order; the bits are its own."""
    w = world()
    w.feed(requests([b"x:1,1"]))
    w.feed(answers("b@1", [0], [5], models=models, choice=under(3, chosen)))
    for model in waits_for:
        assert not w.records
        w.feed(answers(model, [0], [5], models=MODELS))
    assert w.labels(0) == [5]
    block, at = w.records[0, 0]
    names = [model for bit, model in enumerate(block.models) if int(block.choice.chosen[at]) >> bit & 1]
    assert names == sorted(["b@1", *waits_for])


@pytest.mark.parametrize(("model", "name"), [("a@2", "r"), ("a@1", "new")])
def test_a_successor_reads_answers_that_are_not_known_here_yet(model: str, name: str) -> None:
    """In the middle of a deploy: the pool has the new version already, the owner is replaced a moment later."""
    w = world()
    w.feed(requests([b"x:1,1"]))
    w.feed(answers(model, [0], [1], route=name, log_offset=17, next_offset=18))
    w.feed(answers(model, [1], [1], route=name, log_offset=18, next_offset=19))  # before its request
    assert parse_metadata(w.stage.commit_metadata(0))[0] == 17
    w.feed(requests([b"y:1,1"], first=1))
    assert parse_metadata(w.stage.commit_metadata(0))[0] == 17
    w.at(100)
    assert parse_metadata(w.stage.commit_metadata(0))[0] == 19
    successor = world(app(route((model,), name=name), guard_ms=10))
    successor.feed(requests([b"x:1,1"]))
    successor.feed(answers(model, [0], [1], route=name, log_offset=17, next_offset=18))
    assert successor.outcome(0) == ("ok", "all_answered")


@pytest.mark.parametrize("words", ["", "{}", '{"v":2,"answers":1,"predictions":2}', "junk"])
def test_metadata_of_nobody_means_the_start(words) -> None:
    assert parse_metadata(words) == (0, 0)


def test_worker_and_aggregator_agree_on_every_choice_without_talking() -> None:
    rules = app(route(MODELS, decide_early=False), route(MODELS[:2], name="s"))
    workers = World(WorkerStage(rules, model_rules(rules), CODECS, epochs(rules)))
    workers.feed(assigned(0))
    w = world(rules)
    event: RequestsFetched = requests([b"x:%d,1" % i for i in range(40)], headers=(("ss-route", b"s"),))
    w.feed(event)
    workers.feed(event)
    for effect in of(workers.other, EmitAnswers):
        w.feed(AnswersFetched(blocks=(effect.answers,), positions={0: 0}))
    assert {w.outcome(i) for i in range(40)} == {("ok", "all_answered")}
    assert not any(block.off_epoch.any() for block, _ in w.records.values())


def test_requests_of_many_rows_are_combined_row_by_row() -> None:
    w = world()
    w.feed(requests([b"x:1,1;2,2;3,3"]))
    for model, labels in (("a@1", [1, 2, 3]), ("b@1", [1, 5, 3]), ("c@1", [9, 2, 3])):
        w.feed(answers(model, [0], labels, row_starts=np.array([0, 3])))
    assert w.labels(0) == [1, 2, 3]
    block, _ = w.records[0, 0]
    assert [(m.model, m.labels.tolist()) for m in block.members] == [("b@1", [1, 5, 3]), ("c@1", [9, 2, 3])]
    assert block.confidence[0] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_a_member_with_another_number_of_rows_is_incompatible() -> None:
    w = world()
    w.feed(requests([b"x:1,1;2,2"]))
    w.feed(answers("a@1", [0], [1, 2], row_starts=np.array([0, 2])))
    w.feed(answers("b@1", [0], [1], row_starts=np.array([0, 1])))
    w.feed(answers("c@1", [0], [1, 2], row_starts=np.array([0, 2])))
    assert w.outcome(0) == ("partial", "members_missing")
    assert w.records[0, 0][0].missing[0].tolist() == [0, 10, 0]


def test_the_records_of_a_block_of_answers_are_in_order_of_offset_whatever_the_deadlines() -> None:
    rules = app()
    held: list = []
    w = World(WorkerStage(rules, model_rules(rules, cache_bytes=10_000), CODECS, epochs(rules)), held.append)
    w.feed(assigned(0, 1))
    w.feed(requests([b"x:3,1"]))
    w.feed(requests([b"x:7,9"], partition=1))
    for offset, budget in ((1, b"500"), (2, b"90"), (3, b"300")):
        w.feed(requests([b"x:%d,9" % offset], first=offset, headers=(("ss-deadline-ms", budget),)))
    w.feed(requests([b"x:2,9"], first=4, headers=(("ss-deadline-ms", b"95"),)))
    for _ in range(2):
        w.feed(finished(held.pop()))
    blocks = [effect.answers for effect in of(w.other, EmitAnswers)]
    parts = [answers_by_partition(block) for block in blocks]
    assert [[(p, part.offsets.tolist()) for p, part in block] for block in parts] == [
        [(0, [0])],
        [(0, [1, 2, 3, 4]), (1, [0])],
    ]
    assert [part.labels.tolist() for _, part in parts[1]] == [[1, 2, 3, 2], [7]]


def test_of_two_answers_to_a_request_that_came_together_the_first_wins() -> None:
    """A worker that took over may have answered again what its predecessor had."""
    w = world()
    w.feed(requests([b"x:1,1", b"y:1,1"]))
    w.feed(requests([b"z:1,1"], partition=0, first=2))
    first, second = answers("a@1", [0, 1], [1, 2]), answers("a@1", [1, 2], [9, 3])
    w.feed(AnswersFetched(blocks=first.blocks + second.blocks, positions={0: 2}))
    for model in MODELS[1:]:
        w.feed(answers(model, [0, 1, 2], [1, 2, 3]))
    assert [w.labels(offset) for offset in range(3)] == [[1], [2], [3]]


def test_of_two_answers_of_different_kinds_that_came_together_the_first_wins_too() -> None:
    """Blocks that can stand in one array are joined; what one of them says earlier in the log still comes first."""
    w = world()
    w.feed(requests([b"x:1,1", b"y:1,1"]))

    def shed(offset: int) -> AnswersFetched:
        (block,) = answers("a@1", [offset], [1]).blocks
        missing = np.full(1, Missing.SHED, np.uint8)
        block = replace(block, labels=None, row_starts=np.zeros(2, np.int64), missing=missing)
        return AnswersFetched(blocks=(block,), positions={})

    in_order = (shed(0), answers("a@1", [1], [2]), shed(1), answers("a@1", [0], [9]))
    w.feed(AnswersFetched(blocks=tuple(event.blocks[0] for event in in_order), positions={0: 4}))
    for model in MODELS[1:]:
        w.feed(answers(model, [0, 1], [1, 2]))
    (block, at), (other, other_at) = w.records[0, 0], w.records[0, 1]
    assert int(block.answered[at]) == 0b110
    assert int(other.answered[other_at]) == 0b111


def test_a_failed_send_of_several_partitions_is_made_again_for_those_still_owned() -> None:
    rules = app(route(MODELS[:1]), guard_ms=10)
    stage = AggregatorStage(rules, epochs(rules), CODECS)
    stage.handle(assigned(0, 1), START_MS)
    for partition in (0, 1):
        stage.handle(requests([b"x:1,1"], partition=partition), START_MS)
    block = answers("a@1", [0, 0], [1, 2], partition=np.array([0, 1])).blocks[0]
    (emit,) = of(stage.handle(AnswersFetched(blocks=(block,), positions={}), START_MS), EmitPredictions)
    assert emit.predictions.partition.tolist() == [0, 1]
    stage.handle(Revoked(partitions=(0,)), START_MS)
    (again,) = of(stage.handle(ProduceFailed(token=emit.token, error="no"), START_MS), EmitPredictions)
    assert (again.predictions.partition.tolist(), again.predictions.labels.tolist()) == ([1], [2])
    effects = stage.handle(Produced(token=again.token, offsets={1: 5}), START_MS)
    assert [(s.partition, s.offsets.tolist()) for s in of(effects, Settle)] == [(1, [0])]
    assert stage.idle


def test_the_answers_topic_waits_while_too_many_answers_are_early() -> None:
    """And requests are read meanwhile, however many are open: else both would wait for each other."""
    w = world(app(route(MODELS, decide_early=False), bounds=Bounds(early_answers=4, open_requests=2)))
    w.feed(requests([b"x:1,1"] * 2))
    assert not w.stage.takes_more
    w.feed(answers("a@1", [0, 1, 2, 3, 4, 5, 6], [1] * 7))
    assert of(w.other, Pause) == [Pause(source="answers", partitions=(0,))]
    assert w.stage.fills()["early_answers"] == (5, 4)
    assert w.stage.takes_more
    w.feed(requests([b"x:1,1"] * 4, first=2))
    assert of(w.other, Continue) == [Continue(source="answers", partitions=(0,))]
    assert not w.stage.takes_more
    w.at(100)
    assert w.stage.takes_more


def test_no_more_requests_are_read_while_those_held_take_too_many_bytes() -> None:
    """Headers count, too. What is held behind a request that still waits is let go when its records are there."""
    w = world(app(route(MODELS, decide_early=False), bounds=Bounds(open_bytes=4_000)))
    w.feed(requests([b"x:1,1", b"x:" + b"1" * 3_000]))
    assert w.stage.takes_more
    w.feed(requests([b"x:1,1"], first=2, headers=(("h", b"v" * 1_000),)))
    assert not w.stage.takes_more
    assert w.stage.fills()["open_bytes"].used == 5 + 3_002 + 5 + 1_001
    for model in ("a@1", "b@1", "c@1"):
        w.feed(answers(model, [1, 2], [1, 1]))
    assert w.stage.takes_more
    assert w.stage.fills()["open_bytes"].used == 5
    w.at(1_000)
    assert w.stage.fills()["open_bytes"].used == 0


def test_forms_of_outputs_are_forgotten_when_nothing_is_open() -> None:
    """A model whose outputs have ever new lengths must not leave an entry each behind."""
    w = world()
    w.stage._window._forms = {((length,), False): length + 1 for length in range(2_000)}
    w.feed(requests([b"x:1,1"]))
    w.feed(answers("a@1", [0], [1]))
    assert len(w.stage._window._forms) > 1_024
    w.at(1_000)
    assert not w.stage._window._forms


def test_finished_is_used() -> None:
    """The kit's reply has the shape that the stage expects (guards the kit itself)."""
    rules = app()
    w = World(WorkerStage(rules, model_rules(rules), CODECS, epochs(rules)), finished)
    w.feed(assigned(0))
    w.feed(requests([b"x:3,1"]))
    assert of(w.other, EmitAnswers)[0].answers.labels.tolist() == [3]
    assert w.settled == [(0, 0)]
