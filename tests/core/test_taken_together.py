"""Answers of several models to the same requests are taken in in one step, and mean what they mean one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.effects import Count, EmitAnswers, RunBatch
from streamserve.core.events import AnswersFetched, BatchesFinished, BatchFinished
from streamserve.core.holding import HOLD_MS, Holding
from streamserve.core.messages import Answers, Outputs
from streamserve.core.slicing import take_predictions
from streamserve.core.stages.aggregator import EARLY_WAIT_MS, AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.worker import WorkerStage
from streamserve.kafka.codecs.predictions import encode_predictions
from tests.core.kit import CODECS, World, app, assigned, epochs, finished, model_rules, of, requests, route
from tests.effort import examples

MODELS = ("a@1", "b@1", "c@1", "d@1")
KINDS = ("first", "second", "vector", "probable", "refuses", "raises")


def said(kind: str, inputs: np.ndarray) -> Outputs | None:
    n, first = len(inputs), inputs[:, 0].astype(np.int64)
    match kind:
        case "second":
            return Outputs(labels=inputs[:, 1].astype(np.int64))
        case "vector":
            return Outputs(labels=inputs)
        case "probable":
            return Outputs(labels=first % 2, probabilities=np.tile([0.25, 0.75], (n, 1)), classes=np.array([0, 1]))
        case "refuses":
            return Outputs(labels=first, row_errors={n - 1: "not this one"})
        case "raises":
            return None
    return Outputs(labels=first)


def answers_of(rules: Any, kinds: dict[str, str], values: list[bytes], first: int = 0) -> tuple[Answers, ...]:
    """Of a worker whose models have all ended in one turn, as often as their calls had to be taken apart."""
    worker = World(WorkerStage(rules, model_rules(rules), CODECS, epochs(rules)), run=lambda _: None)
    worker.feed(assigned(0))
    worker.feed(requests(values, first=first))
    done = 0
    while done < len(worker.batches):
        calls, done = worker.batches[done:], len(worker.batches)
        ended = [
            BatchFinished(batch=call.batch, outputs=said(kinds[call.model], call.inputs), duration_ms=float(i))
            for i, call in enumerate(calls)
        ]
        worker.feed(BatchesFinished(batches=tuple(ended)))
    return tuple(effect.answers for effect in of(worker.other, EmitAnswers))


@settings(max_examples=examples(60))
@given(
    st.lists(st.sampled_from(KINDS), min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 2)), min_size=1, max_size=6),
    st.sampled_from(["vote", "mean_probability", "best", "mean"]),
    st.permutations(range(4)),
    st.integers(0, 4),
)
def test_together_or_one_by_one_the_records_are_the_same(
    kinds: list[str], rows: list[tuple[int, int, int]], combine: str, order: list[int], again: int
) -> None:
    """Of two fetches; some answers come twice."""
    rules = app(route(MODELS, combine=combine, deadline_ms=1_000))
    values = [b":" + b";".join([b"%d,%d" % (x, y)] * n) for x, y, n in rows]
    fetches = []
    for first in (0, len(values)):
        blocks = answers_of(rules, dict(zip(MODELS, kinds, strict=True)), values, first)
        fetches.append(tuple(sorted(blocks, key=lambda block: order[MODELS.index(block.model)])))
    records = []
    for apart in (False, True):
        w = World(AggregatorStage(rules, epochs(rules), CODECS))
        w.feed(assigned(0))
        for k, blocks in enumerate(fetches):
            w.feed(requests(values, first=k * len(values)))
            for part in (blocks[:again], blocks):
                if apart:  # of columns of their own, as those that come from the log
                    for block in part:
                        w.feed(AnswersFetched(blocks=(replace(block, offsets=block.offsets.copy()),), positions={}))
                else:
                    w.feed(AnswersFetched(blocks=part, positions={}))
        w.at(EARLY_WAIT_MS)
        records.append(
            {key: encode_predictions(take_predictions(block, np.array([i]))) for key, (block, i) in w.records.items()}
        )
    assert len(records[0]) == 2 * len(rows)
    for key, record in records[0].items():
        assert (record.values, record.headers) == (records[1][key].values, records[1][key].headers)


def test_models_that_are_called_for_the_same_requests_share_what_is_copied_of_them() -> None:
    rules = app(route(MODELS))
    blocks = answers_of(rules, dict.fromkeys(MODELS, "first"), [b"x:1,2", b"y:2,1"])
    assert [block.model for block in blocks] == list(MODELS)
    assert len({id(block.offsets) for block in blocks}) == 1
    assert [block.ids for block in blocks] == [["x", "y"]] * 4


def world(held: list[RunBatch], **changes: Any) -> World:
    """Calls of the last model do not end."""
    rules = app(route(MODELS[:3], **changes), guard_ms=10)
    stage = FusedStage(rules, model_rules(rules), CODECS, epochs(rules))
    w = World(stage, run=lambda call: held.append(call) if call.model == MODELS[2] else finished(call))
    w.feed(assigned(0))
    w.feed(requests([b"x:1,1"]))
    return w


def test_an_answer_waits_for_those_of_other_calls_but_not_long() -> None:
    held: list[RunBatch] = []
    w = world(held, decide_early=False)
    assert len(w.stage._holding._held) == 1
    w.at(HOLD_MS - 1)
    assert w.stage._holding
    w.at(HOLD_MS)
    assert not w.stage._holding
    assert [(count.what, count.n) for count in of(w.other, Count) if count.what == "held"] == [("held", 2)]
    w.feed(finished(held[0]))
    assert w.outcome(0) == ("ok", "all_answered")


def test_the_last_one_takes_those_that_wait_with_it() -> None:
    held: list[RunBatch] = []
    w = world(held)
    assert not w.records
    w.feed(finished(held[0]))
    assert w.outcome(0) == ("ok", "all_answered")
    assert not w.stage._holding
    assert w.stage.idle


@pytest.mark.parametrize("ms", [0, 1, HOLD_MS])
def test_what_was_heard_before_a_deadline_is_in_the_record(ms: int) -> None:
    """Though nothing else has happened between."""
    held: list[RunBatch] = []
    w = world(held, decide_early=False, deadline_ms=10 + HOLD_MS)  # settled `guard_ms` before it
    w.at(HOLD_MS + ms)
    assert w.outcome(0) == ("partial", "members_missing")
    assert w.labels(0) == [1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=20), st.data())
def test_what_is_held_comes_out_once_and_in_time(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    blocks = answers_of(app(route(MODELS)), dict.fromkeys(MODELS, "first"), [b":1,1"])
    columns = [np.array([i]) for i in range(3)]
    called = {id(column): True for column in columns}
    holding = Holding(lambda block: called[id(block.offsets)])
    came: list[tuple[Answers, int]] = []
    went: list[Answers] = []

    def out(answers: AnswersFetched | None, now_ms: int) -> None:
        for block in () if answers is None else answers.blocks:
            came_ms = next(ms for one, ms in came if one is block)
            assert came_ms >= now_ms - answers.waited_ms
            went.append(block)

    now_ms = 0
    for column, wait_ms in steps:
        for _ in range(wait_ms):
            now_ms += 1
            if holding.due_ms is not None and holding.due_ms <= now_ms:
                out(holding.release(now_ms), now_ms)
        called[id(columns[column])] = data.draw(st.booleans())
        came.append((replace(blocks[0], offsets=columns[column]), now_ms))
        out(holding.take([came[-1][0]], now_ms), now_ms)
        assert all(now_ms - ms < HOLD_MS for block, ms in came if not any(block is gone for gone in went))
    out(holding.release(now_ms), now_ms)
    assert sorted(map(id, went)) == sorted(id(block) for block, _ in came)
    assert not holding
    assert holding.due_ms is None
