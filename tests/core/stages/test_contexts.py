"""Feedback of a context teaches the states of all its levels; there are so many states and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamserve.core.contexts import ContextRule
from streamserve.core.effects import EmitOutcomes, EmitSnapshot, EmitState, Settle
from streamserve.core.epochs import outcome_partition
from streamserve.core.events import OutcomesFetched, ProduceFailed, Tick
from streamserve.core.records import OutcomeRecord, Outcomes
from streamserve.core.routes import AppRules
from streamserve.core.stages.join import JoinOptions, JoinStage
from streamserve.core.stages.update import UpdateOptions, UpdateStage
from tests.core.stages.learning_case import (
    NOW_MS,
    PARTITIONS,
    ack,
    assigned,
    counts,
    decode,
    feedback,
    fetched,
    of_kind,
    only,
    outcome,
    prediction,
    predictions,
    ready,
    rules_of,
)

CONTEXT = "eu/alice"
LEVELS = ("", "eu", CONTEXT)


def with_contexts(**rule: Any) -> AppRules:
    rules = rules_of()
    learnt = replace(rules.routes[0], contexts=ContextRule(**rule))
    return replace(rules, routes=(learnt, *rules.routes[1:]))


def home(context: str) -> int:
    return outcome_partition("r", context, PARTITIONS)


def joining() -> JoinStage:
    stage = JoinStage(with_contexts(), JoinOptions(partitions=PARTITIONS), decode, lambda _raw: None)
    stage.handle(assigned(0), NOW_MS)
    stage.handle(predictions(0, prediction(7, context=CONTEXT), prediction(8)), NOW_MS)
    return stage


def sent_by(stage: JoinStage) -> list[EmitOutcomes]:
    effects = stage.handle(fetched(feedback(0, ref=(0, 7)), feedback(1, ref=(0, 8))), NOW_MS)
    return of_kind(effects, EmitOutcomes)


def test_feedback_gives_one_outcome_a_level_and_the_most_special_one_is_primary() -> None:
    emitted = [one for sent in sent_by(joining()) for one in sent.outcomes]
    mine = [one for one in emitted if one.ref == (0, 7)]
    assert {one.context: (one.primary, one.to_partition) for one in mine} == {
        level: (level == CONTEXT, home(level)) for level in LEVELS
    }
    assert {one.decision.context for one in mine} == {CONTEXT}
    assert [(one.context, one.primary) for one in emitted if one.ref == (0, 8)] == [("", True)]


def test_feedback_is_settled_when_the_outcomes_of_all_its_levels_stand_in_the_log() -> None:
    stage = joining()
    sent, settled = sent_by(stage), []
    for one in sent:
        assert 0 not in settled or one is sent[-1]
        settled += [offset for each in of_kind(stage.handle(ack(one), NOW_MS), Settle) for offset in each.offsets]
    assert sorted(settled) == [0, 1] and stage.idle


def test_an_outcome_that_failed_is_sent_again_alone_and_holds_back_only_its_own_feedback() -> None:
    stage = joining()
    sent = sent_by(stage)
    failing = next(one for one in sent if any(each.context == "eu" for each in one.outcomes))
    settled = []
    for one in sent:
        event = ProduceFailed(token=one.token, error="no") if one is failing else ack(one)
        settled += [int(o) for each in of_kind(stage.handle(event, NOW_MS), Settle) for o in each.offsets]
    assert 0 not in settled
    again = of_kind(stage.handle(Tick(), NOW_MS + 1_000), EmitOutcomes)
    assert sorted(one.context for each in again for one in each.outcomes) == sorted(
        one.context for one in failing.outcomes
    )
    for each in again:
        settled += [int(o) for one in of_kind(stage.handle(ack(each), NOW_MS + 1_000), Settle) for o in one.offsets]
    assert sorted(settled) == [0, 1] and stage.idle


# -- states -------------------------------------------------------------------------------------------------------


def updating(rules: AppRules, **options: Any) -> UpdateStage:
    return UpdateStage(rules, UpdateOptions(partitions=PARTITIONS, **options))


def learn(stage: UpdateStage, *records: OutcomeRecord) -> list[Any]:
    partition = records[0].partition
    fetch = Outcomes(partition=partition, records=records, next_offset=records[-1].offset + 1)
    return stage.handle(OutcomesFetched(outcomes=fetch), NOW_MS)


def in_context(offset: int, context: str) -> OutcomeRecord:
    at = home(context)
    return replace(outcome(offset), context=context, to_partition=at, partition=at)


def neighbours(n: int) -> list[str]:
    """Contexts whose states share the partition of the state for all."""
    return [name for name in (f"c{i}" for i in range(100)) if home(name) == home("")][:n]


def test_states_of_one_partition_are_published_apart_and_a_snapshot_covers_what_all_of_them_have() -> None:
    stage = updating(with_contexts())
    ready(stage)
    one, two, three = neighbours(3)
    learn(stage, in_context(0, one), in_context(1, two), in_context(2, three))
    sent = of_kind(stage.handle(Tick(), NOW_MS + 250), EmitState)
    assert sorted(each.state.context for each in sent) == sorted((one, two, three))
    covers: dict[str, int] = {}
    snapshots = []
    for epoch, each in enumerate(sent, start=10):
        snapshots.append(only(stage.handle(ack(each, epoch, NOW_MS + 260), NOW_MS + 260), EmitSnapshot))
        covers[each.state.context] = snapshots[-1].state.covers
    # No snapshot may claim the record of a state whose own snapshot is not there yet.
    assert set(covers.values()) == {0}
    stage.handle(ack(snapshots[0]), NOW_MS + 270)
    stage.handle(ack(snapshots[1]), NOW_MS + 270)
    settled = only(stage.handle(ack(snapshots[2]), NOW_MS + 270), Settle)
    assert settled.offsets.tolist() == [2] and stage.idle
    learn(stage, in_context(3, one))
    again = only(stage.handle(Tick(), NOW_MS + 1_000), EmitState)
    assert only(stage.handle(ack(again, 20, NOW_MS + 1_000), NOW_MS + 1_000), EmitSnapshot).state.covers == 21


def test_a_context_too_many_gets_no_state_and_is_counted() -> None:
    stage = updating(with_contexts(most=2))
    ready(stage)
    names = neighbours(4)
    effects = learn(stage, *(in_context(offset, name) for offset, name in enumerate(names)))
    assert counts(effects) == {"learnt": 2, "too_many_contexts": 2}
    assert only(effects, Settle).offsets.tolist() == [2, 3]
    # Those that have a state go on, and so does the one for all.
    effects = learn(stage, in_context(4, names[1]), in_context(5, ""), in_context(6, names[3]))
    assert counts(effects) == {"learnt": 2, "too_many_contexts": 1}


def test_a_context_of_a_route_without_contexts_teaches_nothing() -> None:
    rules = rules_of()
    stage = updating(replace(rules, routes=(replace(rules.routes[0], contexts=None), *rules.routes[1:])))
    ready(stage)
    assert counts(learn(stage, in_context(0, neighbours(1)[0]))) == {"no_contexts": 1}


def test_states_at_rest_are_all_published_again_when_their_time_has_come() -> None:
    stage = updating(with_contexts(), republish_ms=60_000)
    ready(stage)
    names = neighbours(3)
    learn(stage, *(in_context(offset, name) for offset, name in enumerate(names)))
    for epoch, each in enumerate(of_kind(stage.handle(Tick(), NOW_MS + 250), EmitState)):
        stage.handle(ack(only(stage.handle(ack(each, epoch, NOW_MS), NOW_MS + 250), EmitSnapshot)), NOW_MS + 300)
    assert stage.next_deadline_ms() == NOW_MS + 60_300
    assert stage.handle(Tick(), NOW_MS + 60_299) == []
    again = of_kind(stage.handle(Tick(), NOW_MS + 60_300), EmitState)
    assert sorted(each.state.context for each in again) == sorted(names)
