"""The one loop of every role.

Three things wake it: records, the end of something it started (a model call, an acknowledgement), and the stage's
next deadline. Drain tasks always wait in `fetch` and never work; the loop works and never waits in `fetch`.

Law: a deadline fires only after everything that was fetched before it was seen to be due has been applied.

Long since inbox, turn and ownership guard the same ledgers: between them nothing else may run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from streamserve.core.bounds import Fill
from streamserve.core.effects import Effect
from streamserve.core.events import (
    AnswersFetched,
    Assigned,
    BatchesFinished,
    BatchFinished,
    ContextsFetched,
    Drain,
    Event,
    RequestsFetched,
    Resume,
    Revoked,
    Tick,
)
from streamserve.core.fast import every, indices, some
from streamserve.core.ledger import Ledger
from streamserve.core.messages import DeadLetters, Requests
from streamserve.core.slicing import joined_requests, take_letters
from streamserve.core.stage import Stage
from streamserve.errors import ShuttingDown
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.ports import Chunk

_log = logging.getLogger(__name__)

#: The loop gives way to sockets and heartbeats at least this often while it has work.
TURN_MS = 5.0
#: Records per fetch: more would make the garbage collector walk them.
FETCH_RECORDS = 500
_FETCH_TIMEOUT_MS = 1_000
#: Re-arming below this would spin, should a stage break law 1.
_LEAST_WAIT_MS = 1.0
#: What only settles or only opens may wait this long for other work, so that it costs no turn of its own.
_QUIET_WAIT_S = 0.005
#: How often a loop that may not act looks whether it may again.
_HELD_WAIT_S = 0.01


Reject = Callable[[DeadLetters], None]
"""Takes records that cannot be used: they become dead letters; those of the driving topic are then settled."""


class Source(Protocol):
    """What both kinds of reader offer to a drain task."""

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Which topic drives a role, and what its records become."""

    driving: str
    events: Mapping[str, Callable[[Chunk], Event | None]]
    """Topic -> event of one chunk; None where nothing in it concerns the stage."""
    rejecting: Mapping[str, Callable[[Chunk, Reject], Event]] = field(default_factory=dict)
    """The same for topics of which some records are dead letters before the stage sees them."""
    quiet: frozenset[str] = frozenset()
    """Topics whose records may wait a little for other work: alone they lead to nothing that hurries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the loop's own queue and of one turn."""

    most_records: int = 20_000
    """Fetched and not yet seen; above, all fetching waits until it is at half of it."""
    most_bytes: int = 128 << 20
    """The same, of their values."""
    most_unacknowledged: int = 50_000
    """Records sent and not acknowledged; with so many all fetching waits. Nobody has to read for an acknowledgement."""
    turn_ms: float = TURN_MS


DEFAULT_LIMITS = Limits()


class StageLoop:
    """Feeds one stage and does what it says. Not for two threads."""

    def __init__(
        self,
        *,
        stage: Stage,
        wiring: Wiring,
        clock: BrokerClock,
        metrics: RoleMetrics,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.stage = stage
        self.ledgers: dict[int, Ledger] = {}
        """Owned partitions of the driving topic."""
        self._wiring = wiring
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._perform: Callable[[Effect], None] | None = None
        self._reject: Reject = _cannot_reject
        self._inbox: deque[Chunk | BatchFinished | Event] = deque()
        self._queued_records = 0
        self._queued_bytes = 0
        self._posted = 0
        self._handled = 0
        self._due_mark: int | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._wanted = asyncio.Event()
        """The stage takes more of the driving topic."""
        self._wanted.set()
        self._progress = asyncio.Event()
        self._asked_ms: dict[Source, float] = {}
        """Since when a fetch that has not returned has been asked for."""
        self._quiet: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for: int | None = None
        self._deadline: int | None = None
        self._deadline_known = False
        self._requests: list[Requests] = []
        self._answers: list[AnswersFetched] = []
        self._finished: list[BatchFinished] = []
        """Of the turn that is going on: a small event costs a stage nearly as much as a large one."""
        self._gathered_records = 0
        self._more = False
        """The last turn left something over: the next one follows without a wake-up."""
        self._stopped = False
        self._closing: frozenset[int] = frozenset()
        self.may_act: Callable[[], bool] = lambda: True
        """False: this process has not heard from its group for too long; nothing is handled until it has."""
        self.linger: Callable[[], None] = lambda: None
        """Called after a turn that left nothing over: stands still, very briefly, for what is about to end."""
        self.unacknowledged: Callable[[], int] = lambda: 0
        """Records sent that the broker has not acknowledged."""
        self.turned_at_ms = clock.monotonic_ms()

    def performs(self, perform: Callable[[Effect], None], reject: Reject) -> None:
        """Who does the effects; set before `run`."""
        self._perform = perform
        self._reject = reject

    @property
    def queued_records(self) -> int:
        """Fetched and not yet seen by the stage."""
        return self._queued_records

    def fills(self) -> dict[str, Fill]:
        """Of the loop and of its stage."""
        limits = self._limits
        return {
            "fetched_records": Fill(self._queued_records, limits.most_records),
            "fetched_bytes": Fill(self._queued_bytes, limits.most_bytes),
            "unacknowledged_records": Fill(self.unacknowledged(), limits.most_unacknowledged),
            **self.stage.fills(),
        }

    def longest_fetch_ms(self) -> float:
        """For how long a fetch has been asked for that has not returned; each is to return within seconds."""
        now_ms = self._clock.monotonic_ms()
        return max((now_ms - asked_ms for asked_ms in self._asked_ms.values()), default=0.0)

    @property
    def open_requests(self) -> int:
        """Seen by the stage and not settled."""
        return sum(len(ledger) for ledger in self.ledgers.values())

    def post(self, event: Event) -> None:
        """Queue an event behind everything already there."""
        self._inbox.append(event)
        self._posted += 1
        self._wake.set()

    def post_finished(self, batch: BatchFinished) -> None:
        """A model call has ended: handled together with others of the same turn."""
        self._inbox.append(batch)
        self._posted += 1
        self._wake.set()

    def post_quietly(self, event: Event) -> None:
        """The same for what may wait a little: handled with whatever comes next, or after 5 ms."""
        self._inbox.append(event)
        self._posted += 1
        self._wake_quietly()

    def _wake_quietly(self) -> None:
        if self._quiet is None and not self._wake.is_set():
            self._quiet = asyncio.get_running_loop().call_later(_QUIET_WAIT_S, self._quiet_over)

    def _quiet_over(self) -> None:
        self._quiet = None
        if self._inbox:
            self._wake.set()

    def reject(self, letters: DeadLetters) -> None:
        """Keep these records as dead letters, and settle those of the driving topic."""
        self._reject(letters)

    def wake(self) -> None:
        self._wake.set()

    async def drain(self, source: Source, *, driving: bool = False) -> None:
        """Fetch for ever; a full queue holds it, or, where it is `driving`, a stage that takes no more."""
        while True:
            await self._room.wait()
            if driving:
                await self._wanted.wait()
            self._asked_ms[source] = self._clock.monotonic_ms()
            chunks = await source.fetch(max_records=FETCH_RECORDS, timeout_ms=_FETCH_TIMEOUT_MS)
            self._asked_ms.pop(source, None)
            for chunk in chunks:
                self._inbox.append(chunk)
                self._posted += 1
                self._queued_records += len(chunk)
                self._queued_bytes += chunk.n_bytes
            if chunks:
                if all(chunk.at.topic in self._wiring.quiet for chunk in chunks):
                    self._wake_quietly()
                else:
                    self._wake.set()
                if self._is_full():
                    self._room.clear()

    async def run(self) -> None:
        """Turn until `stop`."""
        while not self._stopped:
            if not self._more and not self._is_due():
                self._arm()
                await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0)  # what the sockets hold comes in before anything is decided
            if self.may_act():
                self._turn()
                if not self._inbox:
                    self.linger()
            else:
                self._more = True
                await asyncio.sleep(_HELD_WAIT_S)
            self.turned_at_ms = self._clock.monotonic_ms()
        for timer in (self._timer, self._quiet):
            if timer is not None:
                timer.cancel()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def _turn(self) -> None:
        until = self._clock.monotonic_ms() + self._limits.turn_ms
        if self._due_mark is None and self._is_due():
            self._due_mark = self._posted
        inbox = self._inbox
        while inbox:
            item = inbox.popleft()
            self._handled += 1
            is_last = self._clock.monotonic_ms() >= until
            if isinstance(item, Chunk):
                self._take(item)
            elif isinstance(item, BatchFinished):
                self._finished.append(item)
            else:
                self._decide()
                self._apply(item)
            if is_last:
                break
        self._decide()
        if self._due_mark is not None and self._handled >= self._due_mark:
            self._due_mark = None
            self._apply(Tick())
        self._make_room()
        self._more = bool(inbox)
        self._progress.set()

    def _make_room(self) -> None:
        if self.unacknowledged() >= self._limits.most_unacknowledged:
            self._room.clear()
        elif not self._room.is_set() and self._is_half_empty():
            self._room.set()
        if self.stage.takes_more:
            self._wanted.set()
        else:
            self._wanted.clear()

    def _is_full(self) -> bool:
        limits = self._limits
        return self._queued_records > limits.most_records or self._queued_bytes > limits.most_bytes

    def _is_half_empty(self) -> bool:
        limits = self._limits
        return self._queued_records <= limits.most_records // 2 and self._queued_bytes <= limits.most_bytes // 2

    def _take(self, chunk: Chunk) -> None:
        self._queued_records -= len(chunk)
        self._queued_bytes -= chunk.n_bytes
        partition = chunk.at.partition
        ledger = self.ledgers.get(partition)
        if ledger is None:
            return
        reject = self._reject
        if chunk.at.topic == self._wiring.driving:
            if partition in self._closing:
                return
            fresh, reject = chunk.offsets, partial(self._reject_new, ledger.next_offset)
            if len(fresh) and int(fresh[0]) < ledger.next_offset:  # read again only to be remembered
                fresh = fresh[fresh >= ledger.next_offset]
            ledger.opened(fresh, chunk.next_offset)
            if not len(chunk):
                return
            self._metrics.consumed(chunk)
        rejecting = self._wiring.rejecting.get(chunk.at.topic)
        make = self._wiring.events.get(chunk.at.topic)
        event = rejecting(chunk, reject) if rejecting is not None else make(chunk) if make is not None else None
        match event:
            case None:
                return
            case RequestsFetched():
                self._requests.append(event.requests)
                self._gathered_records += len(event.requests)
            case AnswersFetched():
                self._answers.append(event)
                self._gathered_records += sum(map(len, event.blocks))
            case _:
                self._apply(event)
        if self._gathered_records >= FETCH_RECORDS:
            self._decide()

    def _reject_new(self, position: int, letters: DeadLetters) -> None:
        """What lies below the position was rejected when it was first read; now it is only remembered."""
        new = letters.offsets >= position
        if every(new):
            self._reject(letters)
        elif some(new):
            self._reject(take_letters(letters, indices(new)))

    def _decide(self) -> None:
        """Give the stage what was gathered: requests of all partitions in one event, answers, ended calls."""
        self._gathered_records = 0
        if self._requests:
            requests, self._requests = self._requests, []
            self._apply(RequestsFetched(requests=joined_requests(requests)))
        if self._answers:
            answers, self._answers = self._answers, []
            positions = {partition: at for event in answers for partition, at in event.positions.items()}
            self._apply(AnswersFetched(blocks=tuple(b for event in answers for b in event.blocks), positions=positions))
        if self._finished:
            finished, self._finished = self._finished, []
            self._apply(BatchesFinished(batches=tuple(finished)))

    def _apply(self, event: Event) -> None:
        perform = self._perform
        if perform is None:
            raise ShuttingDown("the loop has nothing to perform effects with")
        self._deadline_known = False
        for effect in self.stage.handle(event, self._clock.now_ms()):
            perform(effect)

    def _next_deadline_ms(self) -> int | None:
        """The stage's deadline, asked for once after each change: it may look through all that is open."""
        if not self._deadline_known:
            self._deadline = self.stage.next_deadline_ms()
            self._deadline_known = True
        return self._deadline

    def _is_due(self) -> bool:
        deadline = self._next_deadline_ms()
        return deadline is not None and self._clock.until_ms(deadline) <= 0

    def _arm(self) -> None:
        deadline = self._next_deadline_ms()
        if deadline == self._timer_for and (self._timer is None or not self._timer.cancelled()):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_for = None, None
        if deadline is not None:
            wait_ms = max(_LEAST_WAIT_MS, self._clock.until_ms(deadline))
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._fired)
            self._timer_for = deadline

    def _fired(self) -> None:
        self._timer, self._timer_for = None, None
        self._wake.set()

    # ownership: called by the keeper of the partitions, between turns

    def begin(self, resumes: Mapping[int, Resume]) -> None:
        """These partitions are ours from now on."""
        self._forget_queued(resumes.keys())  # fetched before; what is to be read is yet to come
        self._closing -= resumes.keys()
        for partition, resume in resumes.items():
            self.ledgers[partition] = Ledger(resume.position)
        self._apply(Assigned(partitions=dict(resumes)))
        self._wake.set()

    def close_to_new(self, partitions: Collection[int]) -> None:
        """Take no new input of these partitions; what is queued and not yet seen is forgotten (it is read again)."""
        self._closing |= frozenset(partitions)

    async def finished(self, partitions: Collection[int], until_ms: float) -> bool:
        """Wait until nothing of these partitions is open; False when the time (by the monotonic clock) is over."""
        while any(len(self.ledgers[p]) for p in partitions if p in self.ledgers):
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return False
            self._progress.clear()
            try:
                await asyncio.wait_for(self._progress.wait(), left_ms / 1000)
            except TimeoutError:
                return False
        return True

    def end(self, partitions: Collection[int]) -> None:
        """These partitions are no longer ours: what is queued of them is forgotten, the stage drops their state."""
        gone = frozenset(partitions) & self.ledgers.keys()
        if not gone:
            return
        for partition in gone:
            del self.ledgers[partition]
        self._forget_queued(gone)
        self._closing -= gone
        self._room.set()
        self._wanted.set()
        self._apply(Revoked(partitions=tuple(sorted(gone))))
        self._wake.set()

    def _forget_queued(self, partitions: Collection[int]) -> None:
        kept: deque[Chunk | BatchFinished | Event] = deque()
        for item in self._inbox:
            if isinstance(item, Chunk) and item.at.partition in partitions:
                self._queued_records -= len(item)
                self._queued_bytes -= item.n_bytes
                self._handled += 1
            elif isinstance(item, ContextsFetched) and item.partition in partitions:
                self._handled += 1
            else:
                kept.append(item)
        self._inbox = kept

    def begin_drain(self) -> None:
        """The process is to stop: take nothing new."""
        self.close_to_new(self.ledgers.keys())
        self.post(Drain())  # in its turn: who was stopped for long may not act, not even to end


def _cannot_reject(_letters: DeadLetters) -> None:
    raise ShuttingDown("the loop has nowhere to put dead letters")
