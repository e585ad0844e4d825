"""Versions of routes: the same request gets the same one in every role, and nothing is lost over a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.desk import ModelRules
from streamserve.core.effects import EmitAnswers, EmitState, RunBatch
from streamserve.core.epochs import EpochTable
from streamserve.core.events import AnswersFetched, BatchFinished, ModelsHosted, StatesFetched, Tick
from streamserve.core.messages import Outputs
from streamserve.core.reasons import Missing
from streamserve.core.records import StateRecord
from streamserve.core.route_versions import Routes, RoutesRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.hedge import Hedge
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.worker import WorkerStage
from tests.core.kit import CODECS, START_MS, World, app, assigned, requests, route
from tests.core.stages import learning_case

DELAY_MS = app().routes_delay_ms


def record(*routes: Route, append_ms: int, offset: int) -> RoutesRecord:
    return RoutesRecord(number=offset, routes=routes, append_ms=append_ms, offset=offset)


def changed(*records: RoutesRecord) -> StatesFetched:
    return StatesFetched(states=(), routes=records)


def says_its_name(effect: RunBatch) -> BatchFinished:
    n = len(effect.inputs)
    return BatchFinished(batch=effect.batch, outputs=Outputs(labels=np.array([effect.model] * n)), duration_ms=1.0)


def hosted(*models: str) -> dict[str, ModelRules]:
    return {model: ModelRules(model=model) for model in models}


VERSIONS = [("a@1", "b@1"), ("b@1", "a@1", "c@1"), ("c@1",), ("a@2", "b@1")]


@st.composite
def histories(draw: st.DrawFn) -> list[RoutesRecord]:
    steps = draw(st.lists(st.tuples(st.integers(0, 2_000), st.sampled_from(VERSIONS)), min_size=1, max_size=5))
    found, now_ms = [], START_MS
    for offset, (step_ms, models) in enumerate(steps):
        now_ms += step_ms
        found.append(record(route(models, fingerprint=str(models)), append_ms=now_ms, offset=3 * offset))
    return found


def names_at(routes: Routes, append_ms: list[int]) -> list[tuple[str, ...]]:
    column = np.array(append_ms, np.int64)
    found: list[Any] = [None] * len(append_ms)
    for period, rows in routes.split(column):
        for row in range(len(append_ms)) if rows is None else rows.tolist():
            found[row] = routes[period.names["r"]].models
    return found


@given(
    history=histories(),
    append_ms=st.lists(st.integers(START_MS - 5_000, START_MS + 15_000), min_size=1),
    data=st.data(),
)
def test_whoever_has_read_the_log_gives_a_request_the_same_version(
    history: list[RoutesRecord], append_ms: list[int], data: st.DataObject
) -> None:
    first = history[0].routes[0]
    at_once, in_pieces = (Routes((first,), delay_ms=1_000, keep_ms=120_000) for _ in range(2))
    at_once.apply(history)
    for end in sorted(data.draw(st.lists(st.integers(0, len(history)), max_size=3))):
        in_pieces.apply(history[:end])  # what is read again changes nothing
    in_pieces.apply(history)
    found = names_at(at_once, append_ms)
    assert found == names_at(in_pieces, append_ms)
    for ms, models in zip(append_ms, found, strict=True):
        in_force = [one for one in history[1:] if one.append_ms + 1_000 <= ms]
        assert models == (in_force[-1] if in_force else history[0]).routes[0].models


def test_the_first_record_holds_for_older_requests_too() -> None:
    routes = Routes((route(("stale@1",)),), delay_ms=1_000, keep_ms=120_000)
    routes.apply([record(route(("a@1",)), append_ms=START_MS, offset=4)])
    assert names_at(routes, [0, START_MS, START_MS + 2_000]) == [("a@1",)] * 3


def test_versions_that_nobody_can_ask_for_are_forgotten() -> None:
    routes = Routes((route(("m@0",)),), delay_ms=1_000, keep_ms=10_000)
    for number in range(1, 50):
        routes.apply([record(route((f"m@{number}",)), append_ms=START_MS + 2_000 * number, offset=number)])
    assert len(routes.live) <= 10_000 // 2_000 + 2


def test_a_version_that_says_the_same_is_the_same() -> None:
    first = route(fingerprint="one")
    routes = Routes((first,), delay_ms=1_000, keep_ms=10_000)
    routes.apply([record(route(fingerprint="one"), append_ms=START_MS, offset=1)])
    routes.apply([record(route(fingerprint="two"), append_ms=START_MS, offset=2)])
    routes.apply([record(route(fingerprint="one"), append_ms=START_MS, offset=3)])
    assert next(iter(routes.split(np.array([START_MS + 5_000]))))[0].names == {"r": 0}


@settings(max_examples=60)
@given(
    before=st.sampled_from(VERSIONS),
    after=st.sampled_from(VERSIONS),
    ages=st.lists(st.integers(-200, 200), min_size=1, max_size=12),
    fused=st.booleans(),
    one_fetch=st.booleans(),
)
def test_over_a_change_each_request_is_answered_once_by_the_models_of_its_version(
    before: tuple[str, ...], after: tuple[str, ...], ages: list[int], fused: bool, one_fetch: bool
) -> None:
    old, new = (route(models, fingerprint=str(models), deadline_ms=1_000) for models in (before, after))
    rules = app(old)
    models = hosted(*before, *after)
    records = (record(old, append_ms=0, offset=0), record(new, append_ms=START_MS - DELAY_MS, offset=1))
    world = (
        _Split(rules, models)
        if not fused
        else World(FusedStage(rules, models, CODECS, EpochTable(rules)), says_its_name)
    )
    world.feed(assigned())
    world.feed(changed(*records))
    ages = sorted(ages)
    world.now_ms = START_MS + 200
    fetches = [requests([b"x:1"], first=i, append_ms=START_MS + age) for i, age in enumerate(ages)]
    for fetch in [_together(ages)] if one_fetch else fetches:
        world.feed(fetch)
    assert sorted(world.settled) == [(0, i) for i in range(len(ages))]  # at once: no deadline was waited for
    for i, age in enumerate(ages):
        block, row = world.records[0, i]
        wanted = after if age >= 0 else before
        assert block.models == wanted
        answered = {model for bit, model in enumerate(block.models) if int(block.answered[row]) >> bit & 1}
        assert (world.outcome(i), answered) == (("ok", "all_answered"), set(wanted))
        assert world.labels(i)[0] in wanted
    assert {batch.model for batch in world.batches} <= {
        model for age in ages for model in (after if age >= 0 else before)
    }


def _together(ages: list[int]) -> Any:
    event = requests([b"x:1"] * len(ages))
    event.requests.append_ms[:] = [START_MS + age for age in ages]
    return event


class _Split(World):
    """A worker and an aggregator with tables of their own."""

    def __init__(self, rules: AppRules, models: dict[str, ModelRules]) -> None:
        super().__init__(AggregatorStage(rules, EpochTable(rules), CODECS), says_its_name)
        self.worker = World(WorkerStage(rules, models, CODECS, EpochTable(rules)), says_its_name)

    def feed(self, event: Any) -> None:
        super().feed(event)
        self.worker.now_ms = self.now_ms
        self.worker.feed(event)
        sent, self.worker.other = self.worker.other, []
        self.batches = self.worker.batches
        blocks = tuple(effect.answers for effect in sent if isinstance(effect, EmitAnswers))
        if blocks:
            super().feed(AnswersFetched(blocks=blocks, positions={}))


def _worker(models: dict[str, ModelRules], asked: Route, run: Any = says_its_name) -> World:
    rules = app(asked)
    world = World(WorkerStage(rules, models, CODECS, EpochTable(rules), pool="p"), run)
    world.feed(assigned())
    return world


def _said(world: World) -> list[tuple[str, int, list[int]]]:
    sent = [effect.answers for effect in world.other if isinstance(effect, EmitAnswers)]
    return [(answers.model, int(answers.missing[0]), answers.offsets.tolist()) for answers in sent]


def test_a_chosen_model_that_is_not_loaded_is_told_of_at_once() -> None:
    world = _worker(hosted("a@1"), route(("a@1", "b@1", "c@1"), pools=("p", "p", "elsewhere")))
    world.feed(requests([b"x:1"]))
    assert sorted(_said(world)) == [("a@1", Missing.PRESENT, [0]), ("b@1", Missing.NOT_HOSTED, [0])]
    assert world.settled == [(0, 0)]


def test_what_was_with_a_model_that_goes_is_answered_at_once() -> None:
    world = _worker(hosted("a@1", "b@1"), route(("a@1", "b@1"), pools=("p", "p")), lambda _effect: None)
    for first in range(3):
        world.feed(requests([b"x:1"], first=first))
    world.feed(ModelsHosted(models=hosted("b@1")))
    assert {(model, missing) for model, missing, _ in _said(world)} == {("a@1", Missing.NOT_HOSTED)}
    assert sorted(offset for _, _, offsets in _said(world) for offset in offsets) == [0, 1, 2]
    world.feed(requests([b"x:1"], first=3))
    assert _said(world)[-1] == ("a@1", Missing.NOT_HOSTED, [3])
    (call,) = (batch for batch in world.batches if batch.model == "a@1")
    before = len(_said(world))
    world.feed(says_its_name(call))  # it ends when nobody waits for it any more
    assert len(_said(world)) == before


def test_a_model_that_comes_is_asked_from_then_on() -> None:
    world = _worker(hosted("a@1"), route(("a@1", "b@1"), pools=("p", "p")))
    world.feed(ModelsHosted(models=hosted("a@1", "b@1")))
    world.feed(requests([b"x:1"]))
    assert sorted(_said(world)) == [("a@1", Missing.PRESENT, [0]), ("b@1", Missing.PRESENT, [0])]


def test_a_new_version_decides_by_what_is_known_of_the_models_that_both_have() -> None:
    old, new = (route(models, policy=Hedge(), learns=True) for models in (("a@1", "b@1"), ("b@1", "a@1", "c@1")))
    rules = AppRules(routes=(old,))
    live, fresh = EpochTable(rules), EpochTable(rules)
    data = old.policy.dump(old.policy.load({"losses": {"a@1": 0.0, "b@1": 3.0}, "events": 3}, old.models))
    state = StateRecord(
        route="r", context="", policy="hedge", data=data, includes={0: 5}, partition=0, epoch=7, append_ms=START_MS
    )
    versions = changed(record(old, append_ms=0, offset=0), record(new, append_ms=START_MS, offset=1))
    for event in (StatesFetched(states=(state,)), versions):
        live.take(event)
    for event in (versions, StatesFetched(states=(state,))):
        fresh.take(event)
    for table in (live, fresh):
        index = table.routes.newest.names["r"]
        weights = dict(zip(new.models, table.weights_of_all(index, 7), strict=True))
        assert weights["a@1"] > weights["c@1"] > weights["b@1"]
    column = np.full(50, START_MS + 5_000)
    choices = [
        t.choose(t.routes.newest.names["r"], np.zeros(50, np.int64), np.arange(50), column) for t in (live, fresh)
    ]
    assert choices[0].chosen.tolist() == choices[1].chosen.tolist()
    assert choices[0].epoch.tolist() == [7] * 50


def _learner(*models: str) -> tuple[Any, Route]:
    learnt = next(one for one in learning_case.rules_of().routes if one.name == "r")
    return learning_case.update_of(), replace(learnt, models=models, fingerprint=str(models))


def test_a_learner_goes_on_with_the_models_that_both_versions_have() -> None:
    stage, new = _learner("b@1", "c@1")
    now_ms = learning_case.NOW_MS
    old = next(one for one in learning_case.rules_of().routes if one.name == "r")
    learning_case.ready(stage)
    versions = (record(old, append_ms=0, offset=0), record(new, append_ms=now_ms + 1_000, offset=1))
    stage.handle(changed(*versions), now_ms)
    before = learning_case.outcome(0, {"a@1": 1.0, "b@1": 0.5})
    stage.handle(learning_case.outcomes(before), now_ms)
    sent = learning_case.only(stage.handle(Tick(), now_ms + 250), EmitState)
    assert set(sent.state.data["losses"]) == {"a@1", "b@1"}
    snapshot = stage.handle(learning_case.ack(sent, 3, now_ms), now_ms)[0]
    stage.handle(learning_case.ack(snapshot), now_ms)  # type: ignore[arg-type]
    after = replace(learning_case.outcome(1, {"b@1": 0.5, "c@1": 0.0}), append_ms=now_ms + 1_000 + DELAY_MS)
    stage.handle(learning_case.outcomes(after), now_ms + 300)
    again = learning_case.only(stage.handle(Tick(), now_ms + 900), EmitState)
    assert set(again.state.data["losses"]) == {"b@1", "c@1"}
    assert again.state.data["events"] > sent.state.data["events"]
