"""A role as a running process, on the in-memory log."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import numpy as np
import pytest

from streamserve.core.bounds import Fill
from streamserve.core.effects import Effect, EmitSnapshot, Settle
from streamserve.core.events import Assigned, Drain, Event, Produced, RequestsFetched, Revoked
from streamserve.core.messages import I64, AnyArray, Outputs, Requests
from streamserve.core.records import StateRecord
from streamserve.errors import BrokerError, StreamserveError, TopicsDiffer
from streamserve.kafka import service as service_module
from streamserve.kafka.clock import SURE_MS, BrokerClock
from streamserve.kafka.intake import requests_event
from streamserve.kafka.loop import Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.once import ExactlyOnce
from streamserve.kafka.perform import Encoders, Topics
from streamserve.kafka.plan import Plan
from streamserve.kafka.ports import Ack, At, Chunk, Columns, Committed, Record, RecordColumns
from streamserve.kafka.service import Clients, Role, RoleService
from streamserve.kafka.tasks import ended
from streamserve.runtimes.base import Runtime
from streamserve.testing.log import MemoryGroupReader, MemoryLog, MemoryLookups, MemoryReader, MemoryWriter

TOPICS = Topics(
    requests="a.requests.v1",
    answers="a.answers.v1",
    predictions="a.predictions.v1",
    feedback="a.feedback.v1",
    outcomes="a.outcomes.v1",
    epochs="a.epochs.v1",
    policy="a.policy.v1",
    contexts="a.contexts.v1",
    dlq="a.dlq.v1",
)
ALL = (TOPICS.requests, TOPICS.answers, TOPICS.predictions, TOPICS.policy)
WAIT_S = 5.0


class CopyStage:
    """Writes one record for each request and settles it when that is acknowledged."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._open: dict[int, tuple[int, I64]] = {}
        self._skip: dict[int, set[int]] = {}
        self._tokens = 0
        self.fail_on = b""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.events.append(event)
        match event:
            case Assigned():
                for partition, resume in event.partitions.items():
                    answered = resume.answered
                    self._skip[partition] = set() if answered is None else set(answered.tolist())
            case RequestsFetched():
                return self._copy(event.requests)
            case Produced():
                partition, offsets = self._open.pop(event.token)
                return [Settle(partition=partition, offsets=offsets)]
            case Revoked():
                self._open.clear()
        return []

    def _copy(self, requests: Requests) -> list[Effect]:
        if self.fail_on and self.fail_on in requests.values:
            raise RuntimeError("a bug")
        effects: list[Effect] = []
        places = zip(requests.partition.tolist(), requests.offsets.tolist(), requests.values, strict=True)
        for partition, offset, value in places:
            if offset in self._skip[partition]:
                effects.append(Settle(partition=partition, offsets=np.array([offset])))
                continue
            self._tokens += 1
            self._open[self._tokens] = (partition, np.array([offset]))
            state = StateRecord(
                route=f"{partition}-{offset}",
                context=(value or b"").decode(),
                policy="",
                data={},
                includes={},
                partition=partition,
            )
            effects.append(EmitSnapshot(token=self._tokens, state=state))
        return effects

    def next_deadline_ms(self) -> int | None:
        return None

    def commit_metadata(self, partition: int) -> str:
        return '{"predictions": 0}'

    def fills(self) -> dict[str, Fill]:
        return {}

    takes_more = True

    @property
    def idle(self) -> bool:
        return not self._open


def never(_message: object) -> Record:
    raise AssertionError("not used here")


def columns_never(_message: object) -> Columns:
    raise AssertionError("not used here")


ENCODERS = Encoders(
    answers=columns_never,
    predictions=columns_never,
    dead_letters=columns_never,
    outcome=never,
    state=never,
    forward=never,
    forgotten=lambda route, context: Record(value=None, key=f"{route}/{context}".encode()),
    snapshot=lambda state: Record(value=state.context.encode(), headers=(("ss-ref", state.route.encode()),)),
)


def service_on(
    log: MemoryLog,
    stage: CopyStage,
    lease_ms: int = 6_000,
    lookups: MemoryLookups | None = None,
    reader: type[MemoryGroupReader] = MemoryGroupReader,
    runtimes: Mapping[str, Runtime] | None = None,
    clock: BrokerClock | None = None,
    asks_time: At | None = None,
    partitions: int | None = None,
    once: ExactlyOnce | None = None,
) -> tuple[RoleService, MemoryWriter, MemoryGroupReader]:
    group = reader(log, topic=TOPICS.requests, group="a.terminal")
    writer = MemoryWriter(log)
    role = Role(
        name="copy",
        stage=stage,
        driving_kind="requests",
        wiring=Wiring(driving=TOPICS.requests, events={TOPICS.requests: requests_event}),
        plan=Plan(
            group="a.terminal",
            driving=TOPICS.requests,
            predictions=TOPICS.policy,
            commit_interval_ms=10,
            lease_ms=lease_ms,
            partitions=partitions,
        ),
        topics=TOPICS,
        encoders=ENCODERS,
        runtimes=runtimes,
        asks_time=asks_time,
    )
    clients = Clients(
        group=group,
        followed=None,
        scan=lambda: MemoryReader(log),
        sweep=lambda: MemoryReader(log),
        lookups=lookups or MemoryLookups(log),
        writer=writer,
        once=once,
    )
    service = RoleService(role, clients, clock=clock or BrokerClock(), metrics=RoleMetrics("copy", "a"))
    return service, writer, group


@asynccontextmanager
async def running(service: RoleService) -> AsyncIterator[asyncio.Task[None]]:
    serving = asyncio.Event()
    task = asyncio.create_task(service.run(lambda _port: serving.set(), None))
    try:
        await asyncio.wait([task, asyncio.create_task(serving.wait())], return_when=asyncio.FIRST_COMPLETED)
        yield task
    finally:
        service.request_stop()
        await asyncio.wait([task])


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.001)


def put(log: MemoryLog, partition: int, *values: bytes) -> None:
    log.append(At(TOPICS.requests, partition), Columns.of([Record(value=value) for value in values]))


def written(log: MemoryLog) -> list[bytes | None]:
    return [record.value for records in log.records(TOPICS.policy).values() for record in records]


def committed(log: MemoryLog) -> dict[int, int]:
    return {at.partition: c.offset for at, c in log.commits("a.terminal").items()}


async def test_requests_are_answered_and_committed_after_their_acknowledgement() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 2))
    service, writer, _ = service_on(log, CopyStage())
    async with running(service):
        writer.hold()
        put(log, 0, b"x", b"y")
        put(log, 1, b"z")
        await until(lambda: len(written(log)) == 3)
        assert committed(log).get(0, 0) == 0
        writer.release()
        await until(lambda: committed(log) == {0: 2, 1: 1})
        await until(lambda: service.not_ready() == [])


async def test_a_partition_that_the_app_has_not_declared_stops_the_process_in_words() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 2))
    service, _, _ = service_on(log, CopyStage(), partitions=1)
    put(log, 1, b"x")
    async with running(service) as task:
        with pytest.raises(
            TopicsDiffer, match=r"has 2 partitions or more by now, declared are 1; .*\[app\] partitions"
        ):
            await asyncio.wait_for(asyncio.shield(task), WAIT_S)
    assert not written(log)


async def test_drain_finishes_what_is_open_and_commits() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    stage = CopyStage()
    service, writer, _ = service_on(log, stage)
    async with running(service) as task:
        writer.hold()
        put(log, 0, b"x")
        await until(lambda: len(written(log)) == 1)
        service.request_stop()
        await until(lambda: any(isinstance(event, Drain) for event in stage.events))
        assert not task.done()
        writer.release()
        await asyncio.wait_for(task, WAIT_S)
    assert committed(log) == {0: 1}


class SwallowingReader(MemoryGroupReader):
    """Returns where it is cancelled, as a `wait_for` does whose end the cancellation meets; so many times."""

    swallows = 2  # that of the drain, and one more

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        try:
            return await super().fetch(max_records=max_records, timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            if not self.swallows:
                raise
            self.swallows -= 1
            return []


async def test_a_part_that_swallows_its_cancellation_has_ended_when_the_process_has() -> None:
    service, _, _ = service_on(MemoryLog(dict.fromkeys(ALL, 1)), CopyStage(), reader=SwallowingReader)
    before = asyncio.all_tasks()
    async with running(service) as task:
        (part,) = (part for part in asyncio.all_tasks() - before - {task} if part.get_name() == "fetch")
    has_ended = part.done()
    await ended(part)
    assert has_ended


async def test_a_part_that_never_ends_is_named_and_holds_up_no_stop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_END_S", 0.1)
    service, _, group = service_on(MemoryLog(dict.fromkeys(ALL, 1)), CopyStage(), reader=SwallowingReader)
    assert isinstance(group, SwallowingReader)
    group.swallows = 1_000
    before = asyncio.all_tasks()
    async with asyncio.timeout(WAIT_S), running(service) as task:
        (part,) = (part for part in asyncio.all_tasks() - before - {task} if part.get_name() == "fetch")
    group.swallows = 0
    await ended(part)
    assert "copy: parts ['fetch'] of the process have not ended in " in caplog.text


async def test_a_new_owner_skips_what_was_answered_and_not_committed() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    put(log, 0, b"x", b"y", b"z")
    log.append(At(TOPICS.policy, 0), Columns.of([Record(value=b"y", headers=(("ss-ref", b"0-1"),))]))
    service, _, _ = service_on(log, CopyStage())
    async with running(service):
        await until(lambda: committed(log) == {0: 3})
    assert sorted(v or b"" for v in written(log)) == [b"x", b"y", b"z"]


async def test_a_rebalance_hands_over_without_gap_or_double() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 4))
    first, _, _ = service_on(log, CopyStage())
    async with running(first):
        for partition in range(4):
            put(log, partition, *(b"%d-%d" % (partition, i) for i in range(20)))
        second, _, _ = service_on(log, CopyStage())
        async with running(second):
            for partition in range(4):
                put(log, partition, *(b"%d-%d" % (partition, i) for i in range(20, 40)))
            await until(lambda: committed(log) == dict.fromkeys(range(4), 40))
            assert len(first.loop.ledgers) == 2
    assert sorted(v or b"" for v in written(log)) == sorted(b"%d-%d" % (p, i) for p in range(4) for i in range(40))


async def test_a_bug_in_the_stage_stops_the_process_with_its_name() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    stage = CopyStage()
    stage.fail_on = b"bad"
    service, _, _ = service_on(log, stage)
    async with running(service) as task:
        put(log, 0, b"bad")
        await asyncio.wait([task], timeout=WAIT_S)
        with pytest.raises(StreamserveError, match=r"part 'loop' died .*a bug"):
            task.result()


class BrokenLookups(MemoryLookups):
    """Look-ups with a bug, from some moment on."""

    broken = False
    error: BaseException = RuntimeError("a bug")

    async def committed(self, group: str, partitions: Collection[At]) -> dict[At, Committed]:
        if self.broken:
            raise self.error
        return await super().committed(group, partitions)


async def test_a_take_over_that_dies_stops_the_process_with_its_name() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 2))
    lookups = BrokenLookups(log)
    lookups.broken = True
    service, _, _ = service_on(log, CopyStage(), lookups=lookups)
    async with running(service) as task:
        await asyncio.wait([task], timeout=WAIT_S)
        with pytest.raises(StreamserveError, match=r"part 'take over' died .*a bug"):
            task.result()


async def test_a_take_over_in_which_something_was_cancelled_is_not_taken_for_one_that_we_ended() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 2))
    lookups = BrokenLookups(log)
    lookups.broken, lookups.error = True, asyncio.CancelledError()
    service, _, _ = service_on(log, CopyStage(), lookups=lookups)
    async with running(service) as task:
        await asyncio.wait([task], timeout=WAIT_S)
        with pytest.raises(StreamserveError, match="a take-over was ended by something that was cancelled in it"):
            task.result()


async def test_a_later_take_over_that_dies_stops_the_process_too() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 2))
    lookups = BrokenLookups(log)
    first, _, _ = service_on(log, CopyStage(), lookups=lookups)
    async with running(first) as task:
        await until(lambda: first.not_ready() == [])
        lookups.broken = True
        second, _, _ = service_on(log, CopyStage())
        async with running(second):
            await asyncio.wait([task], timeout=WAIT_S)
            with pytest.raises(StreamserveError, match=r"part 'take over' died .*a bug"):
                task.result()
            assert "part 'take over' has ended" in first.troubles()
            put(log, 0, b"x")
            put(log, 1, b"y")
            await until(lambda: committed(log) == {0: 1, 1: 1})


async def test_offsets_below_the_start_of_the_log_begin_at_its_start() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    put(log, 0, b"a", b"b", b"c", b"d")
    log.delete_before(At(TOPICS.requests, 0), 2)
    service, _, _ = service_on(log, CopyStage())
    async with running(service):
        await until(lambda: committed(log) == {0: 4})
    assert written(log) == [b"c", b"d"]


@pytest.mark.slow
async def test_a_member_that_was_thrown_out_writes_nothing_once_its_lease_is_over() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    stage = CopyStage()
    service, _, group = service_on(log, stage, lease_ms=100)
    async with running(service):
        put(log, 0, b"x")
        await until(lambda: committed(log) == {0: 1})
        group.vanish()
        await until(lambda: not service.ownership.holds_lease())
        put(log, 0, b"y")
        await until(lambda: service.loop.queued_records == 1)
        await asyncio.sleep(0.05)  # an absence cannot be observed: give it the chance to be wrong
        assert written(log) == [b"x"]
        await group.start(assigned=service.ownership.assigned, revoked=service.ownership.revoked)
        await until(lambda: committed(log) == {0: 2})
    assert written(log) == [b"x", b"y"]


class SlowLookups(MemoryLookups):
    """Answers after a while, as a process that was stopped meanwhile sees it."""

    async def committed(self, group: str, partitions: Collection[At]) -> dict[At, Committed]:
        await asyncio.sleep(0.2)
        return await super().committed(group, partitions)


class LeaseNotes(CopyStage):
    """Notes whether its process held its lease when it was given a partition."""

    holds: Callable[[], bool] = lambda: True

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, Assigned):
            self.held = type(self).holds()
        return super().handle(event, now_ms)


async def test_a_take_over_that_lasts_longer_than_the_lease_does_not_renew_it() -> None:
    """Only the group can tell that the partitions are still ours."""
    log = MemoryLog(dict.fromkeys(ALL, 1))
    stage = LeaseNotes()
    service, _, _ = service_on(log, stage, lease_ms=100, lookups=SlowLookups(log))
    LeaseNotes.holds = service.ownership.holds_lease
    async with running(service):
        put(log, 0, b"x")
        await until(lambda: committed(log) == {0: 1})  # its first commit renewed it
    assert not stage.held


class SlowCommits(MemoryGroupReader):
    """Its commits are answered at once; of all but the first the answer lies in the socket for long."""

    quick = 1

    async def commit(self, offsets: Mapping[At, Committed]) -> bool:
        taken = await super().commit(offsets)
        if not self.quick:
            await asyncio.sleep(0.2)
        self.quick = 0
        return taken


async def test_the_lease_counts_from_when_a_commit_was_sent() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, _, _ = service_on(log, CopyStage(), lease_ms=150, reader=SlowCommits)
    async with running(service):
        put(log, 0, b"x")
        await until(lambda: committed(log) == {0: 1})
        await asyncio.sleep(0.25)  # the answer has been read; the group was last known to hold us before it was sent
        assert not service.ownership.holds_lease()


async def test_a_commit_that_is_held_back_does_not_cost_the_lease() -> None:
    """What holds it back is a dead letter on its way, which would not be sent without the lease."""
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, _, _ = service_on(log, CopyStage(), lease_ms=200)
    async with running(service):
        put(log, 0, b"x")
        await until(lambda: committed(log) == {0: 1})
        service.ownership.holds_commit = lambda _number: True
        put(log, 0, b"y")
        await until(lambda: written(log) == [b"x", b"y"])
        await asyncio.sleep(0.4)  # two leases: an absence cannot be observed
        assert service.ownership.holds_lease()
        assert committed(log) == {0: 1}
        service.ownership.holds_commit = lambda _number: False
        await until(lambda: committed(log) == {0: 2})


async def test_who_takes_a_partition_again_waits_for_what_it_wrote_as_an_earlier_owner() -> None:
    """Else it would look for it in the log too early, and write it again."""
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, writer, _ = service_on(log, CopyStage())
    async with running(service):
        writer.hold()
        sent = writer.send(At(TOPICS.policy, 0), Columns.of([Record(value=b"late")]))
        await service.ownership.assigned(frozenset({At(TOPICS.requests, 0)}))
        await asyncio.sleep(0.05)  # an absence cannot be observed: give it the chance to be wrong
        assert 0 not in service.loop.ledgers
        writer.release()
        await sent
        await until(lambda: 0 in service.loop.ledgers)


async def test_a_member_whose_lease_is_over_does_not_even_drain() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    stage = CopyStage()
    service, _, group = service_on(log, stage, lease_ms=100)
    async with running(service):
        put(log, 0, b"x")
        await until(lambda: committed(log) == {0: 1})
        group.vanish()
        await until(lambda: not service.ownership.holds_lease())
        service.loop.begin_drain()
        await asyncio.sleep(0.05)  # an absence cannot be observed: give it the chance to be wrong
        assert not any(isinstance(event, Drain) for event in stage.events)


async def test_who_may_not_act_is_not_ready_and_says_why() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, _, group = service_on(log, CopyStage(), lease_ms=40)
    async with running(service):
        await until(lambda: not service.not_ready())
        group.vanish()
        await until(lambda: any("not been heard from" in words for words in service.not_ready()))


class MuteReader(MemoryGroupReader):
    """Its group gives it partitions and answers no commit."""

    mute = True

    async def commit(self, offsets: Mapping[At, Committed]) -> bool:
        if self.mute:
            raise BrokerError("no answer")
        return await super().commit(offsets)


async def test_an_assignment_is_no_word_of_the_group_only_a_commit_is() -> None:
    """It may have lain in a socket while the process stood still, and the partitions be another's by now."""
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, _, group = service_on(log, CopyStage(), reader=MuteReader)
    put(log, 0, b"x")
    async with running(service):
        await until(lambda: bool(service.loop.ledgers))
        assert not service.ownership.holds_lease()
        assert not written(log)
        assert isinstance(group, MuteReader)
        group.mute = False
        await until(lambda: written(log) == [b"x"])


class StuckReader(MemoryGroupReader):
    """Its fetch never returns, however long it was to wait."""

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        return await asyncio.Event().wait() and []


async def test_a_process_whose_fetch_never_returns_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamserve.kafka.service.LIVENESS_MS", 200)
    service, _, _ = service_on(MemoryLog(dict.fromkeys(ALL, 1)), CopyStage(), reader=StuckReader)
    monkeypatch.setattr("streamserve.kafka.service._PULSE_S", 0.01)
    async with running(service):
        await until(lambda: any("a fetch has not returned" in words for words in service.troubles()))
        assert not any("has not turned" in words for words in service.troubles())


async def test_a_process_that_waits_for_room_to_fetch_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    stage = CopyStage()
    service, _, _ = service_on(log, stage)
    async with running(service):
        monkeypatch.setattr(stage, "takes_more", False)
        put(log, 0, b"x")
        await until(lambda: not service.loop.longest_fetch_ms())
        monkeypatch.setattr("streamserve.kafka.service.LIVENESS_MS", 1)
        assert not any("a fetch has not returned" in words for words in service.troubles())


async def test_a_process_does_all_but_join_until_it_is_its_turn() -> None:
    log, turn = MemoryLog(dict.fromkeys(ALL, 1)), asyncio.Event()
    put(log, 0, b"a")
    service, _, _ = service_on(log, CopyStage())

    async def its_turn() -> None:
        await turn.wait()

    service.may_join = its_turn
    task = asyncio.create_task(service.run(lambda _port: None, None))
    await until(lambda: service.not_ready() == ["the group is not joined yet"])
    assert not log.group("a.terminal", TOPICS.requests).members
    turn.set()
    await until(lambda: written(log) == [b"a"])
    service.request_stop()
    await task


async def never_its_turn() -> None:
    await asyncio.Event().wait()


async def test_a_process_that_waits_for_its_turn_stops_without_having_joined() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, _, _ = service_on(log, CopyStage())
    service.may_join = never_its_turn
    task = asyncio.create_task(service.run(lambda _port: None, None))
    await until(lambda: service.not_ready() == ["the group is not joined yet"])
    service.request_stop()
    await task
    assert not log.group("a.terminal", TOPICS.requests).members


async def test_a_part_that_dies_while_a_process_waits_for_its_turn_stops_it() -> None:
    service, _, _ = service_on(MemoryLog(dict.fromkeys(ALL, 1)), CopyStage())
    service.may_join = never_its_turn
    task = asyncio.create_task(service.run(lambda _port: None, None))
    await until(lambda: service.not_ready() == ["the group is not joined yet"])
    service._tasks["loop"].cancel()
    with pytest.raises(StreamserveError, match="part 'loop' died"):
        await task


async def test_a_process_knows_the_brokers_time_before_it_decides_anything() -> None:
    """Its machine's clock may be seconds off: every deadline would be."""
    behind_s = 20.0
    log = MemoryLog(dict.fromkeys((*ALL, "a.models.v1"), 1))
    clock = BrokerClock(epoch=lambda: time.time() - behind_s)
    service, _, _ = service_on(log, CopyStage(), clock=clock, asks_time=At("a.models.v1", 0))
    async with running(service):
        assert abs(clock.now_ms() - time.time() * 1000) < 1_000
    (asked,) = log.records("a.models.v1")[0]
    assert (asked.key, asked.value) == (b"clock", None)


async def test_an_answer_that_took_long_is_not_all_that_a_process_knows_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It leaves the time open within as much: what is decided by it would be off by that."""
    log = MemoryLog(dict.fromkeys((*ALL, "a.models.v1"), 1))
    clock = BrokerClock()
    service, writer, _ = service_on(log, CopyStage(), clock=clock, asks_time=At("a.models.v1", 0))
    at_once = writer.send
    slow_ms = [120.0, 80.0]

    def send(at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        future = at_once(at, records)
        if not slow_ms:
            return future
        late: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(slow_ms.pop(0) / 1000, late.set_result, future.result())
        return late

    monkeypatch.setattr(writer, "send", send)
    async with running(service):
        assert clock.bound_ms <= SURE_MS
    assert len(log.records("a.models.v1")[0]) == 3


async def test_a_model_that_is_not_warm_keeps_the_process_from_being_ready() -> None:
    service, _, _ = service_on(MemoryLog(dict.fromkeys(ALL, 1)), CopyStage())
    assert "models are not warm yet" in service.not_ready()
    assert "the group is not joined yet" in service.not_ready()


class Hogging:
    """A model whose call keeps the interpreter's lock."""

    def predict(self, batch: AnyArray) -> Outputs:
        ctypes.PyDLL(None).usleep(700_000)
        return Outputs(labels=batch)

    def close(self) -> None:
        pass


class HeldReader(MemoryGroupReader):
    """Its commits wait while `may_commit` is not set."""

    def __init__(self, log: MemoryLog, *, topic: str, group: str) -> None:
        super().__init__(log, topic=topic, group=group)
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def commit(self, offsets: Mapping[At, Committed]) -> bool:
        await self.may_commit.wait()
        return await super().commit(offsets)


async def test_a_loop_that_was_late_sends_nothing_until_its_group_is_heard_and_names_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    runtimes = {"hog@1": Hogging(), "idle@1": Hogging()}
    service, _, group = service_on(log, CopyStage(), lease_ms=1_500, reader=HeldReader, runtimes=runtimes)
    assert isinstance(group, HeldReader)
    assert service.runner is not None
    async with running(service):
        put(log, 0, b"x")
        await until(lambda: committed(log) == {0: 1})
        group.may_commit.clear()
        service.runner.submit(1, "hog@1", np.ones((1, 1)))
        await until(lambda: "the loop could not run for" in caplog.text)
        put(log, 0, b"y")
        await until(lambda: service.loop.queued_records == 1)
        assert not service.ownership.holds_lease()
        assert written(log) == [b"x"]
        group.may_commit.set()
        await until(lambda: committed(log) == {0: 2})
    assert written(log) == [b"x", b"y"]
    assert "called in a thread meanwhile: hog@1." in caplog.text
    assert 'to isolate it set [models.hog] isolation = "process"' in caplog.text
    assert 'streamserve_events_total{label="hog@1",what="loop_late"} 1.0' in service.metrics.page().decode()


async def test_a_commit_asked_for_before_the_loop_was_late_does_not_count() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, _, group = service_on(log, CopyStage(), lease_ms=1_500, reader=HeldReader, runtimes={"hog@1": Hogging()})
    assert isinstance(group, HeldReader)
    assert service.runner is not None
    async with running(service):
        group.may_commit.clear()
        asking = asyncio.create_task(service.ownership.commit([0], also_unchanged=True))
        await asyncio.sleep(0)  # it has asked
        service.runner.submit(1, "hog@1", np.ones((1, 1)))
        await until(lambda: not service.ownership.holds_lease())
        group.may_commit.set()
        await asking
        assert not service.ownership.holds_lease()
        await until(service.ownership.holds_lease)
