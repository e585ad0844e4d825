"""What the update stage holds: a learnt state with what it owes the broker, and a partition of outcomes."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from streamserve.core.contexts import is_keyed
from streamserve.core.records import OutcomeRecord, Outcomes, StateRecord
from streamserve.core.routes import Route
from streamserve.core.stages.update_keyed import RestingStates

_Key = tuple[tuple[int, int], str, str]

#: A longer pause between a join's outcomes counts as this: it may have stood still, and have committed nothing.
_LONGEST_STEP_MS = 5_000


@dataclass(slots=True, kw_only=True, eq=False)
class Publication:
    """A state on its way: first to the epochs topic, then its snapshot."""

    record: StateRecord
    offsets: list[int]
    """Outcomes that are settled once the snapshot is acknowledged."""
    in_epochs: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Learnt:
    """One state that this process writes."""

    route: Route
    context: str
    partition: int
    value: Any
    record: StateRecord | None = None
    """Newest record that is acknowledged, snapshot included."""
    published_ms: int = 0
    pending: list[int] = field(default_factory=list)
    """Outcomes learnt since the last publication was begun."""
    changes: int = 0
    changed_ms: int | None = None
    """When the first of these changes was made."""
    publication: Publication | None = None
    learnt_ms: int = -1
    """Append time of the newest outcome in the value."""
    retry_ms: int | None = None
    """Not to be sent before this, after a failure."""
    attempts: int = 0
    since_offset: int = -1
    """Place of the record that put its route's version in force; -1: the config's."""
    floor: int | None = None
    """No record of this state that still lacks its snapshot has a lower epoch; None where none lacks it."""

    @property
    def busy(self) -> bool:
        return self.publication is not None or self.changed_ms is not None

    def learnt(self, value: object, outcome: OutcomeRecord, now_ms: int) -> None:
        self.value = value
        self.learnt_ms = outcome.append_ms
        self.pending.append(outcome.offset)
        self.changes += 1
        if self.changed_ms is None:
            self.changed_ms = now_ms

    def includes_below(self, next_offset: int) -> int:
        """Outcomes offset below which all are in the value: read here, or already by the writer of its record."""
        return next_offset if self.record is None else max(next_offset, self.record.includes.get(self.partition, 0))

    def settle_with_publication(self, offset: int, owned: OwnedOutcomes) -> None:
        """An outcome that the newest record includes already: settled with its snapshot, if that is on its way."""
        if self.publication is None:
            owned.settled.append(offset)
        else:
            self.publication.offsets.append(offset)

    def take_changes(self, record: StateRecord) -> None:
        self.publication = Publication(record=record, offsets=self.pending)
        self.pending = []
        self.changes = 0
        self.changed_ms = None
        self.retry_ms = None

    def published(self, now_ms: int) -> list[int]:
        """The snapshot is acknowledged; the outcomes that this settles."""
        publication = self.publication
        if publication is None:
            return []
        self.record = publication.record
        self.published_ms = now_ms
        self.publication = None
        self.floor = None
        self.attempts = 0
        return publication.offsets

    def failed(self, now_ms: int, delay_ms: int) -> None:
        """A state goes back among the changes, to be sent with what is learnt meanwhile; a snapshot is sent again."""
        publication = self.publication
        self.attempts += 1
        self.retry_ms = now_ms + delay_ms
        if publication is None or publication.in_epochs:
            return
        self.pending = publication.offsets + self.pending
        self.changes = max(self.changes, len(self.pending))
        self.changed_ms = now_ms if self.changed_ms is None else self.changed_ms
        self.publication = None


class OwnedOutcomes:
    """One owned partition of outcomes, with the states that it teaches."""

    def __init__(
        self,
        number: int,
        position: int,
        rebuilds_from: int,
        assigned_ms: int,
        *,
        dedupe_ms: int,
        max_remembered: int,
        keyed: RestingStates,
    ) -> None:
        self.number = number
        self.keyed = keyed
        """Keyed states that are in the log and not being changed; `states` has the others."""
        self.keyed_loaded = False
        """All keyed states that stood there when the partition was assigned are in `keyed`."""
        self.position = position
        self.rebuilds_from = min(rebuilds_from, position)
        """From where outcomes are read again."""
        self.assigned_ms = assigned_ms
        self.learns_again: set[tuple[str, str]] = set()
        """States whose newest record is damaged: what their newest good one lacks is learnt from what is read again."""
        self.begun = False
        """All states appended until the assignment are known."""
        self.queued: list[Outcomes] = []
        self.next_offset = 0
        self.highest_epoch = -1
        self.states: dict[tuple[str, str], Learnt] = {}
        self.busy: dict[Learnt, None] = {}
        """Those that are changed, or on their way: the others need no look at each turn."""
        self._resting: defaultdict[Route, OrderedDict[Learnt, None]] = defaultdict(OrderedDict)
        """Those in the log, by route, which says how long they may rest; published longest ago first."""
        self.settled: list[int] = []
        self._dedupe_ms = dedupe_ms
        self._max_remembered = max_remembered
        self._seen: set[_Key] = set()
        self._recent: dict[int, deque[tuple[_Key, int, int]]] = {}  # by join partition; with the time by its clock
        self._clocks: dict[int, tuple[int, int]] = {}
        """By join partition: last append time, and time at work until then."""

    def turn(self, state: Learnt, route: Route, since_offset: int) -> None:
        """Go on under a later version of the route: what the state says of models that both have is kept."""
        state.since_offset = since_offset
        if route is state.route:
            return
        self._resting[state.route].pop(state, None)
        before, state.route = state.route, route
        if before.policy.name == route.policy.name:
            state.value = route.policy.load(before.policy.dump(state.value), route.models)
        else:
            state.value = route.policy.initial(route.models)

    def note(self, state: Learnt) -> None:
        """Something about this state has changed."""
        resting = self._resting[state.route]
        if state.busy:
            self.busy[state] = None
            resting.pop(state, None)
        elif is_keyed(state.context):
            self.busy.pop(state, None)
            self.states.pop((state.route.name, state.context), None)
        else:
            self.busy.pop(state, None)
            if state.record is not None:
                resting[state] = None
                resting.move_to_end(state)

    def record_of(self, route: str, context: str) -> StateRecord | None:
        """The newest record of a state."""
        state = self.states.get((route, context))
        return self.keyed.find(route, context) if state is None else state.record

    def pressing(self, published_until_ms: Callable[[Route], int] | None = None) -> list[Learnt]:
        """The states of which one is the next to be sent; with a time by route, all that rest since then."""
        found = list(self.busy)
        for route, resting in self._resting.items():
            if published_until_ms is None:
                found += islice(resting, 1)
                continue
            until_ms = published_until_ms(route)
            for state in resting:
                if state.published_ms > until_ms:
                    break
                found.append(state)
        return found

    def first_time(self, outcome: OutcomeRecord) -> bool:
        """Whether this is the first outcome of its (feedback, state); remembers it."""
        key = (outcome.feedback, outcome.route, outcome.context)
        recent = self._recent.setdefault(outcome.ref[0], deque())
        first = key not in self._seen
        if first:
            self._seen.add(key)
            recent.append((key, outcome.offset, self._at_work_ms(outcome)))
            if len(self._seen) > self._max_remembered:
                self._seen.discard(max(self._recent.values(), key=len).popleft()[0])
        self._forget(recent, outcome)
        return first

    def _at_work_ms(self, outcome: OutcomeRecord) -> int:
        """How long the join of this outcome's partition has been at work, as its outcomes show."""
        last_ms, at_work_ms = self._clocks.get(outcome.ref[0], (outcome.append_ms, 0))
        at_work_ms += min(max(0, outcome.append_ms - last_ms), _LONGEST_STEP_MS)
        self._clocks[outcome.ref[0]] = max(last_ms, outcome.append_ms), at_work_ms
        return at_work_ms

    def _forget(self, recent: deque[tuple[_Key, int, int]], outcome: OutcomeRecord) -> None:
        """Drop what the join of that partition can not send again: settled by it, and long enough ago to be committed.

        Its own outcomes are the clock: while it is down, or stands still between an outcome and its commit, nothing is
        forgotten. A forwarded record's offset is one of another partition; it goes with its neighbours.
        """
        join_partition = outcome.ref[0]
        before_ms = self._at_work_ms(outcome) - self._dedupe_ms
        while recent:
            key, _, at_ms = recent[0]
            (partition, offset), _, _ = key
            if at_ms >= before_ms or (partition == join_partition and offset >= outcome.open_offset):
                return
            recent.popleft()
            self._seen.discard(key)

    @property
    def remembered(self) -> int:
        """Feedback of which a second outcome would be known."""
        return len(self._seen)

    @property
    def unacknowledged(self) -> int:
        """Outcomes read that no acknowledged state holds yet."""
        return sum(len(outcomes.records) for outcomes in self.queued) + sum(
            len(state.pending) + (0 if state.publication is None else len(state.publication.offsets))
            for state in self.busy
        )

    @property
    def rebuild_from(self) -> int:
        oldest = min((recent[0][1] for recent in self._recent.values() if recent), default=self.next_offset)
        if self.next_offset < self.position:  # not yet rebuilt: the next owner needs the rest
            return self.rebuilds_from
        return max(oldest, 0)
