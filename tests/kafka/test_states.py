from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection

import pytest

from streamserve.core.events import ContextsFetched, Event, StatesFetched, StatesKnownUntil
from streamserve.core.records import StateRecord
from streamserve.errors import BrokerError
from streamserve.kafka import intake
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.ports import At, Chunk, Columns, Record
from streamserve.kafka.states import KeyedStates, StatesFollower
from streamserve.testing.log import MemoryLog, MemoryLookups, MemoryReader

EPOCHS, POLICY, MODELS = "a.epochs.v1", "a.policy.v1", "a.models.v1"
CONTEXTS = "a.contexts.v1"


def decode(chunk: Chunk) -> StatesFetched:
    states = []
    for offset, value, append_ms in zip(chunk.offsets.tolist(), chunk.values, chunk.append_ms.tolist(), strict=True):
        data = json.loads(value or b"{}")
        states.append(
            StateRecord(
                route=data["route"],
                context=data.get("context", ""),
                policy="p",
                data={},
                includes={chunk.at.partition: data.get("included", 0)},
                partition=chunk.at.partition,
                epoch=data.get("epoch", offset),
                append_ms=append_ms,
                covers=data.get("covers", 0),
            )
        )
    return StatesFetched(states=tuple(states))


def put(log: MemoryLog, topic: str, partition: int, **data: object) -> None:
    log.append(At(topic, partition), Columns.of([Record(value=json.dumps(data).encode())]))


def clock_of(answered_after_ms: float = 0.0) -> BrokerClock:
    """One that has heard of the broker's time once; its answer took so long."""
    clock = BrokerClock()
    now_ms = clock.now_ms()
    clock.acknowledged(clock.monotonic_ms() - answered_after_ms, now_ms - int(answered_after_ms))
    return clock


def follower(
    log: MemoryLog, events: list[Event], clock: BrokerClock | None = None, keyed: KeyedStates | None = None
) -> StatesFollower:
    return StatesFollower(
        epochs_topic=EPOCHS,
        policy_topic=POLICY,
        models_topic=MODELS,
        partitions=2,
        decode={EPOCHS: decode, POLICY: decode, MODELS: intake.switches_of},
        reader=MemoryReader(log),
        lookups=MemoryLookups(log),
        clock=clock or clock_of(),
        post=events.append,
        epoch_delay_ms=50,
        keyed=keyed,
    )


def epochs_in(events: list[Event]) -> list[tuple[str, int]]:
    return [(s.route, s.epoch) for event in events if isinstance(event, StatesFetched) for s in event.states]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.001)


async def test_it_reads_snapshots_then_epochs_from_where_they_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamserve.kafka.states._LOOK_BACK", 0)
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    for _ in range(5):
        put(log, EPOCHS, 0, route="r")
    put(log, POLICY, 0, route="r", epoch=1, covers=2)
    put(log, POLICY, 0, route="r", epoch=3, covers=4)
    states = follower(log, events)
    await states.load()
    assert epochs_in(events) == [("r", 3), ("r", 4)]
    assert states.loaded


async def test_a_snapshot_that_reached_the_log_late_is_not_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamserve.kafka.states._LOOK_BACK", 0)
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    put(log, POLICY, 0, route="r", epoch=3, covers=4, included=7)
    put(log, POLICY, 0, route="r", epoch=1, covers=2, included=5)
    await follower(log, events).load()
    assert epochs_in(events) == [("r", 3)]


async def test_it_reads_states_that_open_requests_may_need_too() -> None:
    """A snapshot is of the newest state; requests that are still open were appended before that holds."""
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    for _ in range(3):
        put(log, EPOCHS, 0, route="r")
    put(log, POLICY, 0, route="r", epoch=2, covers=3)
    await follower(log, events).load()
    assert epochs_in(events) == [("r", 2), ("r", 0), ("r", 1), ("r", 2)]


async def test_without_snapshots_it_reads_all_epochs() -> None:
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    put(log, EPOCHS, 0, route="a")
    put(log, EPOCHS, 1, route="b")
    await follower(log, events).load()
    assert sorted(epochs_in(events)) == [("a", 0), ("b", 0)]


async def test_an_empty_log_loads_at_once() -> None:
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    await follower(log, events).load()
    assert events == []


async def test_it_follows_and_says_how_far_it_knows() -> None:
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    states = follower(log, events)
    await states.load()
    tasks = [asyncio.create_task(states.follow()), asyncio.create_task(states.ask())]
    try:
        await until(lambda: any(isinstance(event, StatesKnownUntil) for event in events))
        put(log, EPOCHS, 1, route="r")
        written_ms = log.records(EPOCHS)[1][0].append_ms
        await asyncio.wait_for(states.reached([1]), 5)
        assert epochs_in(events) == [("r", 0)]
        await until(lambda: _known(events) > written_ms)
        kinds = [
            "state" if isinstance(e, StatesFetched) else "known"
            for e in events
            if isinstance(e, StatesFetched) or (isinstance(e, StatesKnownUntil) and e.known_until_ms > written_ms)
        ]
        assert kinds[0] == "state"
    finally:
        for task in tasks:
            task.cancel()


def _known(events: list[Event]) -> int:
    return max((e.known_until_ms for e in events if isinstance(e, StatesKnownUntil)), default=0)


async def test_it_never_claims_to_know_what_it_has_not_read() -> None:
    log, events = MemoryLog({EPOCHS: 1, POLICY: 1, MODELS: 1}), list[Event]()
    states = StatesFollower(
        epochs_topic=EPOCHS,
        policy_topic=POLICY,
        models_topic=MODELS,
        partitions=1,
        decode={EPOCHS: decode, POLICY: decode, MODELS: intake.switches_of},
        reader=MemoryReader(log),
        lookups=MemoryLookups(log),
        clock=clock_of(),
        post=events.append,
        epoch_delay_ms=50,
    )
    await states.load()
    put(log, EPOCHS, 0, route="r")
    asking = asyncio.create_task(states.ask())
    await asyncio.sleep(0.05)  # an absence cannot be observed
    asking.cancel()
    assert not any(isinstance(event, StatesKnownUntil) for event in events)


class FailingLookups(MemoryLookups):
    """A broker that is away at first."""

    fails = 2

    async def ends(self, partitions: Collection[At]) -> dict[At, int]:
        if self.fails:
            self.fails -= 1
            raise BrokerError("nobody answers")
        return await super().ends(partitions)


async def test_a_broker_that_is_away_while_it_asks_ends_nothing() -> None:
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    states = follower(log, events)
    await states.load()
    states._lookups = FailingLookups(log)
    asking = asyncio.create_task(states.ask())
    await until(lambda: _known(events) > 0)
    asking.cancel()


async def test_a_reader_that_is_behind_asks_for_no_more_ends_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps the oldest: of them one is reached first."""
    monkeypatch.setattr("streamserve.kafka.states._MOST_ASKED", 3)
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    states = follower(log, events)
    await states.load()
    put(log, EPOCHS, 0, route="r")
    asking = asyncio.create_task(states.ask())
    await until(lambda: len(states._asked) == 3)
    first = states._asked[0]
    await asyncio.sleep(0.05)  # an absence cannot be observed: give it the chance to be wrong
    assert (len(states._asked), states._asked[0]) == (3, first)
    following = asyncio.create_task(states.follow())
    await until(lambda: _known(events) > 0)
    for task in (asking, following):
        task.cancel()


@pytest.mark.parametrize("took_ms", [200, 2_000])
async def test_what_a_slow_answer_told_of_the_time_makes_nothing_known_early(took_ms: int) -> None:
    """The broker's time is then open within `took_ms`: what is claimed holds at the earliest of these times too."""
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    clock = clock_of(took_ms)  # the broker may be so far behind what it tells
    states = follower(log, events, clock)
    await states.load()
    asking = asyncio.create_task(states.ask())
    try:
        await until(lambda: _known(events) > 0)
        assert _known(events) <= clock.now_ms() - took_ms
    finally:
        asking.cancel()


async def test_before_anything_is_known_of_the_time_no_state_is() -> None:
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    states = follower(log, events, BrokerClock())
    await states.load()
    asking = asyncio.create_task(states.ask())
    await asyncio.sleep(0.05)  # an absence cannot be observed
    asking.cancel()
    assert _known(events) == 0


class AppendsMeanwhile(MemoryLookups):
    """While it tells a topic's ends, somebody appends to it."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        super().__init__(log)
        self._log, self._topic = log, topic

    async def ends(self, partitions: Collection[At]) -> dict[At, int]:
        found = await super().ends(partitions)
        if any(at.topic == self._topic for at in found):
            put(self._log, self._topic, 0, route="r")
            self._topic = ""
        return found


@pytest.mark.parametrize("topic", [EPOCHS, MODELS])
async def test_what_is_appended_while_it_loads_does_not_hold_up_what_it_knows(topic: str) -> None:
    """It is read with the rest and does not come again: a learner would have waited for it for ever."""
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2}), list[Event]()
    put(log, topic, 0, route="r")
    states = follower(log, events)
    states._lookups = AppendsMeanwhile(log, topic)
    await states.load()
    tasks = [asyncio.create_task(states.follow()), asyncio.create_task(states.ask())]
    try:
        await until(lambda: _known(events) > 0)
        assert len(epochs_in(events)) == (2 if topic == EPOCHS else 0)
    finally:
        for task in tasks:
            task.cancel()


# -- keyed states -----------------------------------------------------------------------------------------------------


def keyed(log: MemoryLog) -> KeyedStates:
    # No request can be open: what was appended in this very millisecond is not read again either.
    return KeyedStates(contexts_topic=CONTEXTS, decode=decode, scan=lambda: MemoryReader(log), keep_ms=-60_000)


def contexts_in(events: list[Event]) -> list[tuple[int, str, int]]:
    return [
        (event.partition, state.context, state.epoch)
        for event in events
        if isinstance(event, ContextsFetched)
        for state in event.states
    ]


def loaded_in(events: list[Event]) -> list[int]:
    return [event.partition for event in events if isinstance(event, ContextsFetched) and event.loaded]


async def test_keyed_states_of_an_assigned_partition_are_read_then_what_follows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamserve.kafka.states._LOOK_BACK", 0)
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2, CONTEXTS: 2}), list[Event]()
    for context in ("//x", "", "//a", "//b", "", "//a"):
        put(log, EPOCHS, 1, route="r", context=context)
    put(log, CONTEXTS, 1, route="r", context="//x", epoch=0, covers=1)
    put(log, CONTEXTS, 1, route="r", context="//a", epoch=2, covers=3)
    put(log, CONTEXTS, 0, route="r", context="//other", epoch=0, covers=1)
    states = follower(log, events, keyed=keyed(log))
    await states.load()
    task = asyncio.create_task(states.load_owned())
    try:
        states.own([1])
        await until(lambda: loaded_in(events) == [1])
        assert contexts_in(events) == [(1, "//x", 0), (1, "//a", 2), (1, "//b", 3), (1, "//a", 5)]
        assert isinstance(events[-1], ContextsFetched)
        states.disown([1])
        states.own([0])
        await until(lambda: loaded_in(events) == [1, 0])
        assert contexts_in(events)[4:] == [(0, "//other", 0)]
    finally:
        task.cancel()


async def test_a_partition_that_was_lost_meanwhile_is_not_said_to_be_read() -> None:
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2, CONTEXTS: 2}), list[Event]()
    put(log, CONTEXTS, 0, route="r", context="//a", epoch=0, covers=1)
    put(log, CONTEXTS, 1, route="r", context="//b", epoch=0, covers=1)
    states = follower(log, events, keyed=keyed(log))
    await states.load()
    states.own([0])
    states.disown([0])
    states.own([1, 0])
    task = asyncio.create_task(states.load_owned())
    try:
        await until(lambda: len(loaded_in(events)) == 2)
        assert loaded_in(events) == [1, 0] and contexts_in(events) == [(1, "//b", 0), (0, "//a", 0)]
    finally:
        task.cancel()


async def test_keyed_states_that_cannot_be_read_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamserve.kafka.states._RETRY_S", 0.001)
    log, events = MemoryLog({EPOCHS: 2, POLICY: 2, MODELS: 2, CONTEXTS: 2}), list[Event]()
    put(log, CONTEXTS, 0, route="r", context="//a", epoch=0, covers=1)
    failures = iter([True, True, False])

    def scan() -> MemoryReader:
        if next(failures):
            raise BrokerError("away")
        return MemoryReader(log)

    states = follower(log, events, keyed=KeyedStates(contexts_topic=CONTEXTS, decode=decode, scan=scan, keep_ms=0))
    await states.load()
    task = asyncio.create_task(states.load_owned())
    try:
        states.own([0])
        await until(lambda: loaded_in(events) == [0])
        assert contexts_in(events) == [(0, "//a", 0)]
    finally:
        task.cancel()
