"""Keyed contexts in the join and the update stage: where they are taught, taken over, forgotten and counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.contexts import ContextRule, is_keyed
from streamserve.core.effects import Count, EmitOutcomes, EmitSnapshot, EmitState, ForgetState, Settle
from streamserve.core.events import (
    ContextsFetched,
    Produced,
    ProduceFailed,
    Revoked,
    StatesFetched,
    StatesKnownUntil,
    Tick,
)
from streamserve.core.records import OutcomeRecord, StateRecord, UnreadableState
from streamserve.core.route_versions import RoutesRecord
from streamserve.core.routes import AppRules
from streamserve.core.stages.join import JoinOptions, JoinStage
from streamserve.core.stages.update import UpdateOptions, UpdateStage
from streamserve.errors import ContractError
from tests.core.stages.learning_case import (
    NOW_MS,
    PARTITIONS,
    assigned,
    counts,
    decode,
    feedback,
    fetched,
    of_kind,
    only,
    outcome,
    outcomes,
    prediction,
    predictions,
    rules_of,
)
from tests.effort import examples

ALICE = "eu//alice"
FORGET_MS = 60_000
KEEP_MS = 10_000
AT = 0
"""Partition of these requests."""


def rules(**rule: Any) -> AppRules:
    found = rules_of()
    contexts = ContextRule(source="key", keyed=True, forget_after_ms=FORGET_MS, **rule)
    return replace(found, routes=(replace(found.routes[0], contexts=contexts), *found.routes[1:]))


def updating(*, loaded: bool = True, begun: Iterable[StateRecord] = (), **options: Any) -> UpdateStage:
    rule = options.pop("rule", {})
    stage = UpdateStage(rules(**rule), UpdateOptions(partitions=PARTITIONS, keep_ms=KEEP_MS, **options))
    take(stage, loaded=loaded, begun=begun)
    return stage


def take(stage: UpdateStage, *, loaded: bool = True, begun: Iterable[StateRecord] = (), **resume: Any) -> list[Any]:
    effects = stage.handle(assigned(AT, **resume), NOW_MS)
    effects += stage.handle(ContextsFetched(partition=AT, states=tuple(begun)), NOW_MS)
    if loaded:
        effects += stage.handle(ContextsFetched(partition=AT, loaded=True), NOW_MS)
    return effects + stage.handle(StatesKnownUntil(known_until_ms=NOW_MS), NOW_MS)


def of(offset: int, context: str = ALICE, append_ms: int = NOW_MS, **changed: Any) -> OutcomeRecord:
    changed = {"ref": (AT, offset), "to_partition": AT, "partition": AT, **changed}
    return outcome(offset, context=context, append_ms=append_ms, **changed)


class Topic:
    """Epochs and contexts of the partition, as a broker keeps them: each record acknowledged at once."""

    def __init__(self) -> None:
        self.epochs: list[StateRecord] = []
        self.contexts: dict[str, StateRecord] = {}
        self.effects: list[Any] = []

    def play(self, stage: UpdateStage, effects: list[Any], now_ms: int = NOW_MS, *, most: int = 1 << 30) -> int:
        """Acknowledge what was sent, and what that leads to; at most so many records."""
        waiting, done = list(effects), 0
        while waiting:
            effect = waiting.pop(0)
            self.effects.append(effect)
            if not isinstance(effect, EmitState | EmitSnapshot | ForgetState):
                continue
            if done == most:
                return done
            done += 1
            offset = -1
            if isinstance(effect, EmitState):
                offset = len(self.epochs)
                self.epochs.append(replace(effect.state, epoch=offset, append_ms=now_ms))
            elif isinstance(effect, EmitSnapshot):
                if is_keyed(effect.state.context):
                    self.contexts[effect.state.context] = effect.state
            else:
                del self.contexts[effect.context]
            event = Produced(token=effect.token, offsets={AT: offset}, append_ms=now_ms)
            waiting += stage.handle(event, now_ms)
        return done


def events_of(state: StateRecord) -> int:
    return int(state.data["events"])


# -- join -----------------------------------------------------------------------------------------------------------


def test_the_outcome_for_a_key_goes_to_the_partition_of_its_requests() -> None:
    stage = JoinStage(rules(), JoinOptions(partitions=PARTITIONS), decode, lambda _raw: None)
    stage.handle(assigned(2), NOW_MS)
    stage.handle(predictions(2, prediction(7, context=ALICE)), NOW_MS)
    emitted = of_kind(stage.handle(fetched(feedback(0, 2, ref=(2, 7))), NOW_MS), EmitOutcomes)
    found = {one.context: (one.to_partition, one.primary) for each in emitted for one in each.outcomes}
    assert set(found) == {"", "eu", ALICE} and found[ALICE] == (2, True)


# -- learning -------------------------------------------------------------------------------------------------------


def test_nothing_is_learnt_before_the_keyed_states_are_read() -> None:
    stage = updating(loaded=False)
    assert not of_kind(stage.handle(outcomes(of(0)), NOW_MS), Count)
    assert stage.handle(StatesKnownUntil(known_until_ms=NOW_MS + 1), NOW_MS + 1) == []
    assert counts(stage.handle(ContextsFetched(partition=AT, loaded=True), NOW_MS)) == {"learnt": 1}


def test_a_state_rests_packed_and_goes_on_where_it_was() -> None:
    stage, topic = updating(), Topic()
    for number in range(3):
        topic.play(stage, stage.handle(outcomes(of(number)), NOW_MS + 1_000 * number))
        topic.play(stage, stage.handle(Tick(), NOW_MS + 1_000 * number + 250), NOW_MS + 1_000 * number + 260)
    assert [events_of(state) for state in topic.epochs] == [1, 2, 3]
    assert [state.previous for state in topic.epochs] == [-1, 0, 1]
    assert [state.learnt_ms for state in topic.epochs] == [NOW_MS] * 3
    assert topic.contexts[ALICE] == replace(topic.epochs[-1], covers=3)
    assert stage.idle and stage.next_deadline_ms() is None
    assert stage.fills()["keyed_contexts"].used == 1
    settled = [int(n) for each in of_kind(topic.effects, Settle) for n in each.offsets]
    assert settled == [0, 1, 2]


def test_what_is_not_of_this_partition_or_route_teaches_nothing() -> None:
    stage = updating()
    assert counts(stage.handle(outcomes(of(0, ref=(1, 5))), NOW_MS)) == {"misplaced": 1}
    plain = UpdateStage(rules_of(), UpdateOptions(partitions=PARTITIONS))
    plain.handle(assigned(AT), NOW_MS)
    plain.handle(StatesKnownUntil(known_until_ms=NOW_MS), NOW_MS)
    assert counts(plain.handle(outcomes(of(0)), NOW_MS)) == {"no_contexts": 1}


def test_a_key_too_many_gets_no_state_and_is_counted() -> None:
    stage, topic = updating(rule={"most_keyed": 2}), Topic()
    for number in range(3):
        topic.play(stage, stage.handle(outcomes(of(number, f"//{number}")), NOW_MS))
        topic.play(stage, stage.handle(Tick(), NOW_MS + 250))
    assert sorted(topic.contexts) == ["//0", "//1"]
    assert [c.label for c in of_kind(topic.effects, Count)] == ["learnt", "learnt", "too_many_contexts"]
    assert counts(stage.handle(outcomes(of(3, "//1")), NOW_MS)) == {"learnt": 1}


def test_an_outcome_after_its_state_is_forgotten_begins_anew() -> None:
    stage, topic = updating(), Topic()
    late_ms = NOW_MS + FORGET_MS
    for number, append_ms in enumerate((NOW_MS, late_ms, late_ms + FORGET_MS + 1)):
        topic.play(stage, stage.handle(outcomes(of(number, append_ms=append_ms)), append_ms))
        topic.play(stage, stage.handle(Tick(), append_ms + 250), append_ms + 250)
    assert [events_of(state) for state in topic.epochs] == [1, 2, 1]


# -- forgetting, and at rest -----------------------------------------------------------------------------------------


def test_a_forgotten_state_leaves_the_log_and_the_memory() -> None:
    stage, topic = updating(), Topic()
    topic.play(stage, stage.handle(outcomes(of(0), of(1, "//bob")), NOW_MS))
    topic.play(stage, stage.handle(Tick(), NOW_MS + 250), NOW_MS + 250)
    due_ms = NOW_MS + FORGET_MS + KEEP_MS

    def known(ms: int) -> list[Any]:
        return stage.handle(StatesKnownUntil(known_until_ms=ms), ms)

    assert not of_kind(known(due_ms - 1), ForgetState) and len(topic.contexts) == 2
    lost, kept = of_kind(known(due_ms + 1_000), ForgetState)
    stage.handle(ProduceFailed(token=lost.token, error="no"), due_ms + 1_000)
    topic.play(stage, [kept], due_ms + 1_000)
    assert list(topic.contexts) == [lost.context]
    topic.play(stage, known(due_ms + 3_000), due_ms + 3_000)  # one that failed is sent again
    assert not topic.contexts and stage.fills()["keyed_contexts"].used == 0
    assert not known(due_ms + 100_000) and stage.idle
    assert sum(c.n for c in of_kind(topic.effects, Count) if (c.what, c.label) == ("contexts", "forgotten")) >= 1


def test_one_that_learns_again_while_its_tombstone_is_on_its_way_is_kept() -> None:
    stage, topic = updating(), Topic()
    topic.play(stage, stage.handle(outcomes(of(0)), NOW_MS))
    topic.play(stage, stage.handle(Tick(), NOW_MS + 250), NOW_MS + 250)
    now_ms = NOW_MS + FORGET_MS + KEEP_MS + 1_000
    tombstone = only(stage.handle(StatesKnownUntil(known_until_ms=now_ms), now_ms), ForgetState)
    stage.handle(outcomes(of(1, append_ms=now_ms)), now_ms)
    sent = stage.handle(Tick(), now_ms + 250)
    topic.play(stage, [tombstone, *sent], now_ms + 250)
    assert events_of(topic.contexts[ALICE]) == 1 and stage.fills()["keyed_contexts"].used == 1
    topic.play(stage, stage.handle(outcomes(of(2, append_ms=now_ms)), now_ms))
    topic.play(stage, stage.handle(Tick(), now_ms + 900), now_ms + 900)
    assert events_of(topic.contexts[ALICE]) == 2


def test_a_state_at_rest_is_published_again_but_learns_nothing_by_it() -> None:
    stage, topic = updating(republish_ms=20_000), Topic()
    topic.play(stage, stage.handle(outcomes(of(0)), NOW_MS))
    topic.play(stage, stage.handle(Tick(), NOW_MS + 250), NOW_MS + 250)
    for ms in range(NOW_MS, NOW_MS + 50_000, 500):
        topic.play(stage, stage.handle(StatesKnownUntil(known_until_ms=ms), ms), ms)
    assert [state.learnt_ms for state in topic.epochs] == [NOW_MS] * 3
    assert [events_of(state) for state in topic.epochs] == [1] * 3
    assert topic.contexts[ALICE].epoch == 2 and topic.contexts[ALICE].previous == 1


def test_a_context_that_begins_in_another_partition_has_moved_and_is_counted() -> None:
    stage, topic = updating(), Topic()
    topic.play(stage, stage.handle(outcomes(of(0)), NOW_MS))
    topic.play(stage, stage.handle(Tick(), NOW_MS + 250))
    elsewhere = replace(topic.epochs[0], partition=2, includes={2: 5}, epoch=9)
    again = replace(elsewhere, previous=9, epoch=12)
    other = replace(elsewhere, context="//bob")
    effects = stage.handle(StatesFetched(states=(elsewhere, again, other, topic.epochs[0])), NOW_MS)
    assert [(c.what, c.label, c.n) for c in of_kind(effects, Count)] == [("contexts", "moved", 1)]


# -- ownership ------------------------------------------------------------------------------------------------------


def test_who_has_lost_the_partition_writes_no_context_any_more() -> None:
    stage, topic = updating(), Topic()
    topic.play(stage, stage.handle(outcomes(of(0)), NOW_MS))
    state = only(stage.handle(Tick(), NOW_MS + 250), EmitState)
    stage.handle(Revoked(partitions=(AT,)), NOW_MS + 260)
    late = stage.handle(Produced(token=state.token, offsets={AT: 0}, append_ms=NOW_MS + 255), NOW_MS + 270)
    for ms in range(0, FORGET_MS + 2 * KEEP_MS, 5_000):
        late += stage.handle(StatesKnownUntil(known_until_ms=NOW_MS + ms), NOW_MS + ms)
        late += stage.handle(Tick(), NOW_MS + ms)
    assert late == [] and stage.fills()["keyed_contexts"].used == 0


def test_a_state_whose_snapshot_never_came_gets_it_from_the_next_owner() -> None:
    stage, topic = updating(), Topic()
    topic.play(stage, stage.handle(outcomes(of(0)), NOW_MS))
    topic.play(stage, stage.handle(Tick(), NOW_MS + 250), most=1)
    assert len(topic.epochs) == 1 and not topic.contexts
    other, found = UpdateStage(rules(), UpdateOptions(partitions=PARTITIONS)), Topic()
    found.epochs = list(topic.epochs)
    found.play(other, take(other, begun=topic.epochs))
    assert found.contexts[ALICE].epoch == 0 and found.contexts[ALICE].covers == 1 and other.idle
    assert counts(other.handle(outcomes(of(0)), NOW_MS)) == {"included": 1}


CONTEXTS = ("", "eu", ALICE, "//bob", "//carol")


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(CONTEXTS[2:]), st.sampled_from([0, 10, 300, FORGET_MS // 2, FORGET_MS + 1])),
        min_size=1,
        max_size=25,
    ),
    st.lists(st.tuples(st.integers(0, 24), st.integers(0, 6)), max_size=4),
    st.none() | st.integers(0, 24),
)
def test_learners_that_die_anywhere_end_in_the_states_of_one_that_does_not(
    steps: list[tuple[str, int]], deaths: list[tuple[int, int]], changed_at: int | None
) -> None:
    """A death: after so many outcomes, with so many records of what was sent then in the log. `changed_at`: the outcome
    from whose moment on the route has other models."""
    now_ms, records = NOW_MS, []
    for offset, (context, gap_ms) in enumerate(steps):
        now_ms += gap_ms
        is_new = changed_at is not None and now_ms >= NOW_MS + sum(gap for _, gap in steps[: changed_at + 1])
        losses = {"b@1": 0.2, "c@1": 0.7} if is_new else {"a@1": 0.0, "b@1": 1.0}
        records.append(of(offset, context, now_ms, losses=losses))
    versions = ()
    if changed_at is not None:
        versions = changes(NOW_MS + sum(gap for _, gap in steps[: changed_at + 1]))

    def run(dying: dict[int, int]) -> dict[str, tuple[Any, int]]:
        stage, topic, done = updating(), Topic(), 0
        stage.handle(StatesFetched(states=(), routes=versions), NOW_MS)
        while done < len(records):
            record = records[done]
            effects = stage.handle(outcomes(record), record.append_ms)
            effects += stage.handle(Tick(), record.append_ms + 250)
            done += 1
            if done - 1 not in dying:
                topic.play(stage, effects, record.append_ms + 250)
                continue
            topic.play(stage, effects, record.append_ms + 250, most=dying.pop(done - 1))
            # The next owner has what the log has, and reads again from where all was settled.
            settled = {int(n) for each in of_kind(topic.effects, Settle) for n in each.offsets}
            done = min((n for n in range(len(records)) if n not in settled), default=len(records))
            stage = UpdateStage(rules(), UpdateOptions(partitions=PARTITIONS, keep_ms=KEEP_MS))
            stage.handle(StatesFetched(states=(), routes=versions), NOW_MS)
            begun = [*topic.contexts.values(), *topic.epochs]
            topic.play(stage, take(stage, begun=begun, position=done), record.append_ms)
        last_ms = records[-1].append_ms + 10_000
        topic.play(stage, stage.handle(Tick(), last_ms), last_ms)
        return {context: (state.data, state.learnt_ms) for context, state in topic.contexts.items()}

    assert run(dict(deaths)) == run({})


def changes(in_force_ms: int) -> tuple[RoutesRecord, ...]:
    """From then on the route has `b@1` and `c@1` instead of `a@1` and `b@1`."""
    first = rules()
    old = replace(first.routes[0], fingerprint="old")
    new = replace(old, models=("b@1", "c@1"), fingerprint="new")
    written_ms = in_force_ms - first.routes_delay_ms
    return tuple(
        RoutesRecord(number=offset, routes=(one, *first.routes[1:]), append_ms=ms, offset=offset)
        for offset, (one, ms) in enumerate([(old, 0), (new, written_ms)])
    )


def test_the_states_of_a_route_with_other_models_go_on_one_by_one_as_they_are_taught() -> None:
    stage, topic = updating(), Topic()
    topic.play(stage, stage.handle(outcomes(of(0), of(1, "//bob")), NOW_MS))
    topic.play(stage, stage.handle(Tick(), NOW_MS + 250), NOW_MS + 250)
    later_ms = NOW_MS + 5_000
    stage.handle(StatesFetched(states=(), routes=changes(later_ms)), NOW_MS + 1_000)
    new = of(2, append_ms=later_ms, losses={"b@1": 0.0, "c@1": 1.0})
    topic.play(stage, stage.handle(outcomes(new), later_ms))
    topic.play(stage, stage.handle(Tick(), later_ms + 250), later_ms + 250)
    assert set(topic.contexts[ALICE].data["losses"]) == {"b@1", "c@1"} and events_of(topic.contexts[ALICE]) == 2
    assert set(topic.contexts["//bob"].data["losses"]) == {"a@1", "b@1"}


def test_the_states_of_a_route_that_has_gone_are_forgotten_as_any() -> None:
    stage, topic = updating(republish_ms=20_000), Topic()
    topic.play(stage, stage.handle(outcomes(of(0)), NOW_MS))
    topic.play(stage, stage.handle(Tick(), NOW_MS + 250), NOW_MS + 250)
    first = rules()
    for offset, kept in enumerate([first.routes, first.routes[1:], first.routes[1:]]):
        change = RoutesRecord(number=offset, routes=kept, append_ms=NOW_MS + 400_000 * offset, offset=offset)
        stage.handle(StatesFetched(states=(), routes=(change,)), NOW_MS + 300)
    for ms in (30_000, FORGET_MS + KEEP_MS + 2_000):
        topic.play(stage, stage.handle(StatesKnownUntil(known_until_ms=NOW_MS + ms), NOW_MS + ms), NOW_MS + ms)
    assert not topic.contexts and len(topic.epochs) == 1


@pytest.mark.parametrize("whole", [False, True])
def test_a_damaged_record_of_a_key_is_told_as_that_of_any_state(whole: bool) -> None:

    stage = updating(loaded=False)
    bad = UnreadableState(route="r", context=ALICE, partition=AT, epoch=4, is_whole=whole, words="it is odd")
    stage.handle(ContextsFetched(partition=AT, unreadable=(bad,)), NOW_MS)
    if whole:
        with pytest.raises(ContractError, match="it is odd"):
            stage.handle(ContextsFetched(partition=AT, loaded=True), NOW_MS)
    else:
        stage.handle(ContextsFetched(partition=AT, loaded=True), NOW_MS)
        assert counts(stage.handle(outcomes(of(0)), NOW_MS)) == {"learnt": 1}
