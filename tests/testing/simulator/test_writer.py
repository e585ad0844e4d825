"""What can become of a send: as with the real writer, an error says nothing of what is in the log."""

from __future__ import annotations

import asyncio

import pytest

from streamserve.kafka.ports import Ack, At, Columns, Record
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.clock import MachineClock
from streamserve.testing.simulator.world import Machine, World
from streamserve.testing.simulator.writer import Effects, SimulatedWriter

AT = At("t", 0)


def setting(seed: int = 0) -> tuple[World, Machine, SimulatedLog, Effects, SimulatedWriter]:
    world = World(seed)
    machine, log, effects = Machine(world, MachineClock(world.clock)), SimulatedLog(world, {"t": 1}), Effects()
    return world, machine, log, effects, SimulatedWriter("p#1", machine, log, effects)


def values(log: SimulatedLog) -> list[bytes | None]:
    return log.partition(AT).values


def send(writer: SimulatedWriter, value: bytes) -> asyncio.Future[Ack]:
    return writer.send(AT, Columns.of([Record(value=value)]))


@pytest.mark.parametrize(
    ("fate", "error", "appended"),
    [
        ("", False, True),
        ("refused", True, False),
        ("lost", True, False),
        ("unknown", True, True),
        ("late", True, True),
        ("slow", False, True),
    ],
)
def test_each_fate(fate: str, error: bool, appended: bool) -> None:
    world, _, log, effects, writer = setting()
    effects.send_fates.extend([fate] if fate else [])
    sent = send(writer, b"x")
    world.run(5_000)
    assert bool(sent.result().error) == error
    assert (values(log) == [b"x"]) == appended


def test_sends_are_appended_in_their_order_but_for_one_that_was_held_up_on_its_way() -> None:
    found = set()
    for seed in range(50):
        world, _, log, effects, writer = setting(seed)
        effects.send_fates.append("late")
        for value in (b"a", b"b", b"c"):
            send(writer, value)
        world.run(5_000)
        found.add(b"".join(value or b"" for value in values(log)))
    assert found == {b"abc", b"bca"}


def test_nothing_leaves_a_process_that_ends_before_its_send() -> None:
    world, machine, log, effects, writer = setting()
    effects.crash_at["before send", 2] = machine.kill
    send(writer, b"a")
    world.run(100)
    send(writer, b"b")
    send(writer, b"c")
    world.run(5_000)
    assert values(log) == [b"a"]


def test_a_broker_that_is_away_delays_and_loses_nothing() -> None:
    world, _, log, _, writer = setting()
    log.away_until = 3_000
    sent = send(writer, b"x")
    world.run(2_900)
    assert (values(log), sent.done()) == ([], False)
    world.run(3_200)
    assert (values(log), sent.result().error) == ([b"x"], "")


def test_compaction_keeps_the_newest_of_each_key_and_leaves_gaps() -> None:
    log = SimulatedLog(World(0), {"t": 1}, compacted=["t"], prefixes=0.0)
    pairs = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (b"c", None)]
    log.append(AT, [Columns.of([Record(key=key, value=value) for key, value in pairs])])
    log.compact()
    chunk = log.chunk(AT, 0, 10)
    assert chunk is not None
    assert (chunk.offsets.tolist(), chunk.values, chunk.next_offset) == ([2, 4], [b"3", None], 5)  # the last one stays
    assert log.partition(AT).next_offset == 5
    assert log.chunk(AT, 5, 10) is None
