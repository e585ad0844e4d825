"""The update stage: outcomes teach states; states are published, each by one writer in one order.

Its own promises:

* a changed state is published once `publish_every_outcomes` changes or `publish_every_ms` have passed since the last
  time, whichever is first (or as soon as the acknowledgement of the one before it has come);
* an outcome is settled only when the state that it changed is acknowledged in the epochs topic and in its snapshot;
* an outcome that a state includes, or whose feedback it was taught by before, changes nothing;
* nothing is learnt in a partition before all states appended until its assignment are known, keyed ones too;
* a keyed state that no open request can be decided by is forgotten: a tombstone takes its snapshot out of the log.

A partition's fetches may start below `Resume.position`: what lies below is only remembered, so that a second outcome
of the same feedback is known. `commit_metadata` names that place.

Long since restoring, learning and publishing keep one promise together: a state never includes what is not settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streamserve.core.bounds import Fill, fullest
from streamserve.core.contexts import GLOBAL, is_keyed
from streamserve.core.effects import Count, Effect, EmitSnapshot, EmitState, ForgetState, Settle
from streamserve.core.epochs import home_of
from streamserve.core.events import (
    Assigned,
    ContextsFetched,
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
from streamserve.core.route_versions import Routes, RoutesRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.stages.join_partition import number_in
from streamserve.core.stages.update_keyed import RestingStates
from streamserve.core.stages.update_state import Learnt, OwnedOutcomes, Publication
from streamserve.core.values import unchanging
from streamserve.errors import ContractError

_LONGEST_RETRY_MS = 5_000


@unchanging()
class UpdateOptions:
    partitions: int
    """Of every topic of the app."""
    publish_every_outcomes: int = 100
    publish_every_ms: int = 250
    republish_ms: int = 21_600_000
    """A state that does not change is published again after this; at most a quarter of the epochs' retention."""
    dedupe_ms: int = 60_000
    """How long after the join has settled a feedback a second outcome of it may still come: its commit's delay."""
    max_unacknowledged: int = 50_000
    """Outcomes read whose state is not in the log; with so many no more are read."""
    max_remembered: int = 100_000
    """Feedback of a partition of which a second outcome is known; above it the oldest is forgotten."""
    keep_ms: int = 180_000
    """How long a keyed state is kept after the last request that it may decide: for those still open."""
    retry_ms: int = 200
    """Before something that the broker did not take is sent again; doubled each time, up to 5 s."""


class UpdateStage:
    """Stage of the learner proper.

    Where the newest record of a state is damaged, it goes on from the newest good one and learns again what that lacks,
    as far as it is read again. Raises ContractError where another release has written it: it would write over what it
    does not know.
    """

    def __init__(self, rules: AppRules, options: UpdateOptions) -> None:
        self._versions = Routes(rules.routes, delay_ms=rules.routes_delay_ms, keep_ms=rules.keep_ms)
        self._routes = {route.name: route for route in rules.routes}
        """By name, the newest version of each that outcomes may still come of."""
        self._options = options
        self._learns = any(route.learns for route in rules.routes)
        self._keyed = any(route.learns and route.keyed for route in rules.routes)
        self._newest: dict[tuple[int, str, str], StateRecord] = {}
        self._unreadable: dict[tuple[int, str, str, bool], UnreadableState] = {}
        """The newest of each state, damaged ones apart from whole ones: neither hides the other."""
        self._contexts: dict[str, set[str]] = {name: {GLOBAL} for name in self._routes}
        """Of each route, those that have a state, in whatever partition."""
        self._owned: dict[int, OwnedOutcomes] = {}
        self._sent: dict[int, Learnt] = {}
        self._forgetting: dict[int, tuple[int, StateRecord]] = {}
        """Tombstones on their way: (partition, the state)."""
        self._token = 0
        self._known_ms = -(1 << 62)
        self._counts: dict[tuple[str, str], int] = {}
        self._draining = False

    # -- protocol ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case OutcomesFetched():
                self._take(event, now_ms, effects)
            case Produced():
                self._acknowledge(event, now_ms, effects)
            case ProduceFailed():
                self._failed(event.token, now_ms)
            case StatesFetched():
                self._change(event.routes)
                self._note(event.states)
                self._note_unreadable(event.unreadable)
            case ContextsFetched():
                self._load(event)
            case StatesKnownUntil():
                self._known_ms = max(self._known_ms, event.known_until_ms)
                self._tend_keyed(now_ms, effects)
            case Assigned():
                self._revoke(tuple(event.partitions))
                for number, resume in event.partitions.items():
                    rebuilds_from = number_in(resume.metadata, "rebuild_from")
                    self._owned[number] = OwnedOutcomes(
                        number,
                        resume.position,
                        rebuilds_from,
                        now_ms,
                        dedupe_ms=self._options.dedupe_ms,
                        max_remembered=self._options.max_remembered,
                        keyed=RestingStates(
                            self._routes,
                            number,
                            republish_ms=self._options.republish_ms,
                            keep_ms=self._options.keep_ms,
                        ),
                    )
            case Revoked():
                self._revoke(event.partitions)
            case Drain():
                self._drain()
            case Tick():
                pass
            case _:
                raise TypeError(f"an update stage takes no {type(event).__name__}")
        self._begin_known(now_ms, effects)
        self._publish_due(now_ms, effects)
        return effects + self._settled()

    def next_deadline_ms(self) -> int | None:
        due = (self._due_ms(state) for owned in self._owned.values() for state in owned.pressing())
        return min((ms for ms in due if ms is not None), default=None)

    def commit_metadata(self, partition: int) -> str:
        """JSON: `rebuild_from`, the outcome offset from which a new owner rebuilds what it must not learn twice."""
        owned = self._owned.get(partition)
        return "" if owned is None else f'{{"v":1,"rebuild_from":{owned.rebuild_from}}}'

    @property
    def takes_more(self) -> bool:
        """A state is published with what it has learnt so far: it waits for nothing that is still to be read."""
        return self._unacknowledged < self._options.max_unacknowledged

    @property
    def _unacknowledged(self) -> int:
        return sum(owned.unacknowledged for owned in self._owned.values())

    def fills(self) -> Mapping[str, Fill]:
        options = self._options
        remembered = [Fill(owned.remembered, options.max_remembered) for owned in self._owned.values()]
        return {
            "unacknowledged_outcomes": Fill(self._unacknowledged, options.max_unacknowledged),
            "remembered_outcomes": fullest(remembered),
            "keyed_contexts": fullest([fill for owned in self._owned.values() for fill in owned.keyed.fills()]),
        }

    @property
    def idle(self) -> bool:
        return not any(owned.queued or owned.busy for owned in self._owned.values())

    # -- versions ------------------------------------------------------------------------------------------------

    def _change(self, records: tuple[RoutesRecord, ...]) -> None:
        """Routes change. A state follows with the first outcome that was appended while the new version is in force."""
        if not records:
            return
        self._versions.apply(records)
        self._routes = {route.name: route for _, route in sorted(self._versions.live.items())}
        self._routes |= {name: self._versions[index] for name, index in self._versions.newest.names.items()}
        self._learns = any(route.learns for route in self._routes.values())
        for name in self._routes:
            self._contexts.setdefault(name, {GLOBAL})
        for owned in self._owned.values():
            owned.keyed.follow(self._routes)

    def _route_at(self, name: str, append_ms: int) -> tuple[Route | None, int]:
        """The version in force then, and the place of the record that brought it."""
        period = self._versions.at(append_ms)
        index = period.names.get(name)
        return (None if index is None else self._versions[index]), period.offset

    # -- input ---------------------------------------------------------------------------------------------------

    def _note(self, states: tuple[StateRecord, ...]) -> None:
        for record in states:
            if record.route not in self._routes:
                continue
            if is_keyed(record.context):
                self._note_keyed(record)
                continue
            self._contexts[record.route].add(record.context)
            key = (record.partition, record.route, record.context)
            newest = self._newest.get(key)
            if newest is None or _age(record) > _age(newest):
                self._newest[key] = record

    def _note_keyed(self, record: StateRecord) -> None:
        """One that follows what is being loaded; or one that begins elsewhere, of a context whose state is here."""
        key = (record.route, record.context)
        for owned in self._owned.values():
            if owned.number == record.partition:
                if not owned.begun:
                    owned.keyed.restore(record)
            elif record.previous < 0 and (key in owned.states or owned.keyed.holds(*key)):
                self._count("moved", what="contexts")

    def _load(self, event: ContextsFetched) -> None:
        owned = self._owned.get(event.partition)
        if owned is None or owned.begun:
            return
        for record in event.states:
            owned.keyed.restore(record)
        self._note_unreadable(event.unreadable)
        owned.keyed_loaded = owned.keyed_loaded or event.loaded

    def _note_unreadable(self, records: tuple[UnreadableState, ...]) -> None:
        for record in records:
            key = (record.partition, record.route, record.context, record.is_whole)
            before = self._unreadable.get(key)
            if before is None or record.epoch > before.epoch:
                self._unreadable[key] = record

    def _revoke(self, partitions: tuple[int, ...]) -> None:
        for number in partitions:
            self._owned.pop(number, None)
        self._sent = {token: state for token, state in self._sent.items() if state.partition not in partitions}
        self._forgetting = {token: one for token, one in self._forgetting.items() if one[0] not in partitions}

    def _drain(self) -> None:
        """What has not been learnt stays unsettled, to be read again; what has been learnt is published now."""
        self._draining = True
        for owned in self._owned.values():
            owned.queued.clear()

    def _take(self, event: OutcomesFetched, now_ms: int, effects: list[Effect]) -> None:
        owned = self._owned.get(event.outcomes.partition)
        if owned is None or self._draining:
            return
        if not owned.begun:
            owned.queued.append(event.outcomes)
            return
        for outcome in event.outcomes.records:
            self._learn(owned, outcome, now_ms, effects)
        owned.next_offset = max(owned.next_offset, event.outcomes.next_offset)

    def _begin_known(self, now_ms: int, effects: list[Effect]) -> None:
        for owned in self._owned.values():
            if owned.begun or (self._learns and self._known_ms < owned.assigned_ms):
                continue
            if self._keyed and not owned.keyed_loaded:
                continue
            owned.begun = True
            owned.highest_epoch = owned.keyed.highest_epoch
            mine = [record for record in self._newest.values() if record.partition == owned.number]
            for record in sorted(mine, key=lambda one: one.append_ms):
                if record.route in self._routes:
                    self._restore(owned, record)
            for record in owned.keyed.without_snapshot.values():
                self._restore(owned, record)
            owned.keyed.without_snapshot.clear()
            for unreadable in self._unreadable.values():
                if unreadable.partition == owned.number:
                    self._do_without(owned, unreadable)
            # Only when all are there: what a snapshot covers depends on the others.
            for state in list(owned.busy):
                self._send_snapshot(owned, state, effects)
            queued, owned.queued = owned.queued, []
            for outcomes in queued:
                self._take(OutcomesFetched(outcomes=outcomes), now_ms, effects)

    def _restore(self, owned: OwnedOutcomes, record: StateRecord) -> None:
        route, since_offset = self._version_of(record)
        if not route.learns or record.policy != route.policy.name:
            return
        state = self._wake(owned, route, since_offset, record)
        owned.highest_epoch = max(owned.highest_epoch, record.epoch)
        if record.covers == 0:
            # From the epochs topic: its writer may have died before the snapshot was acknowledged.
            state.floor = record.epoch
            state.publication = Publication(record=record, offsets=[], in_epochs=True)
        owned.note(state)

    def _version_of(self, record: StateRecord) -> tuple[Route, int]:
        """The version of its route that a state is under, and the place of the record that brought it: that of the
        newest outcome that it holds, where it says which."""
        route, since_offset = self._route_at(record.route, max(record.learnt_ms, 0) or record.append_ms)
        return route or self._routes[record.route], since_offset

    def _wake(self, owned: OwnedOutcomes, route: Route, since_offset: int, record: StateRecord) -> Learnt:
        """The state of a record, under a version of its route."""
        value = route.policy.load(record.data, route.models)
        state = Learnt(route=route, context=record.context, partition=owned.number, value=value)
        state.record = record
        state.since_offset = since_offset
        state.learnt_ms = record.learnt_ms
        state.published_ms = record.append_ms
        owned.states[record.route, record.context] = state
        return state

    def _do_without(self, owned: OwnedOutcomes, unreadable: UnreadableState) -> None:
        """Go on from the newest state that can be read, if there is none after this one."""
        route = self._routes.get(unreadable.route)
        if route is None or not route.learns:
            return
        readable = owned.record_of(unreadable.route, unreadable.context)
        if readable is not None and readable.epoch >= unreadable.epoch:
            return
        if unreadable.is_whole:
            raise ContractError(
                f"{unreadable.words}; another release has written it, and learning on from an older state would write "
                f"over it. Run the release that wrote it, or give route {unreadable.route} another name to begin anew"
            )
        owned.learns_again.add((unreadable.route, unreadable.context))
        included = 0 if readable is None else readable.included
        if included < owned.rebuilds_from:
            self._count("not_read_again", owned.rebuilds_from - included)

    # -- learning ------------------------------------------------------------------------------------------------

    def _learn(self, owned: OwnedOutcomes, outcome: OutcomeRecord, now_ms: int, effects: list[Effect]) -> None:
        if outcome.offset < owned.next_offset:
            return
        owned.next_offset = outcome.offset + 1
        first = owned.first_time(outcome)
        if outcome.offset < owned.position and (outcome.route, outcome.context) not in owned.learns_again:
            return
        route, since_offset = self._route_at(outcome.route, outcome.append_ms)
        status = self._unlearnable(route, outcome, owned) or ("" if first else "duplicate")
        if status or route is None:
            self._pass(owned, outcome, status)
            return
        state = self._state_of(owned, route, since_offset, outcome.context)
        if state is None:
            self._pass(owned, outcome, "too_many_contexts")
            return
        if outcome.offset < state.includes_below(0):
            self._count("included")
            state.settle_with_publication(outcome.offset, owned)
            owned.note(state)
            return
        if since_offset > state.since_offset:
            owned.turn(state, route, since_offset)
        route = state.route
        before = state.value
        if is_keyed(state.context) and route.contexts is not None and state.learnt_ms >= 0:
            is_forgotten = outcome.append_ms > state.learnt_ms + route.contexts.forget_after_ms
            before = route.policy.initial(route.models) if is_forgotten else before
        value = route.policy.learn(before, outcome)
        if value is before:
            self._pass(owned, outcome, "no_change")
            owned.note(state)
            return
        state.learnt(value, outcome, now_ms)
        owned.note(state)
        self._count("learnt")
        if state.publication is None and state.changes >= self._options.publish_every_outcomes:
            self._publish(owned, state, now_ms, effects)

    def _unlearnable(self, route: Route | None, outcome: OutcomeRecord, owned: OwnedOutcomes) -> str:
        if route is None:
            return "unknown_route"
        if not route.learns:
            return "not_learning"
        rule = route.contexts
        if outcome.context and (rule is None or rule.features or (is_keyed(outcome.context) and not rule.keyed)):
            return "no_contexts"
        # A second writer of the same state would be the end of one order.
        home = home_of(outcome.route, outcome.context, outcome.ref[0], self._options.partitions)
        return "" if home == owned.number else "misplaced"

    def _state_of(self, owned: OwnedOutcomes, route: Route, since_offset: int, context: str) -> Learnt | None:
        """The state of this context, begun where there is none; None where its route has as many as it may.

        A keyed one that rests wakes under the version of the outcome, like one that turns to it.
        """
        state = owned.states.get((route.name, context))
        if state is None and is_keyed(context):
            record = owned.keyed.find(route.name, context)
            state = None if record is None else self._wake(owned, route, since_offset, record)
        return state or self._begin(owned, route, context)

    def _begin(self, owned: OwnedOutcomes, route: Route, context: str) -> Learnt | None:
        if is_keyed(context):
            if route.contexts is None or owned.keyed.n_of(route.name) >= route.contexts.most_keyed:
                return None
        else:
            contexts = self._contexts[route.name]
            if context not in contexts and route.contexts is not None and len(contexts) > route.contexts.most:
                return None
            contexts.add(context)
        value = route.policy.initial(route.models)
        state = Learnt(route=route, context=context, partition=owned.number, value=value)
        owned.states[route.name, context] = state
        return state

    def _pass(self, owned: OwnedOutcomes, outcome: OutcomeRecord, status: str) -> None:
        owned.settled.append(outcome.offset)
        self._count(status)

    # -- publishing ----------------------------------------------------------------------------------------------

    def _due_ms(self, state: Learnt) -> int | None:
        """When this state is to be sent, by itself; None while an acknowledgement is awaited."""
        options = self._options
        if state.publication is not None:
            return state.retry_ms
        if state.changed_ms is None:
            if self._draining or state.record is None:
                return None
            return state.published_ms + self._republish_ms(state.route)
        wait_ms = 0 if self._draining or state.changes >= options.publish_every_outcomes else options.publish_every_ms
        return max(state.changed_ms + wait_ms, state.retry_ms or 0)

    def _republish_ms(self, route: Route) -> int:
        """How long a state of it may rest: while a learner is there, none becomes too old."""
        republish_ms = self._options.republish_ms
        return min(republish_ms, route.max_state_age_ms // 2) if route.max_state_age_ms else republish_ms

    def _publish_due(self, now_ms: int, effects: list[Effect]) -> None:
        for owned in self._owned.values():
            for state in owned.pressing(lambda route: now_ms - self._republish_ms(route)):
                due_ms = self._due_ms(state)
                if due_ms is None or due_ms > now_ms or not owned.begun:
                    continue
                if state.publication is None:
                    self._publish(owned, state, now_ms, effects)
                else:
                    self._send_snapshot(owned, state, effects)

    def _publish(self, owned: OwnedOutcomes, state: Learnt, now_ms: int, effects: list[Effect]) -> None:
        if state.retry_ms is not None and state.retry_ms > now_ms:
            return
        record = StateRecord(
            route=state.route.name,
            context=state.context,
            policy=state.route.policy.name,
            data=state.route.policy.dump(state.value),
            includes={owned.number: state.includes_below(owned.next_offset)},
            partition=owned.number,
            previous=-1 if state.record is None else state.record.epoch,
            learnt_ms=state.learnt_ms if is_keyed(state.context) else -1,
        )
        if state.floor is None:
            state.floor = owned.highest_epoch + 1
        state.take_changes(record)
        owned.note(state)
        effects.append(EmitState(token=self._new_token(state), state=record))

    def _send_snapshot(self, owned: OwnedOutcomes, state: Learnt, effects: list[Effect]) -> None:
        publication = state.publication
        if publication is None:
            return
        others = (other.floor for other in owned.busy if other is not state and other.floor is not None)
        record = replace(publication.record, covers=min([publication.record.epoch + 1, *others]))
        publication.record = record
        state.retry_ms = None
        effects.append(EmitSnapshot(token=self._new_token(state), state=record))

    def _tend_keyed(self, now_ms: int, effects: list[Effect]) -> None:
        """Some of the keyed states that wait for it are published again, or forgotten. By the broker's time: what is
        forgotten decides nothing any more, so nobody waits for it, and no deadline is named."""
        for owned in self._owned.values():
            if not owned.begun or self._draining:
                continue
            for record, is_forgotten in owned.keyed.due(self._known_ms):
                if (record.route, record.context) in owned.states:
                    continue
                if not is_forgotten and record.route not in self._routes:
                    continue  # the route has gone: its states are kept until they are forgotten
                if not is_forgotten:
                    state = self._wake(owned, *self._version_of(record), record)
                    self._publish(owned, state, now_ms, effects)
                    continue
                self._token += 1
                self._forgetting[self._token] = owned.number, record
                effects.append(
                    ForgetState(token=self._token, route=record.route, context=record.context, partition=owned.number)
                )

    def _acknowledge(self, event: Produced, now_ms: int, effects: list[Effect]) -> None:
        number, forgotten = self._forgetting.pop(event.token, (-1, None))
        if forgotten is not None:
            self._owned[number].keyed.drop(forgotten.route, forgotten.context, forgotten.epoch)
            self._count("forgotten", what="contexts")
            return
        state = self._sent.pop(event.token, None)
        if state is None or state.publication is None:
            return
        owned = self._owned[state.partition]
        publication = state.publication
        if not publication.in_epochs:
            publication.in_epochs = True
            publication.record = replace(publication.record, epoch=event.offset, append_ms=event.append_ms)
            owned.highest_epoch = max(owned.highest_epoch, event.offset)
            self._send_snapshot(owned, state, effects)
            return
        if is_keyed(state.context):
            owned.keyed.put(publication.record)
        else:
            self._note((publication.record,))
        owned.settled += state.published(now_ms)
        owned.note(state)

    def _failed(self, token: int, now_ms: int) -> None:
        self._forgetting.pop(token, None)
        state = self._sent.pop(token, None)
        if state is not None:
            state.failed(now_ms, min(_LONGEST_RETRY_MS, self._options.retry_ms << min(state.attempts, 10)))

    def _new_token(self, state: Learnt) -> int:
        self._token += 1
        self._sent[self._token] = state
        return self._token

    # -- output --------------------------------------------------------------------------------------------------

    def _settled(self) -> list[Effect]:
        effects: list[Effect] = []
        for owned in self._owned.values():
            if owned.settled:
                effects.append(Settle(partition=owned.number, offsets=np.array(sorted(owned.settled), np.int64)))
                owned.settled = []
        effects += [Count(what=what, label=label, n=n) for (what, label), n in self._counts.items()]
        self._counts = {}
        return effects

    def _count(self, label: str, n: int = 1, *, what: str = "outcomes") -> None:
        self._counts[what, label] = self._counts.get((what, label), 0) + n


def _age(record: StateRecord) -> tuple[int, int, int]:
    """The highest is the newest. A record that reached the log late may stand behind one that holds more outcomes; a
    snapshot comes after the record that it repeats."""
    return record.included, record.epoch, record.covers
