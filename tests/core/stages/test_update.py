"""The update stage: learning, publishing, settling, taking over; then the laws."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from streamserve.core.effects import Effect, EmitSnapshot, EmitState, Settle
from streamserve.core.epochs import outcome_partition
from streamserve.core.events import (
    Drain,
    Event,
    OutcomesFetched,
    Produced,
    ProduceFailed,
    Revoked,
    StatesFetched,
    StatesKnownUntil,
    Tick,
)
from streamserve.core.records import OutcomeRecord, StateRecord, UnreadableState
from streamserve.core.selection.hedge import Hedge
from streamserve.core.stages.update import UpdateStage
from streamserve.errors import ContractError
from streamserve.testing.laws import StageLaws, check_laws
from tests.core.stages.learning_case import (
    HOME,
    MODELS,
    NOW_MS,
    PARTITIONS,
    ack,
    assigned,
    counts,
    of_kind,
    only,
    outcome,
    outcomes,
    ready,
    rules_of,
    update_of,
)
from tests.effort import examples

POLICY = Hedge()


def learnt_from(*records: OutcomeRecord) -> dict[str, Any]:
    """What the policy makes of these outcomes, once each, in order."""
    state = POLICY.initial(MODELS)
    for record in records:
        state = POLICY.learn(state, record)
    return dict(POLICY.dump(state))


def publish(stage: UpdateStage, effects: list[Effect], epoch: int, now_ms: int) -> list[Effect]:
    """Acknowledge a state and its snapshot; the effects of the latter."""
    sent = only(effects, EmitState)
    snapshot = only(stage.handle(ack(sent, epoch, now_ms), now_ms), EmitSnapshot)
    return stage.handle(ack(snapshot), now_ms)


# -- learning and publishing ---------------------------------------------------------------------------------------


def test_outcomes_are_learnt_in_order_published_after_a_pause_and_settled_by_the_snapshot() -> None:
    stage = update_of()
    assert ready(stage) == []
    records = [outcome(0), outcome(1, {"a@1": 1.0, "b@1": 0.0})]
    effects = stage.handle(outcomes(*records), NOW_MS)
    assert counts(effects) == {"learnt": 2}
    assert stage.next_deadline_ms() == NOW_MS + 250
    assert stage.handle(Tick(), NOW_MS + 249) == []
    sent = only(stage.handle(Tick(), NOW_MS + 250), EmitState)
    assert sent.state.data == learnt_from(*records)
    assert (sent.state.includes, sent.state.partition, sent.state.previous) == ({HOME: 2}, HOME, -1)
    assert stage.next_deadline_ms() is None

    effects = stage.handle(ack(sent, 17, NOW_MS + 260), NOW_MS + 260)
    snapshot = only(effects, EmitSnapshot).state
    assert (snapshot.epoch, snapshot.append_ms, snapshot.covers) == (17, NOW_MS + 260, 18)
    assert snapshot.data == sent.state.data
    assert not of_kind(effects, Settle)
    assert not stage.idle
    effects = stage.handle(ack(only(effects, EmitSnapshot)), NOW_MS + 270)
    assert only(effects, Settle).offsets.tolist() == [0, 1]
    assert stage.idle


def test_a_hundred_outcomes_are_published_at_once_and_the_chain_names_the_epoch_before() -> None:
    stage = update_of(publish_every_outcomes=100)
    ready(stage)
    effects = stage.handle(outcomes(*(outcome(n) for n in range(250))), NOW_MS)
    assert only(effects, EmitState).state.includes == {HOME: 100}
    effects = stage.handle(ack(only(effects, EmitState), 5, NOW_MS), NOW_MS)
    effects = stage.handle(ack(only(effects, EmitSnapshot)), NOW_MS)
    assert only(effects, Settle).offsets.tolist() == list(range(100))
    # 150 have gathered meanwhile: no reason to wait.
    following = only(effects, EmitState).state
    assert (following.includes, following.previous) == ({HOME: 250}, 5)


def test_an_outcome_that_changes_nothing_is_settled_at_once() -> None:
    stage = update_of()
    ready(stage)
    effects = stage.handle(
        outcomes(outcome(0, {}), outcome(1, route="fixed"), outcome(2, route="gone"), outcome(3, {"a@1": 2.0})), NOW_MS
    )
    assert counts(effects) == {"no_change": 2, "not_learning": 1, "unknown_route": 1}
    assert only(effects, Settle).offsets.tolist() == [0, 1, 2, 3]
    assert stage.next_deadline_ms() is None


def test_an_outcome_in_the_wrong_partition_makes_no_second_writer() -> None:
    stage = update_of()
    away = (HOME + 1) % 3
    stage.handle(assigned(away), NOW_MS)
    stage.handle(StatesKnownUntil(known_until_ms=NOW_MS), NOW_MS)
    effects = stage.handle(outcomes(outcome(0, partition=away)), NOW_MS)
    assert counts(effects) == {"misplaced": 1}
    assert only(effects, Settle).partition == away


def test_a_second_outcome_of_the_same_feedback_is_dropped() -> None:
    stage = update_of()
    ready(stage)
    effects = stage.handle(outcomes(outcome(0), outcome(1, source=(0, 0)), outcome(2, source=(1, 0))), NOW_MS)
    assert counts(effects) == {"learnt": 2, "duplicate": 1}
    assert only(effects, Settle).offsets.tolist() == [1]
    # A record that is fetched again is not even a duplicate.
    assert stage.handle(outcomes(outcome(2, source=(1, 0))), NOW_MS) == []


def test_what_is_remembered_of_feedback_is_bounded() -> None:
    stage = update_of(dedupe_ms=1_000)
    ready(stage)
    for n in range(5_000):
        stage.handle(outcomes(outcome(n, append_ms=NOW_MS + 10 * n, open_offset=n)), NOW_MS)
    assert len(stage._owned[HOME]._seen) == 101
    assert json.loads(stage.commit_metadata(HOME)) == {"v": 1, "rebuild_from": 4_899}
    assert stage.commit_metadata((HOME + 1) % 3) == ""


def test_feedback_that_the_join_has_not_settled_is_remembered_however_old() -> None:
    stage = update_of(dedupe_ms=1_000)
    ready(stage)
    stage.handle(outcomes(outcome(0)), NOW_MS)
    for n in range(1, 50):  # the join holds feedback 0 open: its acknowledgement never came
        stage.handle(outcomes(outcome(n, append_ms=NOW_MS + 1_000 * n, open_offset=0)), NOW_MS)
    again = outcome(50, source=(0, 0), append_ms=NOW_MS + 50_000, open_offset=0)
    assert counts(stage.handle(outcomes(again), NOW_MS)) == {"duplicate": 1}


def test_a_standstill_does_not_make_one_forget() -> None:
    """The join may have stood still too, and be killed before it commits: its successor sends the outcome again."""
    stage = update_of()
    ready(stage)
    stage.handle(outcomes(outcome(0, open_offset=0)), NOW_MS)
    later_ms = NOW_MS + 244_000
    for n in range(1, 10):
        stage.handle(outcomes(outcome(n, append_ms=later_ms + n, open_offset=n)), NOW_MS)
    again = outcome(10, source=(0, 0), append_ms=later_ms + 20_000, open_offset=0)
    assert counts(stage.handle(outcomes(again), NOW_MS)) == {"duplicate": 1}


def test_another_join_partition_does_not_make_one_forget() -> None:
    stage = update_of(dedupe_ms=1_000)
    ready(stage)
    stage.handle(outcomes(outcome(0, source=(1, 3), ref=(1, 9), open_offset=3)), NOW_MS)  # then its join goes down
    for n in range(1, 50):
        stage.handle(outcomes(outcome(n, append_ms=NOW_MS + 100_000 * n, open_offset=n)), NOW_MS)
    again = outcome(50, source=(1, 3), ref=(1, 9), append_ms=NOW_MS + 10_000_000, open_offset=3)
    assert counts(stage.handle(outcomes(again), NOW_MS)) == {"duplicate": 1}


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_state_that_was_not_taken_is_sent_again_with_what_was_learnt_meanwhile() -> None:
    stage = update_of(publish_every_outcomes=1, retry_ms=200)
    ready(stage)
    sent = only(stage.handle(outcomes(outcome(0)), NOW_MS), EmitState)
    assert not of_kind(stage.handle(outcomes(outcome(1)), NOW_MS), EmitState)
    assert stage.handle(ProduceFailed(token=sent.token, error="gone"), NOW_MS) == []
    assert stage.next_deadline_ms() == NOW_MS + 200
    effects = stage.handle(Tick(), NOW_MS + 200)
    assert only(effects, EmitState).state.includes == {HOME: 2}
    assert only(publish(stage, effects, 8, NOW_MS + 200), Settle).offsets.tolist() == [0, 1]


def test_a_snapshot_that_was_not_taken_is_sent_again() -> None:
    stage = update_of(publish_every_outcomes=1, retry_ms=200)
    ready(stage)
    sent = only(stage.handle(outcomes(outcome(0)), NOW_MS), EmitState)
    snapshot = only(stage.handle(ack(sent, 3, NOW_MS), NOW_MS), EmitSnapshot)
    stage.handle(ProduceFailed(token=snapshot.token, error="gone"), NOW_MS)
    assert stage.next_deadline_ms() == NOW_MS + 200
    again = only(stage.handle(Tick(), NOW_MS + 200), EmitSnapshot)
    assert again.state == snapshot.state
    assert only(stage.handle(ack(again), NOW_MS + 200), Settle).offsets.tolist() == [0]


def test_a_state_is_published_again_before_its_record_leaves_the_log() -> None:
    stage = update_of(republish_ms=10_000)
    stage.handle(StatesFetched(states=(record_of(outcome(0), epoch=4, includes=1, covers=5),)), NOW_MS)
    ready(stage, position=1)
    assert stage.next_deadline_ms() == NOW_MS + 10_000
    effects = stage.handle(Tick(), NOW_MS + 10_000)
    again = only(effects, EmitState).state
    assert (again.data, again.includes, again.previous) == (learnt_from(outcome(0)), {HOME: 1}, 4)
    assert publish(stage, effects, 9, NOW_MS + 10_000) == []
    assert stage.next_deadline_ms() == NOW_MS + 20_000


# -- taking over -------------------------------------------------------------------------------------------------


def record_of(*records: OutcomeRecord, epoch: int, includes: int, covers: int = 0, **changed: Any) -> StateRecord:
    state = StateRecord(
        route="r", context="", policy="hedge", data=learnt_from(*records), includes={HOME: includes}, partition=HOME,
        epoch=epoch, append_ms=NOW_MS, covers=covers,
    )  # fmt: skip
    return dataclasses.replace(state, **changed)


def test_a_state_is_published_again_before_it_is_too_old_to_be_used() -> None:
    rules = rules_of()
    bounded = dataclasses.replace(rules.routes[0], max_state_age_ms=10_000)
    stage = UpdateStage(dataclasses.replace(rules, routes=(bounded,)), update_of()._options)
    stage.handle(StatesFetched(states=(record_of(outcome(0), epoch=4, includes=1, covers=5),)), NOW_MS)
    effects = ready(stage, position=1)
    for snapshot in of_kind(effects, EmitSnapshot):
        stage.handle(ack(snapshot), NOW_MS)
    due_ms = stage.next_deadline_ms()
    assert due_ms is not None
    assert due_ms <= NOW_MS + 5_000
    assert stage.idle  # a state that rests is no work left over
    sent = only(stage.handle(Tick(), NOW_MS + 5_000), EmitState).state
    assert (sent.data, sent.previous) == (learnt_from(outcome(0)), 4)


def test_nothing_is_learnt_before_all_states_are_known() -> None:
    stage = update_of(publish_every_outcomes=1)
    stage.handle(assigned(HOME), NOW_MS)
    first, second = outcome(0), outcome(1)
    assert stage.handle(outcomes(first, second), NOW_MS) == []
    assert not stage.idle
    stage.handle(StatesKnownUntil(known_until_ms=NOW_MS - 1), NOW_MS + 1)
    stage.handle(StatesFetched(states=(record_of(first, epoch=4, includes=1, covers=5),)), NOW_MS + 2)
    effects = stage.handle(StatesKnownUntil(known_until_ms=NOW_MS), NOW_MS + 50)
    assert counts(effects) == {"included": 1, "learnt": 1}
    assert only(effects, EmitState).state.data == learnt_from(first, second)
    assert only(effects, Settle).offsets.tolist() == [0]


def test_an_app_that_learns_nothing_waits_for_no_states() -> None:
    rules = dataclasses.replace(rules_of(), routes=rules_of().routes[1:])
    stage = UpdateStage(rules, update_of()._options)
    stage.handle(assigned(HOME), NOW_MS)
    assert only(stage.handle(outcomes(outcome(0, route="fixed")), NOW_MS), Settle).offsets.tolist() == [0]


def test_a_state_whose_snapshot_may_be_missing_gets_one_and_settles_by_it() -> None:
    stage = update_of()
    stage.handle(StatesFetched(states=(record_of(outcome(0), epoch=4, includes=1),)), NOW_MS)
    effects = ready(stage)
    snapshot = only(effects, EmitSnapshot)
    assert (snapshot.state.epoch, snapshot.state.covers) == (4, 5)
    effects = stage.handle(outcomes(outcome(0)), NOW_MS)
    assert counts(effects) == {"included": 1}
    assert not of_kind(effects, Settle)
    assert only(stage.handle(ack(snapshot), NOW_MS), Settle).offsets.tolist() == [0]


def test_the_newest_record_wins_and_a_state_of_another_policy_is_not_used() -> None:
    stage = update_of(publish_every_outcomes=1)
    newest = record_of(outcome(0), outcome(1), epoch=9, includes=2, covers=10)
    stage.handle(StatesFetched(states=(newest, record_of(outcome(0), epoch=4, includes=1))), NOW_MS)
    ready(stage, position=2)
    sent = only(stage.handle(outcomes(outcome(2)), NOW_MS), EmitState).state
    assert (sent.data, sent.previous) == (learnt_from(*map(outcome, range(3))), 9)

    other = update_of(publish_every_outcomes=1)
    other.handle(StatesFetched(states=(dataclasses.replace(newest, policy="exp3"),)), NOW_MS)
    ready(other, position=2)
    sent = only(other.handle(outcomes(outcome(2)), NOW_MS), EmitState).state
    assert (sent.data, sent.previous) == (learnt_from(outcome(2)), -1)


def test_a_record_that_reached_the_log_late_is_not_what_a_new_owner_goes_on_from() -> None:
    """Outcomes between it and the commit would be learnt by nobody any more."""
    stage = update_of(publish_every_outcomes=1)
    newest = record_of(outcome(0), outcome(1), epoch=4, includes=2, covers=5)
    late = record_of(outcome(0), epoch=9, includes=1, covers=10)
    stage.handle(StatesFetched(states=(newest, late)), NOW_MS)
    ready(stage, position=2)
    sent = only(stage.handle(outcomes(outcome(2)), NOW_MS), EmitState).state
    assert (sent.data, sent.previous) == (learnt_from(*map(outcome, range(3))), 4)


def unreadable(epoch: int, *, is_whole: bool = False) -> UnreadableState:
    words = f"the epochs record {HOME}-{epoch} cannot be read"
    return UnreadableState(route="r", context="", partition=HOME, epoch=epoch, is_whole=is_whole, words=words)


def test_what_a_damaged_state_held_is_learnt_again_from_the_last_good_one() -> None:
    stage = update_of(publish_every_outcomes=1)
    good = record_of(outcome(0), outcome(1), epoch=4, includes=2, covers=5)
    stage.handle(StatesFetched(states=(good,), unreadable=(unreadable(7),)), NOW_MS)
    ready(stage, position=4, metadata='{"v":1,"rebuild_from":0}')
    effects = stage.handle(outcomes(*map(outcome, range(6))), NOW_MS)
    assert counts(effects) == {"included": 2, "learnt": 4}
    effects = publish(stage, effects, 8, NOW_MS)  # what was learnt until the first was sent
    sent = only(effects, EmitState).state
    assert (sent.data, sent.previous) == (learnt_from(*map(outcome, range(6))), 8)


def test_a_whole_one_before_the_last_good_one_does_not_hide_a_damaged_one_after_it() -> None:
    stage = update_of(publish_every_outcomes=1)
    good = record_of(outcome(0), outcome(1), epoch=4, includes=2, covers=5)
    stage.handle(StatesFetched(states=(good,), unreadable=(unreadable(2, is_whole=True), unreadable(7))), NOW_MS)
    ready(stage, position=4, metadata='{"v":1,"rebuild_from":0}')
    assert counts(stage.handle(outcomes(*map(outcome, range(6))), NOW_MS)) == {"included": 2, "learnt": 4}


def test_what_is_not_read_again_is_counted() -> None:
    stage = update_of()
    good = record_of(outcome(0), epoch=4, includes=1, covers=5)
    stage.handle(StatesFetched(states=(good,), unreadable=(unreadable(7),)), NOW_MS)
    assert counts(ready(stage, position=4, metadata='{"v":1,"rebuild_from":3}')) == {"not_read_again": 2}


def test_a_damaged_state_before_a_good_one_changes_nothing() -> None:
    stage = update_of(publish_every_outcomes=1)
    good = record_of(outcome(0), outcome(1), epoch=7, includes=2, covers=8)
    stage.handle(StatesFetched(states=(good,), unreadable=(unreadable(4), unreadable(5, is_whole=True))), NOW_MS)
    ready(stage, position=2, metadata='{"v":1,"rebuild_from":0}')
    effects = stage.handle(outcomes(*map(outcome, range(3))), NOW_MS)
    assert counts(effects) == {"learnt": 1}
    assert only(effects, EmitState).state.data == learnt_from(*map(outcome, range(3)))


@pytest.mark.parametrize("damaged", [(), (6,), (8,), (6, 8)], ids=str)
def test_nothing_is_written_over_a_state_of_another_release(damaged: tuple[int, ...]) -> None:
    """Whatever damaged records stand beside it."""
    stage = update_of()
    good = record_of(outcome(0), epoch=4, includes=1, covers=5)
    found = (*map(unreadable, damaged), unreadable(7, is_whole=True))
    stage.handle(StatesFetched(states=(good,), unreadable=tuple(sorted(found, key=lambda one: one.epoch))), NOW_MS)
    with pytest.raises(ContractError, match="another release has written it"):
        ready(stage, position=1)


def test_a_new_owner_rebuilds_what_it_must_not_learn_twice() -> None:
    stage = update_of()
    ready(stage, position=5)
    effects = stage.handle(outcomes(*(outcome(n) for n in range(2, 5))), NOW_MS)
    assert effects == []  # below the position: remembered only
    effects = stage.handle(outcomes(outcome(5, source=(0, 3)), outcome(6)), NOW_MS)
    assert counts(effects) == {"duplicate": 1, "learnt": 1}
    assert json.loads(stage.commit_metadata(HOME)) == {"v": 1, "rebuild_from": 2}


def test_a_commit_before_the_rebuild_leaves_it_to_the_next_owner() -> None:
    """Two owners that die one soon after the other: the second has read nothing of what must be remembered."""
    stage = update_of()
    stage.handle(assigned(HOME, position=20, metadata='{"v":1,"rebuild_from":3}'), NOW_MS)
    assert json.loads(stage.commit_metadata(HOME)) == {"v": 1, "rebuild_from": 3}


def test_a_snapshot_covers_only_what_is_in_snapshots() -> None:
    """A second state of the partition is on its way to the epochs topic: its record may stand below this one."""
    stage = update_of(publish_every_outcomes=1)
    ready(stage)
    home_of_users = next(f"user-{n}" for n in range(99) if outcome_partition("r", f"user-{n}", PARTITIONS) == HOME)
    first = only(stage.handle(outcomes(outcome(0)), NOW_MS), EmitState)
    second = only(stage.handle(outcomes(outcome(1, context=home_of_users)), NOW_MS), EmitState)
    snapshot = only(stage.handle(ack(first, 7, NOW_MS), NOW_MS), EmitSnapshot)
    assert snapshot.state.covers == 0
    stage.handle(ack(snapshot), NOW_MS)
    snapshot = only(stage.handle(ack(second, 6, NOW_MS), NOW_MS), EmitSnapshot)
    assert snapshot.state.covers == 7
    stage.handle(ack(snapshot), NOW_MS)
    # Both again: whatever is on its way stands above 7, the highest epoch acknowledged so far.
    first = only(stage.handle(outcomes(outcome(2)), NOW_MS), EmitState)
    stage.handle(outcomes(outcome(3, context=home_of_users)), NOW_MS)
    assert only(stage.handle(ack(first, 12, NOW_MS), NOW_MS), EmitSnapshot).state.covers == 8


def test_no_more_is_read_while_too_much_is_not_in_the_log() -> None:
    stage = update_of(publish_every_outcomes=2, max_unacknowledged=3)
    stage.handle(assigned(HOME), NOW_MS)
    stage.handle(outcomes(outcome(0), outcome(1), outcome(2)), NOW_MS)
    assert not stage.takes_more  # earlier states are still being read
    effects = stage.handle(StatesKnownUntil(known_until_ms=NOW_MS), NOW_MS)
    assert stage.fills()["unacknowledged_outcomes"] == (3, 3)
    stage.handle(ProduceFailed(token=only(effects, EmitState).token, error="no"), NOW_MS)
    assert not stage.takes_more
    publish(stage, stage.handle(Tick(), NOW_MS + 10_000), 3, NOW_MS + 10_000)
    assert stage.takes_more


def test_of_the_feedback_that_was_learnt_from_the_oldest_is_forgotten_above_the_bound() -> None:
    stage = update_of(max_remembered=2)
    ready(stage)
    stage.handle(outcomes(*(outcome(n) for n in range(3))), NOW_MS)
    assert stage.fills()["remembered_outcomes"] == (2, 2)
    assert counts(stage.handle(outcomes(outcome(3, source=(0, 2))), NOW_MS)) == {"duplicate": 1}
    assert counts(stage.handle(outcomes(outcome(4, source=(0, 0))), NOW_MS)) == {"learnt": 1}  # it counts twice


def test_nothing_is_sent_for_a_revoked_partition() -> None:
    stage = update_of(publish_every_outcomes=1)
    ready(stage)
    sent = only(stage.handle(outcomes(outcome(0)), NOW_MS), EmitState)
    assert stage.handle(Revoked(partitions=(HOME,)), NOW_MS) == []
    assert stage.handle(ack(sent, 3, NOW_MS), NOW_MS) == []
    assert stage.handle(outcomes(outcome(1)), NOW_MS) == []
    assert (stage.idle, stage.next_deadline_ms()) == (True, None)


def test_a_drained_stage_publishes_what_it_has_learnt_and_takes_nothing_new() -> None:
    stage = update_of()
    ready(stage)
    stage.handle(outcomes(outcome(0)), NOW_MS)
    effects = stage.handle(Drain(), NOW_MS + 1)
    assert only(effects, EmitState).state.includes == {HOME: 1}
    assert stage.handle(outcomes(outcome(1)), NOW_MS + 2) == []
    assert only(publish(stage, effects, 3, NOW_MS + 3), Settle).offsets.tolist() == [0]
    assert (stage.idle, stage.next_deadline_ms()) == (True, None)


def test_an_event_of_another_role_is_a_bug() -> None:
    with pytest.raises(TypeError, match="update"):
        update_of().handle(object(), NOW_MS)  # type: ignore[arg-type]


# -- laws --------------------------------------------------------------------------------------------------------


class UpdateLaws(StageLaws):
    """A log of outcomes with duplicates; owners that die and are replaced at any moment.

    The model of the log is kept here: states and snapshots as acknowledged (or not known to be), what was settled.
    """

    def new_stage(self) -> UpdateStage:
        return update_of(publish_every_outcomes=3, publish_every_ms=30, retry_ms=20, republish_ms=5_000)

    def seeds(self) -> st.SearchStrategy[Any]:
        arrival = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["new", "new", "twice", "empty"])), max_size=4)
        return st.tuples(st.sampled_from(["outcomes"] * 4 + ["takeover"]), arrival)

    def first_events(self) -> list[Event]:
        self.log: list[OutcomeRecord] = []
        self.epochs: list[StateRecord] = []
        self.snapshot: StateRecord | None = None
        self.committed = 0
        self.done: set[int] = set()
        return [assigned(HOME), StatesKnownUntil(known_until_ms=self.now_ms)]

    def event_of(self, seed: Any) -> Event | None:
        kind, items = seed
        if kind == "takeover":
            return self.take_over()
        first = len(self.log)
        for number, how in items:
            offset = len(self.log)
            source = (0, offset if how == "new" else min(number, offset))
            losses = {} if how == "empty" else {"a@1": number / 5, "b@1": 0.5}
            self.log.append(outcome(offset, losses, source=source, append_ms=self.now_ms))
        return outcomes(*self.log[first:]) if items else None

    def take_over(self) -> Event:
        metadata = json.loads(self.stage.commit_metadata(HOME))
        while self.committed in self.done:
            self.committed += 1
        self.give(Revoked(partitions=(HOME,)))
        self.unacknowledged.clear()  # their fate is not known; what is in the log is in `epochs`
        self.give(assigned(HOME, position=self.committed))
        known = [*([self.snapshot] if self.snapshot else []), *self.epochs]
        self.give(StatesFetched(states=tuple(known)))
        self.give(StatesKnownUntil(known_until_ms=self.now_ms))
        rebuild = [record for record in self.log[metadata["rebuild_from"] :]]
        if rebuild:
            self.give(outcomes(*rebuild))
        return Tick()

    def opens(self, event: Event) -> list[tuple[int, int]]:
        if not isinstance(event, OutcomesFetched):
            return []
        return [(HOME, record.offset) for record in event.outcomes.records if record.offset >= self.committed]

    def carries(self, effect: Effect) -> list[tuple[int, int]]:
        """A state carries what it includes and no acknowledged snapshot does."""
        if not isinstance(effect, EmitState | EmitSnapshot):
            return []
        below = self.snapshot.includes[HOME] if self.snapshot else 0
        firsts = self.first_of_feedback()
        return [(HOME, offset) for offset in firsts if below <= offset < effect.state.includes[HOME]]

    def first_of_feedback(self) -> list[int]:
        """Offsets of the outcomes that count."""
        firsts: dict[Any, int] = {}
        for record in self.log:
            firsts.setdefault(record.feedback, record.offset)
        return [offset for offset in firsts.values() if self.log[offset].losses]

    def acknowledgement(self, token: int, effect: Effect) -> Event:
        if isinstance(effect, EmitSnapshot):
            self.snapshot = effect.state
            return Produced(token=token)
        assert isinstance(effect, EmitState)
        epoch = len(self.epochs)
        self.epochs.append(dataclasses.replace(effect.state, epoch=epoch, append_ms=self.now_ms))
        return Produced(token=token, offsets={HOME: epoch}, append_ms=self.now_ms)

    def check(self, event: Event, effects: list[Effect]) -> None:
        """Whatever happened, a published state is what its outcomes teach, each feedback once, in order."""
        for settle in of_kind(effects, Settle):
            self.done.update(settle.offsets.tolist())
        counting = self.first_of_feedback()
        for sent in of_kind(effects, EmitState):
            included = [self.log[offset] for offset in counting if offset < sent.state.includes[HOME]]
            assert sent.state.data == learnt_from(*included)

    def check_end(self) -> None:
        expected = learnt_from(*(self.log[offset] for offset in self.first_of_feedback()))
        assert (dict(self.snapshot.data) if self.snapshot else learnt_from()) == expected


def test_the_update_keeps_the_laws() -> None:
    check_laws(UpdateLaws, examples=examples(60), steps=30)
