"""Follows what policies have learnt: snapshots first, then the epochs topic from a little before where they cover it;
and which models are switched off.

A role knows every state appended before broker time t once its position reaches end offsets that were asked for at t.
As t counts the earliest time that the broker can have had when they were asked for, however badly its clock is known.
The ends are asked on a connection of their own: a parked fetch would delay the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from streamserve.core.events import Event, StatesFetched, StatesKnownUntil
from streamserve.core.records import StateRecord
from streamserve.errors import BrokerError
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.ports import At, Chunk, LogLookups, LogReader

_log = logging.getLogger(__name__)

_FETCH_RECORDS = 500
_FETCH_TIMEOUT_MS = 1_000
_LOAD_TIMEOUT_MS = 200
#: So many states before the newest snapshot are read too: requests that are still open were appended before it holds.
_LOOK_BACK = 100

#: Asked for and not yet reached: a reader that is behind gains nothing by knowing more of them.
_MOST_ASKED = 100

StateDecoder = Callable[[Chunk], StatesFetched]


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
    ) -> None:
        """`decode`: by topic."""
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
        """Read all that is there now. Raises BrokerError, and ContractError for a state of another version."""
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
        self._positions = {at: max(first[at], covers.get(at.partition, 0) - _LOOK_BACK) for at in self._epochs}
        ends = await self._lookups.ends(self._epochs)
        async for fetched in self._until(self._positions, ends):
            self._post(fetched)
        self._positions = {at: max(self._positions[at], ends[at]) for at in self._epochs}
        starts, ends = await self._lookups.starts(self._models), await self._lookups.ends(self._models)
        async for fetched in self._until(starts, ends):
            if fetched.switches:
                self._post(fetched)
        self._positions |= {at: max(self._positions.get(at, 0), starts[at], ends[at]) for at in self._models}
        self._reader.read(self._positions)
        self.loaded = True

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
                if fetched.states or fetched.unreadable or fetched.switches:
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
