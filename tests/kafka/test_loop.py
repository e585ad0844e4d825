"""The loop's own laws: order, deadlines after what was fetched, a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from streamserve.core.bounds import Fill
from streamserve.core.effects import Count, Effect
from streamserve.core.events import Event, Produced, RequestsFetched, Resume, Revoked, Tick
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.intake import requests_event
from streamserve.kafka.loop import Limits, StageLoop, Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.ports import At, Chunk

TOPIC = "t"
WAIT_S = 5.0


class Recorder:
    """Notes what it is told; is due once, at the append time of a `Produced`."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.due_ms: int | None = None

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.seen.append(event)
        if isinstance(event, Produced) and event.append_ms > 0:
            self.due_ms = event.append_ms
        if isinstance(event, Tick) and self.due_ms is not None and now_ms >= self.due_ms:
            self.due_ms = None
        return [Count(what="seen", label=type(event).__name__, n=1)]

    def next_deadline_ms(self) -> int | None:
        return self.due_ms

    def commit_metadata(self, partition: int) -> str:
        return ""

    def fills(self) -> dict[str, Fill]:
        return {}

    takes_more = True

    @property
    def idle(self) -> bool:
        return True

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.seen]


class Fetches:
    """A source that gives what it is told to, and counts how often it is asked."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[Chunk] = asyncio.Queue()
        self.given = 0

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        chunk = await self.chunks.get()
        self.given += 1
        return [chunk]


def chunk(start: int, n: int, partition: int = 0) -> Chunk:
    return Chunk(
        at=At(TOPIC, partition),
        offsets=np.arange(start, start + n),
        append_ms=np.zeros(n, np.int64),
        keys=[None] * n,
        values=[b"x"] * n,
        headers=[()] * n,
        next_offset=start + n,
    )


def loop_of(stage: Recorder, limits: Limits | None = None, wiring: Wiring | None = None) -> StageLoop:
    loop = StageLoop(
        stage=stage,
        wiring=wiring or Wiring(driving=TOPIC, events={TOPIC: requests_event}),
        clock=BrokerClock(),
        metrics=RoleMetrics("test", "a"),
        limits=limits or Limits(),
    )
    loop.performs(lambda _effect: None, lambda _letters: None)
    return loop


@asynccontextmanager
async def turning(loop: StageLoop, *sources: Fetches) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(loop.drain(source)) for source in sources]
    run = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        loop.stop()
        for task in tasks:
            task.cancel()
        await asyncio.wait([run])
        run.result()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.001)


async def test_a_deadline_fires_after_everything_that_was_fetched_before() -> None:
    stage = Recorder()
    loop = loop_of(stage, Limits(turn_ms=0))
    loop.begin({0: Resume(position=0)})
    source = Fetches()
    loop.post(Produced(token=0, append_ms=1))
    for i in range(200):
        source.chunks.put_nowait(chunk(i * 10, 10))
    drain = asyncio.create_task(loop.drain(source))
    await until(lambda: source.given == 200)
    async with turning(loop):
        await until(lambda: "Tick" in stage.kinds())
    drain.cancel()
    kinds = stage.kinds()
    assert kinds.index("Tick") == kinds.count("RequestsFetched") + 2 == 202


async def test_a_deadline_fires_while_records_never_stop_coming() -> None:
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage, Limits(turn_ms=0))
    loop.begin({0: Resume(position=0)})

    async def flood() -> None:
        start = 0
        while True:
            for _ in range(3):
                source.chunks.put_nowait(chunk(start, 50))
                start += 50
            await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    async with turning(loop, source):
        await until(lambda: len(stage.seen) > 20)
        loop.post(Produced(token=0, append_ms=1))
        await until(lambda: "Tick" in stage.kinds())
    flooding.cancel()


async def test_a_quiet_process_wakes_at_the_deadline_and_not_before() -> None:
    stage = Recorder()
    loop = loop_of(stage)
    clock = BrokerClock()
    async with turning(loop):
        due_ms = clock.now_ms() + 60
        loop.post(Produced(token=0, append_ms=due_ms))
        await until(lambda: "Tick" in stage.kinds())
        assert clock.now_ms() >= due_ms
    assert stage.kinds() == ["Produced", "Tick"]


async def test_fetching_stops_above_the_bound_and_goes_on_below() -> None:
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage, Limits(most_records=100))
    loop.begin({0: Resume(position=0)})
    loop.may_act = lambda: False
    for i in range(20):
        source.chunks.put_nowait(chunk(i * 20, 20))
    async with turning(loop, source):
        await until(lambda: loop.queued_records == 120)
        await asyncio.sleep(0.02)  # an absence cannot be observed: give it the chance to be wrong
        assert source.given == 6
        loop.may_act = lambda: True
        await until(lambda: source.given == 20 and loop.queued_records == 0)


async def test_fetching_stops_at_the_bound_of_bytes_too() -> None:
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage, Limits(most_bytes=100))
    loop.begin({0: Resume(position=0)})
    loop.may_act = lambda: False
    for i in range(20):
        source.chunks.put_nowait(chunk(i * 20, 20))
    async with turning(loop, source):
        await until(lambda: loop.fills()["fetched_bytes"].used == 120)
        await asyncio.sleep(0.02)  # an absence cannot be observed: give it the chance to be wrong
        assert source.given == 6
        loop.may_act = lambda: True
        await until(lambda: source.given == 20 and loop.fills()["fetched_bytes"].used == 0)


def test_keys_and_headers_take_room_too() -> None:
    """A client may put everything there: 20,000 records of 4 MiB would be no byte."""
    one = replace(
        chunk(0, 2), keys=[b"k" * 30, None], values=[None, b"vv"], headers=[(("h", b"x" * 9), ("n", None)), ()]
    )
    assert one.n_bytes == 30 + 2 + 1 + 9 + 1


async def test_nothing_is_fetched_while_too_much_is_unacknowledged() -> None:
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage, Limits(most_unacknowledged=50))
    loop.begin({0: Resume(position=0)})
    unacknowledged = 50
    loop.unacknowledged = lambda: unacknowledged
    source.chunks.put_nowait(chunk(0, 20))
    async with turning(loop, source):
        await until(lambda: loop.open_requests == 20)
        for start in range(20, 140, 20):  # one fetch was under way
            source.chunks.put_nowait(chunk(start, 20))
        await asyncio.sleep(0.02)  # an absence cannot be observed: give it the chance to be wrong
        assert source.given <= 2
        assert loop.fills()["unacknowledged_records"] == (50, 50)
        unacknowledged = 49
        loop.wake()
        await until(lambda: source.given == 7)


async def test_a_stage_that_takes_no_more_holds_the_driving_source_alone() -> None:
    stage, source, other = Recorder(), Fetches(), Fetches()
    loop = loop_of(stage)
    loop.begin({0: Resume(position=0)})
    tasks = [asyncio.create_task(loop.drain(source, driving=True)), asyncio.create_task(loop.drain(other))]
    async with turning(loop):
        stage.takes_more = False
        source.chunks.put_nowait(chunk(0, 20))
        await until(lambda: loop.open_requests == 20)
        for start in range(20, 140, 20):  # one fetch was under way
            source.chunks.put_nowait(chunk(start, 20))
            other.chunks.put_nowait(chunk(start, 20, partition=9))
        await until(lambda: other.given == 6)
        await asyncio.sleep(0.02)  # an absence cannot be observed: give it the chance to be wrong
        assert source.given <= 2
        stage.takes_more = True
        loop.wake()
        await until(lambda: source.given == 7)
    for task in tasks:
        task.cancel()


async def test_what_is_queued_of_a_lost_partition_is_forgotten() -> None:
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage)
    loop.begin({0: Resume(position=0), 1: Resume(position=0)})
    source.chunks.put_nowait(chunk(0, 5, partition=0))
    source.chunks.put_nowait(chunk(0, 5, partition=1))
    drain = asyncio.create_task(loop.drain(source))
    await until(lambda: loop.queued_records == 10)
    loop.end([0])
    assert loop.queued_records == 5
    async with turning(loop):
        await until(lambda: loop.queued_records == 0)
    drain.cancel()
    requests = [event.requests.partition.tolist() for event in stage.seen if isinstance(event, RequestsFetched)]
    assert requests == [[1] * 5]
    assert any(isinstance(event, Revoked) for event in stage.seen)


async def test_what_a_turn_brought_is_decided_together() -> None:
    stage = Recorder()
    loop = loop_of(stage)
    loop.begin({0: Resume(position=0), 1: Resume(position=0)})
    source = Fetches()
    for start, partition in ((0, 0), (0, 1), (5, 0)):
        source.chunks.put_nowait(chunk(start, 5, partition=partition))
    drain = asyncio.create_task(loop.drain(source))
    await until(lambda: loop.queued_records == 15)
    async with turning(loop):
        await until(lambda: loop.queued_records == 0)
    drain.cancel()
    (event,) = [event for event in stage.seen if isinstance(event, RequestsFetched)]
    assert event.requests.partition.tolist() == [0] * 5 + [1] * 5 + [0] * 5
    assert event.requests.offsets.tolist() == [*range(5), *range(5), *range(5, 10)]


async def test_events_keep_their_order() -> None:
    stage = Recorder()
    loop = loop_of(stage)
    for token in range(50):
        loop.post(Produced(token=token))
    async with turning(loop):
        await until(lambda: len(stage.seen) == 50)
    assert [event.token for event in stage.seen if isinstance(event, Produced)] == list(range(50))


async def test_what_may_wait_is_handled_with_what_comes_next_or_alone_after_a_little() -> None:
    stage = Recorder()
    loop = loop_of(stage)
    async with turning(loop):
        loop.post_quietly(Produced(token=1))
        loop.post(Produced(token=2))
        await until(lambda: len(stage.seen) == 2)
        loop.post_quietly(Produced(token=3))
        await until(lambda: len(stage.seen) == 3)
    assert [event.token for event in stage.seen if isinstance(event, Produced)] == [1, 2, 3]


QUIET = Wiring(driving=TOPIC, events={TOPIC: requests_event}, quiet=frozenset({TOPIC}))


async def test_records_of_a_quiet_topic_wait_for_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamserve.kafka.loop._QUIET_WAIT_S", 600.0)
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage, wiring=QUIET)
    loop.begin({0: Resume(position=0)})
    async with turning(loop, source):
        loop.post(Produced(token=0))
        await until(lambda: "Produced" in stage.kinds())  # nothing is left that wakes it
        source.chunks.put_nowait(chunk(0, 5))
        await until(lambda: loop.queued_records == 5)
        loop.post(Produced(token=1))
        await until(lambda: stage.kinds()[-1] == "Produced" and "RequestsFetched" in stage.kinds())
    assert stage.kinds()[-2:] == ["RequestsFetched", "Produced"]


async def test_records_of_a_quiet_topic_are_handled_alone_after_a_little() -> None:
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage, wiring=QUIET)
    loop.begin({0: Resume(position=0)})
    async with turning(loop, source):
        source.chunks.put_nowait(chunk(0, 5))
        await until(lambda: "RequestsFetched" in stage.kinds())


async def test_records_below_the_position_are_shown_and_not_opened() -> None:
    stage, source = Recorder(), Fetches()
    loop = loop_of(stage)
    loop.begin({0: Resume(position=7)})
    source.chunks.put_nowait(chunk(0, 10))
    async with turning(loop, source):
        await until(lambda: "RequestsFetched" in stage.kinds())
    assert len(loop.ledgers[0]) == 3
    assert loop.ledgers[0].committable() == 7
