"""The simulated coordinator of transactions, and the product's own `Transactions` talking to it.

As in Kafka: initialising an id raises its epoch, and aborts what it has left open; the end of a transaction is answered
before its markers are written, and until all of them are whoever asks again is told that another is going on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from streamserve.kafka.fencing import Transactions
from streamserve.kafka.ports import At
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.world import Machine

_NETWORK_MS = (0.2, 2.0)
#: A marker takes so long to its partition; now and then much longer.
_MARKER_MS = (0.5, 8.0)
_SLOW_MARKER_MS = (50.0, 900.0)
_SLOW_MARKERS = 0.5
#: The coordinator has moved, or is loading: asked again, it answers.
_MOVES = 0.03

OK, NOT_COORDINATOR, STALE_EPOCH, BAD_STATE, GOING_ON = 0, 16, 47, 48, 51


@dataclass(slots=True)
class _Id:
    number: int
    epoch: int = -1
    partitions: set[At] = field(default_factory=set)
    """Of the transaction that is open."""
    unmarked: int = 0
    """Markers that are still to be written."""
    ended: bool = False
    """Its last transaction is over, and no other was begun under this epoch."""


class TransactionCoordinator:
    """The ids of one broker."""

    def __init__(self, log: SimulatedLog) -> None:
        self._log = log
        self._ids: dict[str, _Id] = {}
        self.fences = 0

    def answer(self, name: str, request: Any) -> Any:
        """What the broker says to one request of the protocol."""
        known = self._ids.setdefault(name, _Id(number=len(self._ids)))
        code = NOT_COORDINATOR if self._log.world.rng.random() < _MOVES else OK
        match type(request).__name__:
            case "InitProducerIdRequest":
                code = code or self._initialise(known)
                return SimpleNamespace(error_code=code, producer_id=known.number, producer_epoch=known.epoch)
            case "AddPartitionsToTxnRequest":
                wanted = [At(topic, number) for topic, numbers in request._topics for number in numbers]
                code = code or self._add(known, request._producer_epoch, wanted)
                return SimpleNamespace(errors=[(at.topic, [(at.partition, code)]) for at in wanted])
            case "EndTxnRequest":
                return SimpleNamespace(error_code=code or self._end(known, request._producer_epoch))
            case other:
                raise TypeError(f"no transaction knows a {other}")

    def _initialise(self, known: _Id) -> int:
        if known.partitions:
            self._abort(known)
        if known.unmarked:
            return GOING_ON
        known.epoch += 1
        known.ended = False
        return OK

    def _add(self, known: _Id, epoch: int, wanted: list[At]) -> int:
        if epoch != known.epoch:
            return STALE_EPOCH
        if known.unmarked:
            return GOING_ON
        known.partitions.update(wanted)
        known.ended = False
        return OK

    def _end(self, known: _Id, epoch: int) -> int:
        if epoch != known.epoch:
            return STALE_EPOCH
        if known.unmarked:
            return GOING_ON
        if known.partitions:
            self._abort(known)
            return OK
        return OK if known.ended else BAD_STATE

    def _abort(self, known: _Id) -> None:
        world = self._log.world
        partitions, known.partitions, known.ended = sorted(known.partitions), set(), True
        known.unmarked = len(partitions)
        self.fences += 1
        for at in partitions:
            slow = world.rng.random() < _SLOW_MARKERS
            world.after(world.delay(*(_SLOW_MARKER_MS if slow else _MARKER_MS)), self._mark, known, at)

    def _mark(self, known: _Id, at: At) -> None:
        if self._log.reached(lambda: self._mark(known, at), (at,), "marker without a leader"):
            self._log.mark(at, known.number, known.epoch)
            known.unmarked -= 1


class SimulatedTransactions(Transactions):
    """What the product asks and how often, over a simulated network."""

    def __init__(self, app: str, machine: Machine, log: SimulatedLog, coordinator: TransactionCoordinator) -> None:
        super().__init__({}, app)
        self._machine, self._log, self._coordinator = machine, log, coordinator

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def _sent(self, name: str, request: Any) -> Any:
        world, machine = self._log.world, self._machine
        future = machine.loop.create_future()
        if not machine.dead:
            world.after(world.delay(*_NETWORK_MS), self._arrive, name, request, future)
        return await future

    def _arrive(self, name: str, request: Any, future: Any) -> None:
        world = self._log.world
        if self._log.reached(partial(self._arrive, name, request, future), (name,), "coordinator moved"):
            world.after(
                world.delay(*_NETWORK_MS), _answer, self._machine, future, self._coordinator.answer(name, request)
            )


def _answer(machine: Machine, future: Any, value: object) -> None:
    if not machine.dead and not future.done():
        future.set_result(value)
