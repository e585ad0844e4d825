"""A broker dies: what it led waits, the rest is appended and seen later, nothing is lost and nothing stands twice."""

from __future__ import annotations

import asyncio

from streamserve.kafka.ports import Ack, At, Columns, Record
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.clock import WORLD_EPOCH_MS, MachineClock
from streamserve.testing.simulator.leaders import BROKERS, REFRESH_MS
from streamserve.testing.simulator.world import Machine, World
from streamserve.testing.simulator.writer import Effects, SimulatedWriter

PARTITIONS = 12
FENCED_MS = 500.0


class Setting:
    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.log = SimulatedLog(self.world, {"t": PARTITIONS})
        machine = Machine(self.world, MachineClock(self.world.clock))
        self.writer = SimulatedWriter("p#1", machine, self.log, Effects())
        self.parts = self.log.partitions("t")

    def send(self, at: At) -> asyncio.Future[Ack]:
        return self.writer.send(at, Columns.of([Record(value=b"x")]))


def test_each_broker_leads_something() -> None:
    log = Setting().log
    assert {log.leaders.of(at) for at in log.partitions("t")} == set(range(BROKERS))


def test_what_it_led_is_written_and_read_once_another_is_elected() -> None:
    s = Setting()
    led = next(at for at in s.parts if s.log.leaders.of(at) == 1)
    s.log.append(led, [Columns.of([Record(value=b"before")])])
    assert s.log.lose_leader(1, FENCED_MS)
    sent = s.send(led)
    s.world.run(FENCED_MS - 1)
    assert not sent.done()
    assert not s.log.readable(led, 0, False)
    assert s.log.chunk(led, 0, 10) is None
    s.world.run(FENCED_MS + REFRESH_MS[1] + 10)
    assert sent.result() == Ack(offset=1, append_ms=s.log.partition(led).stamps[1])
    assert s.log.partition(led).stamps[1] >= WORLD_EPOCH_MS + FENCED_MS
    assert s.log.leaders.of(led) != 1


def test_what_others_lead_is_stamped_at_once_and_seen_when_the_dead_one_is_fenced() -> None:
    s = Setting()
    others = [at for at in s.parts if s.log.leaders.of(at) != 1]
    s.log.lose_leader(1, FENCED_MS)
    sent = [s.send(at) for at in others]
    s.world.run(FENCED_MS - 1)
    assert not any(future.done() or s.log.readable(at, 0, False) for future, at in zip(sent, others, strict=True))
    s.world.run(FENCED_MS + 10)
    for future, at in zip(sent, others, strict=True):
        assert s.log.partition(at).values == [b"x"]
        assert future.result().append_ms < WORLD_EPOCH_MS + 10


def test_an_acknowledgement_that_dies_with_its_leader_comes_from_the_next_one_and_the_record_stands_once() -> None:
    s = Setting()

    def die(broker: int) -> None:
        s.log.lose_leader(broker, FENCED_MS)

    s.log.dies_with_an_append = die
    sent = s.send(s.parts[0])
    s.world.run(FENCED_MS - 1)
    assert not sent.done()
    assert s.log.partition(s.parts[0]).values == [b"x"]
    s.world.run(FENCED_MS + REFRESH_MS[1] + 10)
    assert not sent.result().error
    assert s.log.partition(s.parts[0]).values == [b"x"]
    assert s.log.counts["acknowledgement lost with its leader"] == 1


def test_no_second_broker_dies_before_the_first_is_fenced() -> None:
    s = Setting()
    assert s.log.lose_leader(0, FENCED_MS)
    assert not s.log.lose_leader(1, FENCED_MS)
    s.world.run(FENCED_MS)
    assert s.log.lose_leader(1, FENCED_MS)
