"""What a role does behind its fences: it looks at what stands in the log, leaves that out, and never sends by guess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest

from streamserve.core.effects import EmitDeadLetters, EmitOutcomes, EmitPredictions
from streamserve.core.events import Assigned, Event, Produced, ProduceFailed, Revoked
from streamserve.core.ledger import Ledger
from streamserve.core.messages import DeadLetters
from streamserve.core.reasons import Outcome
from streamserve.core.records import Decision, OutcomeRecord
from streamserve.kafka import intake, ownership
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.once import CLOCK_MARGIN_MS, ExactlyOnce, Outputs
from streamserve.kafka.perform import Performer
from streamserve.kafka.ports import Ack, At, Columns, Record, RecordColumns
from streamserve.kafka.service import RoleService
from streamserve.testing.log import MemoryGroupReader, MemoryLog, MemoryLookups, MemoryReader, MemoryWriter
from tests.kafka.test_metrics import predictions
from tests.kafka.test_perform import KINDS, TOPICS
from tests.kafka.test_service import ALL, CopyStage, committed, put, running, service_on, until, written

MINUTE_MS = 60_000
OUTPUTS = Outputs(
    own={"predictions": None, "dlq": intake.letter_keys},
    spread={"outcomes": lambda chunk: intake.outcome_keys("feedback", chunk)},
    numbers=frozenset({1}),
)


class Lookups(MemoryLookups):
    async def since(self, times: Mapping[At, int]) -> dict[At, int]:
        found = {}
        for at, ms in times.items():
            later = [r.offset for r in self._log.records(at.topic)[at.partition] if r.append_ms >= ms]
            found[at] = later[0] if later else self._log.bounds(at)[1]
        return found


class Fences:
    """Fences on the log in memory; `broken` ones refuse."""

    def __init__(self, log: MemoryLog) -> None:
        self.writer, self.on_lost = MemoryWriter(log), None
        self.on_lost: Callable[[int, bool], None] | None
        self.taken: list[int] = []
        self.held: set[int] = set()
        self.broken: dict[int, Ack] = {}

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def refresh(self) -> None: ...

    async def take(self, numbers: Collection[int]) -> None:
        self.taken += numbers
        self.held |= set(numbers)

    def drop(self, numbers: Collection[int]) -> None:
        self.held -= set(numbers)

    def send(self, number: int, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        assert number in self.held
        if number not in self.broken:
            return self.writer.send(at, records)
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        future.set_result(self.broken[number])
        future.add_done_callback(lambda done: self.lose(number, done.result().shut_out))
        return future

    def lose(self, number: int, shut_out: bool) -> None:
        self.drop([number])
        if self.on_lost is not None:
            self.on_lost(number, shut_out)


class Time:
    def __init__(self) -> None:
        self.s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.s


class Case:
    """A performer behind fences, two partitions owned."""

    def __init__(self) -> None:
        self.time = Time()
        self.log = MemoryLog(dict.fromkeys(KINDS, 2), epoch=self.time)
        self.fences = Fences(self.log)
        self.once = ExactlyOnce(
            fences=self.fences,
            outputs=OUTPUTS,
            lookups=Lookups(self.log),
            scan_reader=lambda: MemoryReader(self.log),
            letter_topics=TOPICS.of,
        )
        self.fences.held = {0, 1}
        self.events: list[Event] = []
        self.ledgers = {0: Ledger(0), 1: Ledger(0)}
        self.performer = Performer(
            topics=TOPICS,
            encoders=intake.encoders(TOPICS),
            writer=MemoryWriter(self.log),
            runner=None,
            clock=BrokerClock(),
            metrics=RoleMetrics("worker", "a"),
            post=self.events.append,
            post_quietly=self.events.append,
            ledgers=self.ledgers,
            driving=("requests", MemoryGroupReader(self.log, topic="requests", group="g")),
            followed=None,
            once=self.once,
        )

    def put(self, topic: str, n: int, partition: int = 0) -> None:
        self.log.append(At(topic, partition), Columns.of([Record(value=b"x")] * n))

    async def answered(self, n: int) -> list[Event]:
        await until(lambda: len(self.events) >= n)
        return self.events

    def letters(self) -> list[int]:
        found = self.log.records("dlq")[0]
        return [int(dict(r.headers)["__connect.errors.offset"] or b"") for r in found]


def letters(*offsets: int, source: str = "requests", stage: str = "aggregator") -> DeadLetters:
    n = len(offsets)
    return DeadLetters(
        source=source,
        partition=0,
        offsets=np.array(offsets, np.int64),
        append_ms=np.zeros(n, np.int64),
        keys=[None] * n,
        values=[b"v"] * n,
        headers=[()] * n,
        reasons=["not_json"] * n,
        details=["bad"] * n,
        stage=stage,
    )


def outcome(offset: int) -> OutcomeRecord:
    decision = Decision(
        id="i",
        route="r",
        outcome="ok",
        epoch=-1,
        probability=1.0,
        off_epoch=False,
        chosen=("a@1",),
        label=[1],
        members={},
        rows=1,
    )
    return OutcomeRecord(
        to_partition=1, route="r", context="", ref=(0, offset), decision=decision, feedback=(0, offset), feedback_ms=0
    )


async def test_dead_letters_that_stand_in_the_log_are_not_written_again() -> None:
    case = Case()
    case.put("requests", 5)
    case.performer.perform(EmitDeadLetters(token=1, letters=letters(1, 3)))
    await case.answered(1)
    await case.once.look({At("requests", 0): 1}, {})
    case.performer.perform(EmitDeadLetters(token=2, letters=letters(1, 2, 3)))
    case.performer.perform(EmitDeadLetters(token=3, letters=letters(1)))
    events = await case.answered(3)
    assert {event.token for event in events if isinstance(event, Produced)} == {1, 2, 3}
    assert case.letters() == [1, 3, 2]
    case.performer.perform(EmitDeadLetters(token=4, letters=letters(1, stage="join")))  # somebody else's
    await case.answered(4)
    assert case.letters() == [1, 3, 2, 1]


async def test_rejected_records_that_are_dead_letters_already_are_only_settled() -> None:
    case = Case()
    case.put("requests", 3)
    case.performer.reject(letters(0))
    await until(lambda: case.performer.rejecting[0] == 0)
    await case.once.look({At("requests", 0): 0}, {})
    case.ledgers[0].opened(np.arange(3))
    case.performer.reject(letters(0, 1))
    await until(lambda: len(case.ledgers[0]) == 1)
    assert case.letters() == [0, 1]


async def test_outcomes_that_stand_in_the_log_are_not_written_again() -> None:
    case = Case()
    case.put("feedback", 5)
    case.performer.perform(EmitOutcomes(token=1, outcomes=(outcome(1), outcome(2))))
    await case.answered(1)
    await case.once.look({At("feedback", 0): 0}, {})
    case.performer.perform(EmitOutcomes(token=2, outcomes=(outcome(1), outcome(3))))
    case.performer.perform(EmitOutcomes(token=3, outcomes=(outcome(2),)))
    await case.answered(3)
    found = [intake.outcome_keys("feedback", chunk) for chunk in await everything(case.log, At("outcomes", 1))]
    assert [sorted(offset for _, _, offset, _ in keys) for keys in found] == [[1, 2, 3]]
    assert case.log.bounds(At("outcomes", 1)) == (0, 3)
    case.once.forget([0])
    case.fences.held.add(0)
    case.performer.perform(EmitOutcomes(token=4, outcomes=(outcome(1),)))
    await case.answered(4)
    assert case.log.bounds(At("outcomes", 1)) == (0, 4)


async def everything(log: MemoryLog, at: At) -> list[intake.Chunk]:
    reader = MemoryReader(log)
    reader.read({at: 0})
    return await reader.fetch(max_records=1_000, timeout_ms=0)


async def test_a_look_goes_back_to_when_the_oldest_unread_input_came_and_no_further() -> None:
    case = Case()
    case.performer.perform(EmitDeadLetters(token=1, letters=letters(7)))
    case.time.s += MINUTE_MS / 1000
    case.put("requests", 2)
    case.time.s -= (CLOCK_MARGIN_MS - 1) / 1000  # its leader's clock is behind
    case.performer.perform(EmitDeadLetters(token=2, letters=letters(1)))
    await case.answered(2)
    await case.once.look({At("requests", 0): 1}, {})
    assert case.once.new_letters(letters(1)) is None
    assert case.once.new_letters(letters(7)) is not None
    await case.once.look({At("requests", 0): 2}, {})  # all was read: nothing can be decided on again
    assert case.once.new_letters(letters(1)) is not None
    await case.once.look({At("requests", 0): 2}, {At("answers", 0): 0})
    assert case.once.new_letters(letters(1)) is not None
    case.put("answers", 1)
    await case.once.look({At("requests", 0): 2}, {At("answers", 0): 0})
    assert case.once.new_letters(letters(1)) is None


async def test_a_failure_behind_a_fence_ends_that_ownership_and_what_others_wrote_stands() -> None:
    case = Case()
    lost: list[tuple[int, int]] = []
    case.fences.on_lost = lambda number, _: lost.append((number, len(case.events)))
    case.fences.broken[1] = Ack(error="nobody knows")
    block = replace(predictions([Outcome.OK] * 4, [1] * 4), partition=np.array([0, 1, 0, 1]))
    case.performer.perform(EmitPredictions(token=7, predictions=block))
    (event,) = await case.answered(1)
    assert event == Produced(token=7, offsets={0: 0}, append_ms=event.append_ms)  # type: ignore[union-attr]
    assert lost == [(1, 0)]  # before the stage hears of anything
    assert not any(isinstance(event, ProduceFailed) for event in case.events)
    assert case.performer.unacknowledged == 0


def fenced_service(log: MemoryLog, stage: CopyStage) -> tuple[RoleService, Fences, MemoryGroupReader]:
    fences = Fences(log)
    once = ExactlyOnce(
        fences=fences,
        outputs=Outputs(),
        lookups=Lookups(log),
        scan_reader=lambda: MemoryReader(log),
        letter_topics=TOPICS.of,
    )
    service, _, group = service_on(log, stage, once=once)
    return service, fences, group


@pytest.mark.slow
@pytest.mark.parametrize("shut_out", [False, True])
async def test_a_lost_partition_is_taken_anew_while_the_group_says_that_it_is_ours(
    shut_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_SHUT_OUT_WAIT_S", 0.01)
    log, stage = MemoryLog(dict.fromkeys(ALL, 2)), CopyStage()
    service, fences, _ = fenced_service(log, stage)
    async with running(service):
        put(log, 0, b"a")
        put(log, 1, b"b")
        await until(lambda: committed(log) == {0: 1, 1: 1})
        fences.lose(0, shut_out)
        assert [type(event) for event in stage.events][-1] is Revoked  # at once
        assert 0 not in service.loop.ledgers
        put(log, 0, b"c")
        put(log, 1, b"d")
        await until(lambda: committed(log) == {0: 2, 1: 2})
        assert fences.taken == [0, 1, 0]
        assert [sorted(e.partitions) for e in stage.events if isinstance(e, Assigned)] == [[0, 1], [0]]
    assert sorted(value or b"" for value in written(log)) == [b"a", b"b", b"c", b"d"]


async def test_a_partition_that_the_group_gave_away_is_left_alone_until_it_gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()
    is_ours = ownership.Ownership._is_ours

    async def asking(self: ownership.Ownership, numbers: list[int]) -> bool:
        answer = await is_ours(self, numbers)
        asked.set()
        return answer

    monkeypatch.setattr(ownership, "_SHUT_OUT_WAIT_S", 0.01)
    monkeypatch.setattr(ownership.Ownership, "_is_ours", asking)
    log, stage = MemoryLog(dict.fromkeys(ALL, 1)), CopyStage()
    service, fences, group = fenced_service(log, stage)
    async with running(service):
        put(log, 0, b"a")
        await until(lambda: committed(log) == {0: 1})
        group.vanish()
        fences.lose(0, True)
        await asyncio.wait_for(asked.wait(), 5)
        assert fences.taken == [0]
        await group.start(assigned=service.ownership.assigned, revoked=service.ownership.revoked)
        await until(lambda: fences.taken == [0, 0])
        put(log, 0, b"b")
        await until(lambda: committed(log) == {0: 2})
    assert written(log) == [b"a", b"b"]


async def test_what_is_rejected_is_not_committed_past_before_it_is_a_dead_letter() -> None:
    log = MemoryLog(dict.fromkeys(ALL, 1))
    service, _, _ = service_on(log, CopyStage())
    async with running(service):
        service.performer.rejecting[0] += 1
        put(log, 0, b"x")
        await until(lambda: service.loop.ledgers[0].committable() == 1)
        await service.ownership.commit([0])
        assert committed(log).get(0, 0) == 0
        service.performer.rejecting[0] -= 1
        await until(lambda: committed(log) == {0: 1})
