"""After an outage: fresh requests first, the old ones get their records behind them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from streamserve.core.epochs import EpochTable
from streamserve.core.messages import Answers, Choice
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.static import Static
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.errors import BrokerError
from streamserve.kafka import intake
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.codecs.answers import encode_answers
from streamserve.kafka.codecs.inputs import input_codec
from streamserve.kafka.loop import Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.plan import LEAST_SKIPPED, Plan
from streamserve.kafka.ports import At, Chunk, Columns, Record
from streamserve.kafka.roles import topics_of
from streamserve.kafka.service import Clients, Role, RoleService
from streamserve.kafka.sweeper import Skipped
from streamserve.kafka.takeover import read_metadata
from streamserve.testing.log import MemoryGroupReader, MemoryLog, MemoryLookups, MemoryReader, MemoryWriter

WAIT_S = 30.0
TOPICS = topics_of("a")
OLD_S = 120.0
RULES = AppRules(
    routes=(Route(name="r", models=("m@1",), policy=Static(), combine="vote", deadline_ms=200),), max_deadline_ms=60_000
)
GROUP = "a.terminal"


class World:
    """A log, and aggregators on it one after the other."""

    def __init__(self, partitions: int = 2) -> None:
        self.behind_s = 0.0
        self.scans: type[MemoryReader] = MemoryReader
        self.sweeps: Callable[[MemoryLog], MemoryReader] = MemoryReader
        self.partitions = partitions
        names = [TOPICS.requests, TOPICS.answers, TOPICS.predictions, TOPICS.dlq]
        self.log = MemoryLog(dict.fromkeys(names, partitions), epoch=lambda: time.time() - self.behind_s)

    def send(self, n: int, partition: int, *, old: bool) -> None:
        self.behind_s = OLD_S if old else 0.0
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [1.0]}]}
        first = self.log.bounds(At(TOPICS.requests, partition))[1]
        values = [orjson.dumps({"id": f"{partition}-{first + i}", **body}) for i in range(n)]
        self.log.append(At(TOPICS.requests, partition), Columns.of([Record(value=value) for value in values]))
        self.behind_s = 0.0

    def answer(self, partition: int, offsets: list[int]) -> None:
        n = len(offsets)
        block = Answers(
            partition=np.full(n, partition),
            route="r",
            model="m@1",
            offsets=np.array(offsets),
            row_starts=np.arange(n + 1),
            labels=np.full(n, 7),
            probabilities=None,
            classes=None,
            missing=np.zeros(n, np.uint8),
            ids=[None] * n,
            choice=Choice(
                chosen=np.ones(n, np.uint64),
                probability=np.full(n, 1 << 32),
                epoch=np.full(n, -1),
                stale=np.zeros(n, np.bool_),
            ),
            queue_ms=np.zeros(n, np.int32),
            inference_ms=np.zeros(n, np.int32),
        )
        self.behind_s = OLD_S
        self.log.append(At(TOPICS.answers, partition), Columns.of([Record(value=v) for v in encode_answers(block)]))
        self.behind_s = 0.0

    def service(self) -> RoleService:
        epochs, codecs = EpochTable(RULES), {"oip": input_codec("oip")}
        role = Role(
            name="aggregate",
            stage=AggregatorStage(RULES, epochs, codecs),
            sweeps=AggregatorStage(RULES, epochs, codecs),
            driving_kind="requests",
            wiring=Wiring(
                driving=TOPICS.requests,
                events={TOPICS.requests: intake.requests_event},
                rejecting={TOPICS.answers: intake.answers_event},
            ),
            plan=Plan(
                group=GROUP,
                driving=TOPICS.requests,
                predictions=TOPICS.predictions,
                followed={"answers": TOPICS.answers},
                skips_after_ms=RULES.max_deadline_ms,
                commit_interval_ms=10,
            ),
            topics=TOPICS,
            encoders=intake.encoders(TOPICS),
        )
        clients = Clients(
            group=MemoryGroupReader(self.log, topic=TOPICS.requests, group=GROUP),
            followed=MemoryReader(self.log),
            scan=lambda: self.scans(self.log),
            sweep=lambda: self.sweeps(self.log),
            lookups=MemoryLookups(self.log),
            writer=MemoryWriter(self.log),
        )
        return RoleService(role, clients, clock=BrokerClock(), metrics=RoleMetrics("aggregate", "a"), metrics_port=None)

    def records(self) -> list[tuple[str, str, bool, int]]:
        """Ref, outcome, late and place in its partition of each terminal record."""
        found = []
        for stored in self.log.records(TOPICS.predictions).values():
            for record in stored:
                parameters = orjson.loads(record.value or b"")["parameters"]
                ref = (dict(record.headers)["ss-ref"] or b"").decode()
                found.append((ref, parameters["outcome"], bool(parameters.get("late")), record.offset))
        return found

    def sent(self) -> int:
        return sum(self.log.bounds(At(TOPICS.requests, number))[1] for number in range(self.partitions))

    def left(self) -> list[Skipped | None]:
        return [Skipped.read(read_metadata(c.metadata)) for c in self.log.commits(GROUP).values()]

    def committed(self) -> int:
        return sum(c.offset for c in self.log.commits(GROUP).values())


@asynccontextmanager
async def running(service: RoleService) -> AsyncIterator[None]:
    task = asyncio.create_task(service.run(lambda _port: None, None))
    try:
        yield
    finally:
        service.request_stop()
        await task


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.002)


def _outcomes(world: World) -> Counter[str]:
    return Counter(outcome for _, outcome, _, _ in world.records())


async def test_fresh_requests_come_first_and_the_old_get_their_records() -> None:
    world = World()
    for number in range(2):
        world.send(3 * LEAST_SKIPPED, number, old=True)
        world.send(5, number, old=False)
    world.answer(0, [1, 2, 3])
    async with running(world.service()):
        await until(lambda: len(world.records()) == world.sent())
        await until(lambda: world.committed() == world.sent() and not any(world.left()))
    assert max(Counter(ref for ref, *_ in world.records()).values()) == 1
    by_ref = {ref: (outcome, late, place) for ref, outcome, late, place in world.records()}
    fresh = [by_ref[f"{number}-{3 * LEAST_SKIPPED + i}"] for number in range(2) for i in range(5)]
    assert [outcome for outcome, _, _ in fresh] == ["expired"] * 10
    assert [by_ref[f"0-{i}"][:2] for i in (1, 2, 3)] == [("ok", True)] * 3
    assert _outcomes(world)["expired"] == world.sent() - 3


class EndsWithMarkers(MemoryReader):
    """Behind the records stand the markers of a transaction."""

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        found = await super().fetch(max_records=max_records, timeout_ms=timeout_ms)
        none = np.zeros(0, np.int64)
        return found + [
            Chunk(at=c.at, offsets=none, append_ms=none, keys=[], values=[], headers=[], next_offset=c.next_offset)
            for c in found
        ]


async def test_a_take_over_reads_on_where_only_markers_of_transactions_stand() -> None:
    world = World(partitions=1)
    world.scans = EndsWithMarkers
    world.send(LEAST_SKIPPED, 0, old=True)
    world.send(1, 0, old=False)
    async with running(world.service()):
        await until(lambda: len(world.records()) == world.sent())


class WithoutAborted(MemoryReader):
    """What `committed_only` leaves of a log in which every third record belongs to an aborted transaction."""

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        return [self._kept(c) for c in await super().fetch(max_records=max_records, timeout_ms=timeout_ms)]

    def _kept(self, chunk: Chunk) -> Chunk:
        if chunk.at.topic != TOPICS.requests:
            return chunk
        kept = np.flatnonzero(chunk.offsets % 3 != 0)
        return replace(
            chunk,
            offsets=chunk.offsets[kept],
            append_ms=chunk.append_ms[kept],
            keys=[chunk.keys[i] for i in kept],
            values=[chunk.values[i] for i in kept],
            headers=[chunk.headers[i] for i in kept],
        )


async def test_requests_of_aborted_transactions_get_no_record_from_the_sweep() -> None:
    world = World(partitions=1)
    world.sweeps = WithoutAborted
    world.send(LEAST_SKIPPED, 0, old=True)
    world.send(1, 0, old=False)
    committed = {f"0-{offset}" for offset in range(LEAST_SKIPPED) if offset % 3}
    async with running(world.service()):
        await until(lambda: len(world.records()) > len(committed) and not any(world.left()))
    assert {ref for ref, *_ in world.records()} == committed | {f"0-{LEAST_SKIPPED}"}


class FailsAtFirst(MemoryReader):
    failures = 2

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        if FailsAtFirst.failures:
            FailsAtFirst.failures -= 1
            raise BrokerError("nothing can be read")
        return await super().fetch(max_records=max_records, timeout_ms=timeout_ms)


async def test_a_sweep_that_cannot_read_goes_on_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process serves all the while."""
    monkeypatch.setattr("streamserve.kafka.sweeper._RETRY_S", 0.01)
    world = World(partitions=1)
    world.sweeps = FailsAtFirst
    world.send(LEAST_SKIPPED, 0, old=True)
    world.send(1, 0, old=False)
    async with running(world.service()):
        await until(lambda: len(world.records()) == world.sent())
    assert FailsAtFirst.failures == 0


@pytest.mark.slow
async def test_what_was_answered_before_is_not_answered_again() -> None:
    world = World(partitions=1)
    world.send(LEAST_SKIPPED, 0, old=True)
    async with running(world.service()):
        await until(lambda: len(world.records()) == LEAST_SKIPPED)
    before = len(world.records())
    world.log.commits(GROUP)
    world.log.group(GROUP, TOPICS.requests).commits.clear()  # the commits were lost
    world.send(LEAST_SKIPPED, 0, old=True)
    world.send(1, 0, old=False)
    async with running(world.service()):
        await until(lambda: len(world.records()) == world.sent())
    assert before == LEAST_SKIPPED
    assert max(Counter(ref for ref, *_ in world.records()).values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stops", [1, 3])
async def test_a_successor_goes_on_where_the_sweep_was(stops: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamserve.kafka import sweeper

    monkeypatch.setattr(sweeper, "RECORDS_PER_S", 2_000)
    world = World(partitions=1)
    total = 6 * LEAST_SKIPPED
    world.send(total, 0, old=True)
    world.send(1, 0, old=False)
    for stop in range(stops):
        async with running(world.service()):
            await until(lambda stop=stop: len(world.records()) > 500 * (stop + 1))
        assert any(world.left())
    async with running(world.service()):
        await until(lambda: len(world.records()) == total + 1)
        await until(lambda: not any(world.left()))
    assert max(Counter(ref for ref, *_ in world.records()).values()) == 1


@pytest.mark.slow
async def test_a_small_backlog_is_not_passed_over() -> None:
    world = World(partitions=1)
    world.send(LEAST_SKIPPED - 10, 0, old=True)
    world.send(1, 0, old=False)
    seen: list[Any] = []
    service = world.service()
    assert service.sweeper is not None
    service.sweeper.take = seen.append  # type: ignore[method-assign,assignment]
    async with running(service):
        await until(lambda: len(world.records()) == world.sent())
    assert not seen


@pytest.mark.slow
async def test_a_backlog_without_anything_fresh_is_not_passed_over() -> None:
    """Old is measured from the newest record, not by a clock that may be wrong."""
    world = World(partitions=1)
    world.send(2 * LEAST_SKIPPED, 0, old=True)
    service = world.service()
    async with running(service):
        await until(lambda: len(world.records()) == world.sent())
        assert service.sweeper is not None
        assert service.sweeper.requests_left == 0


def test_the_words_of_a_commit_are_read_back() -> None:
    left = Skipped(start=5, end=9, predictions=2, answers=3)
    assert Skipped.read({"skipped": [5, 9, 2, 3]}) == left
    assert Skipped.read({"skipped": [9, 9, 2, 3]}) is None
    assert Skipped.read({"skipped": "all"}) is None
    assert Skipped.read({}) is None
