"""Answers that do not fit each other cost their member, never the process and never a neighbour."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.effects import EmitAnswers, RunBatch
from streamserve.core.events import AnswersFetched, BatchFinished, Event, RequestsFetched
from streamserve.core.messages import Outputs, Requests
from streamserve.core.reasons import Missing
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.worker import WorkerStage
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, model_rules, of, requests, route
from tests.effort import examples

MODELS = ("a@1", "b@1", "c@1")


def world(run, **changes) -> World:
    rules = app(route(MODELS, **changes), guard_ms=10)
    w = World(FusedStage(rules, model_rules(rules), CODECS, epochs(rules)), run)
    w.feed(assigned(0, 1))
    return w


def said(outputs: dict[str, Outputs]):
    return lambda e: BatchFinished(batch=e.batch, outputs=outputs[e.model], duration_ms=1.0)


@pytest.mark.parametrize("combine", ["vote", "best", "mean", "mean_probability"])
def test_labels_of_another_shape_are_incompatible(combine: str) -> None:
    outputs = {
        "a@1": Outputs(labels=np.array([1.0])),
        "b@1": Outputs(labels=np.array([[1.0, 2.0]])),
        "c@1": Outputs(labels=np.array([1.0])),
    }
    w = world(said(outputs), combine=combine, decide_early=False)
    w.feed(requests([b":1,1"]))
    assert w.outcome(0) == ("partial", "members_missing")
    assert w.records[0, 0][0].missing[0].tolist() == [0, Missing.INCOMPATIBLE, 0]


@pytest.mark.parametrize("order", ["abc", "bca", "cba", "bac"])
def test_of_different_forms_the_member_that_is_named_first_decides(order: str) -> None:
    """Whoever is quicker: else the form of an answer would change from request to request."""
    outputs = {
        "a@1": Outputs(labels=np.array([1.0])),
        "b@1": Outputs(labels=np.array([[1.0, 2.0]])),
        "c@1": Outputs(labels=np.array([[1.0, 2.0]])),
    }
    w = world(lambda _: None, decide_early=False)
    w.feed(requests([b":1,1"]))
    calls = {call.model: call for call in w.batches}
    for name in order:
        model = f"{name}@1"
        w.feed(BatchFinished(batch=calls[model].batch, outputs=outputs[model], duration_ms=1.0))
    block, _ = w.records[0, 0]
    assert w.labels(0) == [1.0]
    assert block.missing[0].tolist() == [0, Missing.INCOMPATIBLE, Missing.INCOMPATIBLE]
    assert "b@1: its answer has another form than that of a@1" in block.details[0]


def test_requests_whose_members_differ_in_shape_settle_side_by_side() -> None:
    """One request has a scalar from a, the other a vector from b; both fall due at the same moment."""

    def run(effect: RunBatch) -> BatchFinished | None:
        wide = effect.model == "b@1"
        if (effect.inputs[:, 0] == (1 if wide else 2)).any():
            return BatchFinished(batch=effect.batch, outputs=None, error="no", duration_ms=1.0)
        n = len(effect.inputs)
        labels = np.ones((n, 2)) if wide else np.ones(n)
        return None if effect.model == "c@1" else BatchFinished(batch=effect.batch, outputs=Outputs(labels=labels))

    w = world(run, decide_early=False)
    w.feed(requests([b":1,1", b":2,2"]))
    w.at(95)
    assert (w.labels(0), w.labels(1)) == ([1.0], [[1.0, 1.0]])


def test_members_with_other_classes_are_combined_by_name() -> None:
    def some(classes: list[str], shares: list[float]) -> Outputs:
        names = np.array(classes, object)
        return Outputs(labels=names[[int(np.argmax(shares))]], probabilities=np.array([shares]), classes=names)

    outputs = {
        "a@1": some(["x", "y"], [0.4, 0.6]),
        "b@1": some(["y", "z", "x"], [0.5, 0.4, 0.1]),
        "c@1": some(["x"], [1]),
    }
    w = world(said(outputs), combine="mean_probability", decide_early=False)
    w.feed(requests([b":1,1"]))
    assert w.labels(0) == ["x"]  # x 1.5, y 1.1, z 0.4


@pytest.mark.parametrize(
    "outputs",
    [
        Outputs(labels=np.array([0]), probabilities=np.zeros((1, 0))),
        Outputs(labels=np.array([0]), probabilities=np.array([[3.0, -2.0]])),
        Outputs(labels=np.array([0]), probabilities=np.array([[np.inf, 0.0]])),
        Outputs(labels=np.array([0]), probabilities=np.array([0.5])),
        Outputs(labels=np.array(0)),
        Outputs(labels=np.zeros((1, 0)), row_errors={5: "nobody", -1: "nobody"}),
    ],
)
def test_odd_outputs_cost_their_member_only(outputs: Outputs) -> None:
    fine = Outputs(labels=np.array([1]), probabilities=np.array([[0.1, 0.9]]))
    w = world(said({"a@1": outputs, "b@1": fine, "c@1": fine}), combine="mean_probability", decide_early=False)
    w.feed(requests([b":1,1"]))
    w.at(95)
    assert w.outcome(0)[0] in ("ok", "partial")


def test_ragged_defaults_are_given_as_they_are() -> None:
    w = world(lambda _: None, default=[[1], [1, 2]], has_default=True)
    w.feed(requests([b":1,1"]))
    w.at(95)
    assert w.labels(0) == [[[1], [1, 2]]]


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(["r", "s", "b"]), min_size=1, max_size=20), st.lists(st.integers(1, 7), min_size=40))
def test_worker_and_aggregator_choose_alike_whatever_the_fetches(names: list[str], sizes: list[int]) -> None:
    rules = app(route(MODELS), route(MODELS, name="s", policy=Exp3(), learns=True, decide_early=False))
    headers = {"r": (("ss-route", b"r"),), "s": (("ss-route", b"s"),), "b": (("mlserver-model", b"b"),)}

    def pieces(step: list[int]) -> list[Event]:
        events, at = [], 0
        while at < len(names):
            part = range(at, min(at + step[at], len(names)))
            at = part.stop
            found = Requests(
                partition=np.zeros(len(part), np.int64),
                offsets=np.array(part) * 3,
                append_ms=np.full(len(part), START_MS),
                keys=[None] * len(part),
                values=[b":%d,1" % i for i in part],
                headers=[headers[names[i]] for i in part],
            )
            events.append(RequestsFetched(requests=found))
        return events

    worker = World(WorkerStage(rules, model_rules(rules), CODECS, epochs(rules)))
    aggregator = World(AggregatorStage(rules, epochs(rules), CODECS))
    for w, step in ((worker, sizes[:20]), (aggregator, sizes[20:])):
        w.feed(assigned(0))
        for event in pieces(step):
            w.feed(event)
    blocks = tuple(effect.answers for effect in of(worker.other, EmitAnswers))
    aggregator.feed(AnswersFetched(blocks=blocks, positions={0: len(blocks)}))
    assert len(aggregator.records) == len(names)
    for block, i in aggregator.records.values():
        forced = names[int(block.offsets[i]) // 3] == "b"
        assert bool(block.off_epoch[i]) == forced
        assert block.answered[i] & ~block.choice.chosen[i] == 0
