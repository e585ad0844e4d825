"""A second opinion: who gets one, whose answer counts, what the record says, and that nothing is later for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.effects import EmitAnswers, RunBatch
from streamserve.core.events import AnswersFetched, BatchFinished, StatesFetched, StatesKnownUntil
from streamserve.core.losses import losses_of
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import Decision, FeedbackRecord, StateRecord
from streamserve.core.route_versions import RoutesRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.ab import AB
from streamserve.core.selection.confident import ConfidenceRules, Confident, ConfidentState
from streamserve.core.selection.exp3ix import Exp3IX
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.second import WithSecond
from streamserve.core.selection.static import Static
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.worker import WorkerStage
from streamserve.core.switches import SwitchRecord
from streamserve.errors import ConfigError
from streamserve.kafka.codecs.answers import decode_answers, encode_answers
from streamserve.kafka.codecs.decisions import decode_decision
from streamserve.kafka.codecs.learning import decode_outcome, encode_outcome
from streamserve.kafka.codecs.predictions import encode_predictions
from streamserve.testing.policy_checks import outcome_of
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, finished, model_rules, of, requests, route
from tests.effort import examples

FIRST, SECOND = "quick@1", "forest@1"
CLASSES = np.array([0, 1])


def confident(policy: Any = None) -> Confident:
    around = WithSecond(policy=policy or Static(), second=SECOND)
    return Confident(policy=around, rules=ConfidenceRules(of="probability"), combine="vote")


def rules_of(policy: Confident | None = None, models: tuple[str, ...] = (FIRST,), **changes: Any) -> AppRules:
    policy = policy or confident()
    made = route((*models, SECOND), policy=policy, learns=True, second=SECOND, confidence_threshold=0.8, **changes)
    return app(made, guard_ms=10)


def run(effect: RunBatch) -> BatchFinished:
    """A row is (label of the first, how sure it is); the second says 10 more."""
    label = effect.inputs[:, 0].astype(np.int64) + 10 * (effect.model == SECOND)
    sure = effect.inputs[:, 1]
    return finished(effect, labels=label, probabilities=np.stack((sure, 1.0 - sure), axis=1), classes=CLASSES)


def fused(rules: AppRules, how: Any = run) -> World:
    w = World(FusedStage(rules, model_rules(rules), CODECS, epochs(rules)), how)
    w.feed(assigned(0))
    return w


def decision_of(w: World, offset: int) -> Decision:
    block, i = w.records[0, offset]
    found = decode_decision(encode_predictions(block).values[i] or b"")
    assert found is not None
    return found


def test_what_is_sure_is_answered_and_what_is_not_gets_another_answer() -> None:
    w = fused(rules_of())
    w.feed(requests([b"x:3,0.99", b"x:4,0.6"]))
    assert w.labels(0) == [3]
    assert w.labels(1) == [14]
    sure, asked = decision_of(w, 0), decision_of(w, 1)
    assert (sure.chosen, sure.second, sure.members) == ((FIRST,), None, {FIRST: [3]})
    assert (asked.chosen, asked.second, asked.members) == ((FIRST,), SECOND, {FIRST: [4], SECOND: [14]})
    assert (asked.first_answer, asked.probability) == ([4], 1.0)
    assert sure.agreement == pytest.approx(0.99)
    assert asked.agreement == pytest.approx(0.6)
    assert w.outcome(1) == ("ok", "all_answered")
    assert [batch.model for batch in w.batches] == [FIRST, SECOND]
    assert [len(batch.inputs) for batch in w.batches] == [2, 1]
    assert w.stage.idle


def test_many_rows_are_sure_on_the_average() -> None:
    w = fused(rules_of())
    w.feed(requests([b"x:3,0.99;4,0.7", b"x:4,0.9;5,0.5"]))
    assert w.labels(0) == [3, 4]
    assert w.labels(1) == [14, 15]


def split(
    rules: AppRules, events: list[Any], lose_second: bool = False, hosted: Any = None, now_ms: int = START_MS
) -> World:
    """A worker and an aggregator with nothing between them but records of answers."""
    worker = World(WorkerStage(rules, hosted or model_rules(rules), CODECS, epochs(rules)), run)
    aggregator = World(AggregatorStage(rules, epochs(rules), CODECS))
    for stage in (worker, aggregator):
        stage.feed(assigned(0))
        stage.now_ms = now_ms
        for event in events:
            stage.feed(event)
    blocks = [
        decode_answers(record, 0)
        for emit in of(worker.other, EmitAnswers)
        if not (lose_second and emit.answers.model == SECOND)
        for record in encode_answers(emit.answers)
    ]
    for block in blocks:
        aggregator.feed(AnswersFetched(blocks=(block,), positions={0: 1}))
    assert len(worker.settled) == len(set(worker.settled)) == len(events[-1].requests)
    return aggregator


def test_it_is_the_same_where_aggregators_are_processes_of_their_own() -> None:
    asked = requests([b"x:3,0.99", b"x:4,0.6"])
    w = split(rules_of(), [StatesKnownUntil(known_until_ms=START_MS + 1_000), asked])
    assert (w.labels(0), w.labels(1)) == ([3], [14])
    assert decision_of(w, 1).second == SECOND
    assert not w.records[0, 1][0].off_epoch.any()
    assert not w.records[0, 1][0].choice.stale.any()


def test_a_second_opinion_that_does_not_come_costs_no_time_beyond_the_deadline() -> None:
    w = split(rules_of(), [requests([b"x:3,0.99", b"x:4,0.6"])], lose_second=True)
    assert (0, 1) not in w.records
    w.at(89)
    assert (0, 1) not in w.records
    w.at(90)  # the deadline of 100 less the guard of 10
    assert (w.labels(1), w.outcome(1)) == ([4], ("partial", "members_missing"))
    assert decision_of(w, 1).members == {FIRST: [4]}
    block, _ = w.records[0, 1]
    assert b'"missing":"forest@1=late"' in (encode_predictions(block).values[0] or b"")


def test_none_is_asked_for_that_would_come_too_late() -> None:
    rules = rules_of()
    stage = FusedStage(rules, model_rules(rules), CODECS, epochs(rules))
    held: list[RunBatch] = []

    def slow(effect: RunBatch) -> BatchFinished | None:
        done = run(effect)
        return BatchFinished(
            batch=done.batch, outputs=done.outputs, duration_ms=80.0 if effect.model == SECOND else 1.0
        )

    def holding(effect: RunBatch) -> BatchFinished | None:
        held.append(effect)
        return None

    w = World(stage, slow)
    w.feed(assigned(0))
    for offset in range(12):  # it learns that the second model takes 80 ms
        w.feed(requests([b"x:4,0.6"], first=offset, append_ms=w.now_ms))
    assert w.labels(0) == [14]
    w.run, asked = holding, len(w.batches)
    w.feed(requests([b"x:4,0.6"], first=50, append_ms=w.now_ms))
    w.at(40)
    w.run = slow
    w.feed(slow(held[0]))
    assert (w.labels(50), w.outcome(50)) == ([4], ("ok", "all_answered"))
    assert [batch.model for batch in w.batches[asked:]] == [FIRST]
    assert decision_of(w, 50).second is None


def test_a_refused_second_opinion_leaves_the_first_answer_at_once() -> None:
    def refusing(effect: RunBatch) -> BatchFinished:
        if effect.model == SECOND:
            return BatchFinished(batch=effect.batch, outputs=None, error="no", duration_ms=1.0)
        return run(effect)

    w = fused(rules_of(), refusing)
    w.feed(requests([b"x:4,0.6"]))
    assert (w.labels(0), w.outcome(0)) == ([4], ("partial", "members_missing"))


@pytest.mark.parametrize(
    ("headers", "switched"),
    [((("ss-without", b"forest"),), False), ((("mlserver-model", b"quick"),), False), ((), True)],
)
def test_a_request_that_leaves_it_out_or_names_its_model_gets_none(headers: Any, switched: bool) -> None:
    w = fused(rules_of())
    if switched:
        switch = SwitchRecord(model=SECOND, disabled=True, append_ms=START_MS - 1_000, offset=0)
        w.feed(StatesFetched(states=(), switches=(switch,)))
    w.feed(requests([b"x:4,0.6"], headers=headers))
    assert w.labels(0) == [4]
    assert [batch.model for batch in w.batches] == [FIRST]


def test_a_request_may_name_the_second_model_and_has_its_answer_alone() -> None:
    w = fused(rules_of())
    w.feed(requests([b"x:4,0.6"], headers=(("mlserver-model", b"forest"),)))
    assert w.labels(0) == [14]
    assert (decision_of(w, 0).chosen, decision_of(w, 0).second) == ((SECOND,), None)


# -- learning -----


def judged(policy: Confident, state: ConfidentState, sure: float, wrong: bool, second: bool | None) -> ConfidentState:
    """One label for a first answer, and for a second one if there was one (`second`: whether it is wrong)."""
    losses = {FIRST: float(wrong)} | ({} if second is None else {SECOND: float(second)})
    outcome = outcome_of(losses, chosen=(FIRST,))
    members: dict[str, Any] = {FIRST: [int(wrong)]} | ({} if second is None else {SECOND: [int(second)]})
    answer = members.get(SECOND, members[FIRST])
    fields: dict[str, Any] = {
        "agreement": sure,
        "members": members,
        "label": answer,
        "second": None if second is None else SECOND,
    }
    outcome = replace(outcome, decision=replace(outcome.decision, **fields))
    again = decode_outcome(encode_outcome(outcome), partition=0, offset=0, append_ms=0)
    return policy.learn(state, again)


def test_the_first_answer_is_judged_though_another_one_was_given() -> None:
    """A model that is never right where it says 0.7 is asked about by what it says, not by what was answered."""
    policy, models = confident(), (FIRST, SECOND)
    state = policy.initial(models)
    for _ in range(100):
        state = judged(policy, state, 0.7, wrong=True, second=False)
        state = judged(policy, state, 0.95, wrong=False, second=None)
    said = policy.confidence(state, np.array([0.7, 0.95]))
    assert said[0] < 0.1
    assert said[1] > 0.95
    assert policy.confidence_of_second(state) > 0.95
    assert policy.load(policy.dump(state), models) == state


def test_a_learnt_confidence_decides_who_is_asked_and_stands_in_the_prediction() -> None:
    policy, models = confident(), (FIRST, SECOND)
    state = policy.initial(models)
    for _ in range(200):  # it is always right, however unsure it says it is
        state = judged(policy, state, 0.6, wrong=False, second=False)
    record = StateRecord(
        route="r", context="", policy="static", data=policy.dump(state), includes={}, partition=0, epoch=5,
        append_ms=START_MS - 1_000,
    )  # fmt: skip
    states = StatesFetched(states=(record,))
    w = split(rules_of(), [states, requests([b"x:4,0.6", b"x:4,0.3"])])
    assert w.labels(0) == [4]
    assert w.records[0, 0][0].confidence[0] > 0.95
    assert w.labels(1) == [14]  # of 0.7, the higher of the two, nothing is known
    block, i = w.records[0, 1]
    assert block.confidence[i] == pytest.approx(policy.confidence_of_second(state))


def test_another_second_model_has_to_earn_its_confidence() -> None:
    policy, models = confident(), (FIRST, SECOND)
    state = policy.initial(models)
    for _ in range(100):
        state = judged(policy, state, 0.7, wrong=True, second=False)
    other = replace(policy, policy=WithSecond(policy=Static(), second="other@1"))
    turned = other.load(policy.dump(state), (FIRST, "other@1"))
    assert turned.second == other.initial((FIRST, "other@1")).second
    assert turned.learnt == state.learnt
    assert judged(other, turned, 0.7, wrong=True, second=False).second == turned.second  # it was not asked
    older = {key: value for key, value in policy.dump(state)["confidence"].items() if key != "second_of"}
    assert policy.load({**policy.dump(state), "confidence": older}, models) == state


@settings(max_examples=examples(40))
@given(
    ages=st.lists(st.integers(-200, 200), min_size=1, max_size=10),
    sures=st.lists(st.sampled_from([0.6, 0.99]), min_size=10, max_size=10),
    change=st.sampled_from([((FIRST,), "other@1"), (("new@1", FIRST), SECOND), ((SECOND,), FIRST), ((FIRST,), None)]),
    backwards=st.booleans(),
    is_fused=st.booleans(),
)
def test_over_a_change_each_request_gets_the_opinions_of_its_version(
    ages: list[int], sures: list[float], change: tuple[tuple[str, ...], str | None], backwards: bool, is_fused: bool
) -> None:
    versions = [version((FIRST,), SECOND), version(*change)]
    if backwards:
        versions.reverse()
    old, new = versions
    rules = app(old, guard_ms=10)
    change_ms = START_MS - rules.routes_delay_ms
    records = tuple(
        RoutesRecord(number=offset, routes=(one,), append_ms=ms, offset=offset)
        for offset, (one, ms) in enumerate([(old, 0), (new, change_ms)])
    )
    hosted = model_rules(app(old, new))
    ages = sorted(ages)
    asked = requests([b"x:%d,%.2f" % (i, sures[i]) for i in range(len(ages))])
    asked.requests.append_ms[:] = [START_MS + age for age in ages]
    events: list[Any] = [StatesFetched(states=(), routes=records), StatesKnownUntil(known_until_ms=START_MS + 1_000)]
    if is_fused:
        w = World(FusedStage(rules, hosted, CODECS, epochs(rules)), run)
        w.feed(assigned(0))
        w.now_ms = START_MS + 200
        for event in (*events, asked):
            w.feed(event)
    else:
        w = split(rules, [*events, asked], hosted=hosted, now_ms=START_MS + 200)
    for i, age in enumerate(ages):
        mine = new if age >= 0 else old
        decision = decision_of(w, i)
        (first,) = decision.chosen
        assert first in mine.models and first != mine.second
        assert decision.second == (mine.second if sures[i] < 0.8 else None)
        assert set(decision.members) == {first} | ({decision.second} if decision.second else set())
        assert w.outcome(i) == ("ok", "all_answered")


def version(firsts: tuple[str, ...], second: str | None) -> Route:
    """One model is asked first, drawn; without a second one every answer is sure enough."""
    policy: Any = Exp3IX()
    if second is not None:
        policy = WithSecond(policy=policy, second=second)
    models = firsts if second is None else (*firsts, second)
    made = Confident(policy=policy, rules=ConfidenceRules(of="probability"), combine="vote")
    threshold = 0.0 if second is None else 0.8
    return route(
        models, policy=made, learns=True, second=second, confidence_threshold=threshold, deadline_ms=1_000,
        fingerprint=f"{models} {second}",
    )  # fmt: skip


def test_feedback_is_about_the_answer_that_was_given() -> None:
    w = fused(rules_of())
    w.feed(requests([b"x:4,0.6"]))
    decision = decision_of(w, 0)

    def losses(**changes: Any) -> Any:
        record = FeedbackRecord(partition=0, offset=0, append_ms=0, ref=(0, 0), id=None, **changes)
        return losses_of("vote", decision, decision.members, record)

    assert losses(reward=0.25) == {SECOND: 0.75}
    assert losses(reward=0.25, model="quick") == {FIRST: 0.75}
    assert losses(label=4, has_label=True) == {FIRST: 0.0, SECOND: 1.0}


@pytest.mark.parametrize("policy", [AB(), Exp3IX()], ids=lambda policy: policy.name)
def test_the_policy_within_never_chooses_it_and_keeps_its_probabilities(policy: Any) -> None:
    models = (FIRST, "other@1", SECOND)
    around = WithSecond(policy=policy, second=SECOND)
    found = around.distribution(around.initial(models), models)
    own = policy.distribution(policy.initial(models[:2]), models[:2])
    assert found.masks.tolist() == own.masks.tolist() == [1, 2]
    assert found.probabilities.tolist() == own.probabilities.tolist()
    assert int(found.probabilities.sum()) == PROBABILITY_ONE
    assert found.weights.tolist() == [*own.weights.tolist(), 0.0]
    state = around.learn(
        around.initial(models), outcome_of({FIRST: 1.0, SECOND: 0.0}, chosen=(FIRST,), probability=0.5)
    )
    assert around.load(around.dump(state), models) == state


def test_policies_that_always_ask_several_are_refused() -> None:
    with pytest.raises(ConfigError, match="asks several models at once"):
        WithSecond(policy=Hedge(), second=SECOND).initial((FIRST, "other@1", SECOND))
