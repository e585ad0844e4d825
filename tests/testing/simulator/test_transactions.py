"""Transactions of the simulated broker: what readers see, and whom a fence keeps out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamserve.kafka.fencing import Fences, ShutOut
from streamserve.kafka.ports import Ack, At, Columns, Record
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.clients import SimulatedReader
from streamserve.testing.simulator.clock import MachineClock
from streamserve.testing.simulator.groups import Coordinator
from streamserve.testing.simulator.node import Node
from streamserve.testing.simulator.transactions import SimulatedTransactions, TransactionCoordinator
from streamserve.testing.simulator.world import Machine, World
from streamserve.testing.simulator.writer import Effects, SimulatedWriter

AT = At("t", 0)


def columns(*values: bytes) -> Columns:
    return Columns.of([Record(value=value) for value in values])


class Setting:
    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.log = SimulatedLog(self.world, {"t": 1}, prefixes=0.0)
        self.coordinator = TransactionCoordinator(self.log)

    def process(self) -> tuple[Machine, Fences, Effects]:
        machine, effects = Machine(self.world, MachineClock(self.world.clock)), Effects()
        writer = SimulatedWriter("p", machine, self.log, effects)
        transactions = SimulatedTransactions("a", machine, self.log, self.coordinator)
        fences = Fences(transactions, prefix="a.g", covers=lambda number: [AT], send=writer.send)
        return machine, fences, effects

    def run(self, machine: Machine, work: Callable[[], Awaitable[object]], ms: float = 10_000) -> object:
        task: list[asyncio.Task[object]] = []

        async def doing() -> object:
            try:
                return await work()
            finally:
                self.world.over = True

        machine.loop.call_soon(lambda: task.append(machine.loop.create_task(doing())))
        self.world.run(self.world.now + ms)
        return task[0].result()

    def read(self, *, committed_only: bool) -> list[bytes | None]:
        machine = Machine(self.world, MachineClock(self.world.clock))
        node = Node(
            name="r",
            machine=machine,
            log=self.log,
            coordinator=Coordinator(self.log),
            session_ms=1_000,
            heartbeat_ms=100,
        )
        reader = SimulatedReader(node, committed_only=committed_only)
        reader.read({AT: 0})

        async def fetched() -> list[bytes | None]:
            chunks = await reader.fetch(max_records=100, timeout_ms=50)
            return [value for chunk in chunks for value in chunk.values]

        found = self.run(machine, fetched)
        assert isinstance(found, list)
        return found


@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_holds_readers_of_what_is_committed_back(commit: bool) -> None:
    setting = Setting()
    setting.log.append(AT, [columns(b"a")])
    setting.log.begin(AT, 7, [columns(b"b", b"c")])
    setting.log.append(AT, [columns(b"d")])
    assert setting.log.partition(AT).stable == 1
    assert (setting.read(committed_only=True), setting.read(committed_only=False)) == ([b"a"], [b"a", b"b", b"c", b"d"])
    setting.log.end(AT, 7, commit=commit)
    assert setting.read(committed_only=True) == ([b"a", b"b", b"c", b"d"] if commit else [b"a", b"d"])
    part = setting.log.partition(AT)
    assert (part.next_offset, part.stable, part.end_of_records) == (5, 5, 4)  # behind the records stands a marker


def test_who_was_fenced_off_writes_nothing_more() -> None:
    for seed in range(20):
        setting = Setting(seed)
        (old, old_fences, _), (new, new_fences, _) = setting.process(), setting.process()
        setting.run(old, lambda fences=old_fences: fences.take([0]))

        async def send(fences: Fences, value: bytes) -> Ack:
            return await fences.send(0, AT, columns(value))

        assert not setting.run(old, lambda: send(old_fences, b"a")).error  # noqa: B023  # type: ignore[attr-defined]
        setting.run(new, lambda fences=new_fences: fences.take([0]))
        refused = setting.run(old, lambda: send(old_fences, b"b"))  # noqa: B023
        assert isinstance(refused, Ack)
        assert (bool(refused.error), refused.shut_out) == (True, True)
        setting.run(new, lambda: send(new_fences, b"c"))  # noqa: B023
        assert setting.log.partition(AT).values == [b"a", b"c"]
        with pytest.raises(ShutOut):
            setting.run(old, lambda: old_fences._transactions.abort_empty("a.g.0", (0, 0), [AT]))  # noqa: B023


def test_a_fence_is_raised_when_its_markers_stand_in_the_log() -> None:
    for seed in range(20):
        setting = Setting(seed)
        machine, fences, _ = setting.process()
        setting.run(machine, lambda fences=fences: fences.take([0]))
        assert setting.log.markers == setting.coordinator.fences == 1


def test_what_is_deleted_is_read_by_nobody() -> None:
    setting = Setting()
    setting.log.append(AT, [columns(b"a", b"b", b"c")])
    setting.log.delete_before(AT, 2)
    assert setting.read(committed_only=True) == [b"c"]
    assert setting.log.since(AT, 0) == 2
