"""Follows what policies have learnt: snapshots first, then the epochs topic from a little before where they cover it;
and which models are switched off.

Keyed states are read when their partition is assigned (`own`), each such partition in turn: snapshots, then the epochs
topic from where they cover it to where the follower is by then.

A role knows every state appended before broker time t once its position reaches end offsets that were asked for at t.
As t counts the earliest time that the broker can have had when they were asked for, however badly its clock is known.
The ends are asked on a connection of their own: a parked fetch would delay the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass

from streamserve.core.contexts import is_keyed
from streamserve.core.events import ContextsFetched, Event, StatesFetched, StatesKnownUntil
from streamserve.core.records import StateRecord
from streamserve.errors import BrokerError
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.once import read_spans
from streamserve.kafka.ports import At, Chunk, LogLookups, LogReader

_log = logging.getLogger(__name__)

_FETCH_RECORDS = 500
_FETCH_TIMEOUT_MS = 1_000
_LOAD_TIMEOUT_MS = 200
#: So many states before the newest snapshot are read too: requests that are still open were appended before it holds.
_LOOK_BACK = 100

#: Asked for and not yet reached: a reader that is behind gains nothing by knowing more of them.
_MOST_ASKED = 100

_RETRY_S = 0.5

StateDecoder = Callable[[Chunk], StatesFetched]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStates:
    """How keyed states are read, where an app has any."""

    contexts_topic: str
    decode: StateDecoder
    """Of both topics; keyed states only."""
    scan: Callable[[], LogReader]
    keep_ms: int
    """Requests may still be open so long after they were appended."""


class StatesFollower:
    """Reads all partitions of an app's states, as a member of no group."""

    def __init__(
        self,
        *,
        epochs_topic: str,
        policy_topic: str,
        models_topic: str,
        partitions: int,
        decode: Mapping[str, StateDecoder],
        reader: LogReader,
        lookups: LogLookups,
        clock: BrokerClock,
        post: Callable[[Event], None],
        epoch_delay_ms: int,
        keyed: KeyedStates | None = None,
    ) -> None:
        """`decode`: by topic."""
        self._keyed = keyed
        self._covers: dict[int, int] = {}
        """By partition: the epochs offset below which all is in snapshots, as the newest one of them said."""
        self.owned: dict[int, int] = {}
        """Partitions whose keyed states are wanted, and the how manieth time they are."""
        self._to_load: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self._times = 0
        self._epochs = [At(epochs_topic, number) for number in range(partitions)]
        self._policy = [At(policy_topic, number) for number in range(partitions)]
        self._models = [At(models_topic, number) for number in range(partitions)]
        self._followed = [*self._epochs, *self._models]
        self._decode = decode
        self._reader = reader
        self._lookups = lookups
        self._clock = clock
        self._post = post
        self._every_s = epoch_delay_ms / 5 / 1000
        self._positions: dict[At, int] = {}
        self._asked: deque[tuple[int, Mapping[At, int]]] = deque()
        self._moved = asyncio.Event()
        self.loaded = False

    @property
    def parts(self) -> tuple[LogReader, LogLookups]:
        """What is to be started before `load`, and stopped at the end."""
        return self._reader, self._lookups

    async def load(self) -> None:
        """Read all that is there now. Raises BrokerError, and ContractError for a state of another version.

        Routes first: what a state says of a model is kept for the versions that are known when it is read.
        """
        models = await self._load_models()
        starts, ends = await self._lookups.starts(self._policy), await self._lookups.ends(self._policy)
        covers: dict[int, int] = {}
        snapshots: dict[tuple[int, str, str], StateRecord] = {}
        async for state in self._states(starts, ends):
            key = (state.partition, state.route, state.context)
            before = snapshots.get(key)
            if before is None or (state.included, state.epoch) >= (before.included, before.epoch):
                snapshots[key] = state  # else it reached the log late
            covers[state.partition] = max(covers.get(state.partition, 0), state.covers)
        if snapshots:
            self._post(StatesFetched(states=tuple(snapshots.values())))
        first = await self._lookups.starts(self._epochs)
        self._covers = covers
        self._positions = {at: max(first[at], covers.get(at.partition, 0) - _LOOK_BACK) for at in self._epochs}
        if self._keyed is not None:  # there so many records may be those of a moment
            recent = await self._since(self._epochs, self._keyed.keep_ms)
            self._positions = {
                at: max(first[at], min(position, recent[at])) for at, position in self._positions.items()
            }
        ends = await self._lookups.ends(self._epochs)
        async for fetched in self._until(self._positions, ends):
            self._post(fetched)
        self._positions = {at: max(self._positions[at], ends[at]) for at in self._epochs}
        self._positions |= models
        self._reader.read(self._positions)
        self.loaded = True

    async def _load_models(self) -> dict[At, int]:
        """Where to follow the models topic from."""
        starts, ends = await self._lookups.starts(self._models), await self._lookups.ends(self._models)
        async for fetched in self._until(starts, ends):
            if fetched.switches or fetched.routes:
                self._post(fetched)
        return {at: max(self._positions.get(at, 0), starts[at], ends[at]) for at in self._models}

    async def _states(self, starts: Mapping[At, int], ends: Mapping[At, int]) -> AsyncIterator[StateRecord]:
        async for fetched in self._until(starts, ends):
            for state in fetched.states:
                yield state

    async def _until(self, starts: Mapping[At, int], ends: Mapping[At, int]) -> AsyncIterator[StatesFetched]:
        """What is there from `starts` to `ends`."""
        waiting = {at: ends[at] for at in ends if starts[at] < ends[at]}
        if not waiting:
            return
        self._reader.read({at: starts[at] for at in waiting})
        while waiting:
            chunks = await self._reader.fetch(max_records=_FETCH_RECORDS, timeout_ms=_LOAD_TIMEOUT_MS)
            for chunk in chunks:
                # Beyond its end, too: what was appended meanwhile does not come a second time.
                self._positions[chunk.at] = max(self._positions.get(chunk.at, 0), chunk.next_offset)
                yield self._decode[chunk.at.topic](chunk)
                if chunk.next_offset >= waiting.get(chunk.at, 0):
                    waiting.pop(chunk.at, None)
            if not chunks:  # compaction may have removed the last records before the end
                waiting = {at: end for at, end in waiting.items() if self._reader.lag(at) != 0}

    async def follow(self) -> None:
        """For ever: states as they come."""
        while True:
            for chunk in await self._reader.fetch(max_records=_FETCH_RECORDS, timeout_ms=_FETCH_TIMEOUT_MS):
                if chunk.at not in self._positions or chunk.next_offset <= self._positions[chunk.at]:
                    continue
                self._positions[chunk.at] = chunk.next_offset
                fetched = self._decode[chunk.at.topic](chunk)
                if fetched.states or fetched.unreadable or fetched.switches or fetched.routes:
                    self._post(fetched)
                self._tell()
                self._moved.set()

    async def ask(self) -> None:
        """For ever: how far what is known reaches."""
        while True:
            at_ms = self._clock.earliest_ms()
            try:
                if at_ms is not None and len(self._asked) < _MOST_ASKED:
                    self._asked.append((at_ms, await self._lookups.ends(self._followed)))
            except BrokerError as error:  # decisions are marked stale meanwhile; the next answer mends it
                _log.warning("how far the learnt states reach cannot be asked: %s; asked again", error)
            self._tell()
            await asyncio.sleep(self._every_s)

    async def _since(self, partitions: Collection[At], ago_ms: int) -> dict[At, int]:
        return await self._lookups.since({at: self._clock.now_ms() - ago_ms for at in partitions})

    # -- keyed states

    def own(self, partitions: Collection[int]) -> None:
        """These partitions were assigned: read their keyed states, and post them as `ContextsFetched`."""
        for number in partitions if self._keyed is not None else ():
            self._times += 1
            self.owned[number] = self._times
            self._to_load.put_nowait((number, self._times))

    def disown(self, partitions: Collection[int]) -> None:
        """Their keyed states are not wanted any more."""
        for number in partitions:
            self.owned.pop(number, None)

    async def load_owned(self) -> None:
        """For ever: keyed states of partitions that are assigned."""
        while True:
            number, time = await self._to_load.get()
            while self._keyed is not None and self.owned.get(number) == time:
                try:
                    await self._load_keyed(self._keyed, number, time)
                except BrokerError as error:  # decisions are marked stale, and nothing is learnt, meanwhile
                    _log.warning("keyed states of partition %d cannot be read yet: %s", number, error)
                    await asyncio.sleep(_RETRY_S)
                else:
                    break

    async def _load_keyed(self, keyed: KeyedStates, number: int, time: int) -> None:
        contexts = At(keyed.contexts_topic, number)
        epochs = next(at for at in self._epochs if at.partition == number)
        covers, n = self._covers.get(number, 0), 0

        def take(chunk: Chunk) -> None:
            nonlocal covers, n
            if self.owned.get(number) != time:
                return
            fetched = keyed.decode(chunk)
            states = tuple(state for state in fetched.states if is_keyed(state.context))
            covers = max([covers, *(state.covers for state in states)])
            n += len(states)
            if states or fetched.unreadable:
                self._post(ContextsFetched(partition=number, states=states, unreadable=fetched.unreadable))

        reader = keyed.scan()
        await reader.start()
        try:
            starts, ends = await self._lookups.starts([contexts]), await self._lookups.ends([contexts])
            await read_spans(reader, {contexts: (starts[contexts], ends[contexts])}, take)
            first, recent = await self._lookups.starts([epochs]), await self._since([epochs], keyed.keep_ms)
            ends = await self._lookups.ends([epochs])
            start = max(first[epochs], min(covers - _LOOK_BACK, recent[epochs]))
            await read_spans(reader, {epochs: (start, ends[epochs])}, take)
        finally:
            await reader.stop()
        if self.owned.get(number) == time:
            _log.info("partition %d: %d records of keyed states read", number, n)
            self._post(ContextsFetched(partition=number, loaded=True))

    async def reached(self, partitions: list[int]) -> None:
        """Wait until everything that these epochs partitions hold now has been posted."""
        mine = [at for at in self._epochs if at.partition in partitions]
        ends = await self._lookups.ends(mine)
        while any(self._positions[at] < end for at, end in ends.items()):
            self._moved.clear()
            await self._moved.wait()

    def _tell(self) -> None:
        known = None
        while self._asked and all(self._positions[at] >= end for at, end in self._asked[0][1].items()):
            known = self._asked.popleft()[0]
        if known is not None:
            self._post(StatesKnownUntil(known_until_ms=known))
