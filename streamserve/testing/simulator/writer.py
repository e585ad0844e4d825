"""The simulated writer: one lane a partition and fence, one batch of it on its way, acknowledgements that may not come.

As with `KafkaWriter`: what is sent to one partition is appended in that order; a broker that is away delays and does
not lose; a batch that is refused or given up fails its sends, then all lanes wait until the producer has been rebuilt.
Behind a fence a failure ends that fence, and the producer stays. What a failed batch left in the log, or leaves there
later, is not taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from streamserve.kafka.ports import Ack, At, Fence, RecordColumns
from streamserve.testing.simulator.broker import Producer, SimulatedLog
from streamserve.testing.simulator.world import Machine

SEND_MS = (0.3, 2.5)
ACK_MS = (0.3, 2.5)
SLOW_ACK_MS = (200.0, 1_500.0)
#: When a producer gives a batch up (seconds to a minute in Kafka; shorter here, so that a run sees many).
GIVE_UP_MS = (100.0, 600.0)
_REBUILD_MS = (50.0, 300.0)
#: What was given up is mostly appended before anything that the rebuilt producer sends: its connection was closed
#: before, and a broker takes what it has received in order. Now and then it was held up on its way, and comes behind
#: that, and behind what another owner has written.
_LATE_APPEND_MS = (1.0, 45.0)
_MUCH_LATER_MS = (50.0, 1_500.0)
_MUCH_LATER = 0.5
_STOP_S = 5.0

#: What can become of a batch: `refused` (not appended), `lost` (not appended, given up), `unknown` (appended, given
#: up), `late` (given up, appended afterwards), `slow` (appended, acknowledged much later).
SEND_FATES = ("refused", "lost", "unknown", "late", "slow")
#: Of a commit: `lost` (not taken, no answer), `unknown` (taken, no answer).
COMMIT_FATES = ("lost", "unknown")
#: Where a process can be made to end: at its n-th effect on the world.
CRASH_POINTS = ("before send", "after send", "before commit", "after commit")


class Effects:
    """What of a process reaches the world, counted; where it is to break is looked up here."""

    def __init__(self) -> None:
        self.sends = 0
        self.commits = 0
        self.crash_at: dict[tuple[str, int], Callable[[], None]] = {}
        """(`before send`, n), ... -> what ends the process there."""
        self.send_fates: deque[str] = deque()
        self.commit_fates: deque[str] = deque()
        self.used: Callable[[str], None] = lambda fate: None
        self.failed: Callable[[At], None] = lambda at: None
        """A batch for this partition is not in the log, or nobody knows."""
        self.slow: Callable[[float], None] = lambda for_ms: None
        """Something on its way to this process takes so long."""
        self.assigned: Callable[[str, Iterable[At]], None] = lambda group, partitions: None
        self.begun: Callable[[str, Iterable[At]], None] = lambda group, partitions: None

    def _point(self, name: str, number: int) -> None:
        end = self.crash_at.pop((name, number), None)
        if end is not None:
            end()

    def before_send(self) -> None:
        self.sends += 1
        self._point("before send", self.sends)

    def after_send(self) -> None:
        self._point("after send", self.sends)

    def before_commit(self) -> None:
        self.commits += 1
        self._point("before commit", self.commits)

    def after_commit(self) -> None:
        self._point("after commit", self.commits)

    def fate_of_send(self) -> str:
        return self._next(self.send_fates, "send")

    def fate_of_commit(self) -> str:
        return self._next(self.commit_fates, "commit")

    def _next(self, fates: deque[str], what: str) -> str:
        if not fates:
            return ""
        fate = fates.popleft()
        self.used(f"{what} {fate}")
        return fate


_Send = tuple[RecordColumns, "asyncio.Future[Ack]", float]
"""Records, who waits, when they were handed over."""
_Lane = tuple[At, Fence | None]


class SimulatedWriter:
    """`LogWriter`."""

    def __init__(self, name: str, machine: Machine, log: SimulatedLog, effects: Effects) -> None:
        self._name = name
        self.may_send: Callable[[], bool] = lambda: True
        self._machine, self._log, self._world, self._effects = machine, log, log.world, effects
        self._lanes: dict[_Lane, deque[_Send]] = {}
        self._on_their_way: dict[_Lane, list[_Send]] = {}
        self._rebuilt_at = 0.0
        self._stopping = False
        self._quiet = asyncio.Event()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._stopping = True
        if self._on_their_way and not self._machine.dead:
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), _STOP_S)
        left = [send for sends in (*self._lanes.values(), *self._on_their_way.values()) for send in sends]
        _end(left, "the writer was stopped before the broker acknowledged it")

    def send(self, at: At, records: RecordColumns, fence: Fence | None = None) -> asyncio.Future[Ack]:
        future: asyncio.Future[Ack] = self._machine.loop.create_future()
        if self._stopping or not len(records.values):
            future.set_result(Ack(error="the writer was stopped" if self._stopping else ""))
            return future
        if not self._log.has(at):
            future.set_result(Ack(error=f"unknown topic or partition {at}"))
            return future
        self._effects.before_send()
        if self._machine.dead:
            return future
        lane = (at, fence)
        self._lanes.setdefault(lane, deque()).append((records, future, self._world.now))
        if lane not in self._on_their_way:
            self._depart(lane)
        self._effects.after_send()
        return future

    def drop(self, at: At) -> None:
        lane = self._lanes.get((at, None))
        if lane:
            _end(lane, "its partition is no longer ours")
            lane.clear()

    async def over(self, at: At) -> None:
        lanes = [lane for lane in (*self._lanes, *self._on_their_way) if lane[0] == at]
        sends = [send for lane in lanes for send in (*self._lanes.get(lane, ()), *self._on_their_way.get(lane, ()))]
        waiting = [future for _, future, _ in sends if not future.done()]
        if waiting:
            await asyncio.wait(waiting)

    def _depart(self, key: _Lane) -> None:
        """Everything in the lane goes as one batch."""
        lane, (at, fence) = self._lanes.get(key), key
        if lane and not self._machine.dead and fence is not None and not fence.is_open:
            _end(lane, "its partition is no longer ours")
            lane.clear()
        if lane and not self._machine.dead and not self.may_send():
            _end(lane, "this process has not heard from its group for too long")
            lane.clear()
        if not lane or self._machine.dead:
            self._on_their_way.pop(key, None)
            if fence is not None:
                self._lanes.pop(key, None)
            if not self._on_their_way:
                self._quiet.set()
            return
        batch = list(lane)
        lane.clear()
        self._on_their_way[key] = batch
        producer = None
        if fence is not None:
            n = sum(len(records.values) for records, _, _ in batch)
            producer = Producer(fence.producer_id, fence.epoch, fence.next_sequence(at, n))
        fate = self._effects.fate_of_send()
        wait = max(0.0, self._rebuilt_at - self._world.now)
        self._world.after(wait + self._world.delay(*SEND_MS), self._arrive, key, batch, producer, fate)

    def _arrive(
        self, key: _Lane, batch: list[_Send], producer: Producer | None, fate: str, stamp: int | None = None
    ) -> None:
        """`stamp`: it was appended then, and is replicated now."""
        world = self._world
        if stamp is None:
            if self._machine.dead and world.rng.random() < 0.5:
                return  # it had not left the machine
            arrive = partial(self._arrive, key, batch, producer, fate)
            if not self._log.reached(arrive, key[:1], "send without a leader") or not self._log.replicated(arrive):
                return
        give_up = world.delay(*GIVE_UP_MS)
        if fate in ("lost", "late"):
            world.after(give_up, self._failed, key, batch, "timed out")
            if fate == "late":
                much_later = world.rng.random() < _MUCH_LATER
                late = give_up + world.delay(*(_MUCH_LATER_MS if much_later else _LATE_APPEND_MS))
                world.after(late, self._append_late, key[0], batch, producer)
            return
        words = "refused" if fate == "refused" else "" if producer is None else self._log.refuses(key[0], producer)
        if words:
            world.after(world.delay(*ACK_MS), self._failed, key, batch, words)
            return
        first, stamp = self._append(key[0], batch, producer, stamp)
        if fate == "unknown":
            world.after(give_up, self._failed, key, batch, "timed out")
            return
        slow = SLOW_ACK_MS if fate == "slow" else ACK_MS
        world.after(world.delay(*slow), self._answered, key, batch, first, stamp)

    def _append(
        self, at: At, batch: list[_Send], producer: Producer | None, stamp: int | None = None
    ) -> tuple[int, int]:
        appended = self._log.append(at, _records(batch), self._name, batch[-1][2], stamp)
        if producer is not None:
            self._log.counted(at, producer, sum(len(records.values) for records, _, _ in batch))
        return appended

    def _append_late(self, at: At, batch: list[_Send], producer: Producer | None) -> None:
        """Nobody waits for an answer any more."""
        if producer is not None and self._log.refuses(at, producer):
            self._effects.used("late batch of an older epoch refused")
            return
        self._append(at, batch, producer)
        if self._machine.dead:  # it could not say so itself
            self._effects.failed(at)

    def _answered(self, key: _Lane, batch: list[_Send], first: int, stamp: int) -> None:
        again = partial(self._answered, key, batch, first, stamp)
        if not self._log.reached(again, key[:1], "acknowledgement lost with its leader") or self._machine.dead:
            return
        for records, future, _ in batch:
            if not future.done():
                future.set_result(Ack(offset=first, append_ms=stamp))
            first += len(records.values)
        self._depart(key)

    def _failed(self, key: _Lane, batch: list[_Send], words: str) -> None:
        if self._machine.dead:
            return
        if key[1] is None:
            self._rebuilt_at = self._world.now + self._world.delay(*_REBUILD_MS)
        self._effects.failed(key[0])
        _end(batch, words, shut_out=words == "fenced")
        self._depart(key)


def _records(batch: Iterable[_Send]) -> list[RecordColumns]:
    return [records for records, _, _ in batch]


def _end(batch: Iterable[_Send], words: str, *, shut_out: bool = False) -> None:
    for _, future, _ in batch:
        if not future.done():
            future.set_result(Ack(error=words, shut_out=shut_out))
