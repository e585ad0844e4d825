"""One role as a running process: parts started in order of dependence, watched, drained, stopped in reverse.

Long since all parts meet here: who is told of whom can be read in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from streamserve.core.bounds import Fill, fullest
from streamserve.core.events import BatchFinished
from streamserve.core.stage import Stage
from streamserve.errors import BrokerError, StreamserveError
from streamserve.kafka.announcing import Announcement
from streamserve.kafka.clock import SURE_MS, BrokerClock
from streamserve.kafka.configs import Configs
from streamserve.kafka.heads import LiveHeads
from streamserve.kafka.http import Pages, StatusServer
from streamserve.kafka.interpreter import tune_interpreter
from streamserve.kafka.loop import DEFAULT_LIMITS, Limits, StageLoop, Wiring
from streamserve.kafka.metrics import RoleMetrics, page_of
from streamserve.kafka.once import ExactlyOnce, Outputs
from streamserve.kafka.ownership import Ownership
from streamserve.kafka.perform import Encoders, Performer, Topics
from streamserve.kafka.plan import Plan
from streamserve.kafka.pool import LivePool
from streamserve.kafka.ports import At, Columns, GroupReader, LogLookups, LogReader, LogWriter, Record
from streamserve.kafka.runner import MakeRunner, ModelRunner, Runner
from streamserve.kafka.states import StatesFollower
from streamserve.kafka.sweeper import Sweeper
from streamserve.kafka.takeover import TakeOver
from streamserve.kafka.tasks import ended
from streamserve.runtimes.base import Runtime

_log = logging.getLogger(__name__)

#: A stop takes at most this long, so that SIGTERM to exit stays within 10 s.
DRAIN_FINISH_MS = 5_000
_RETRACT_S = 1.0
_END_S = 1.0
_TIME_ASKS = 4
LIVENESS_MS = 10_000
_PULSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """A process's connections to the log."""

    group: GroupReader
    followed: LogReader | None
    scan: Callable[[], LogReader]
    """For look-ups: of whatever stands there."""
    sweep: Callable[[], LogReader]
    """For what was passed over: as `scan`, but requests of aborted transactions are nobody's to answer."""
    lookups: LogLookups
    writer: LogWriter
    once: ExactlyOnce | None = None
    """Where delivery is exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What makes one role differ from another."""

    name: str
    stage: Stage
    driving_kind: str
    wiring: Wiring
    plan: Plan
    topics: Topics
    encoders: Encoders
    once: Outputs | None = None
    """What of its output is fenced where delivery is exactly once."""
    runtimes: dict[str, Runtime] | None = None
    announcement: Announcement | None = None
    pool: str = ""
    """Of a worker."""
    sweeps: Stage | None = None
    """A terminal stage of its own, for what was passed over after an outage; None: nobody waits for it."""
    asks_time: At | None = None
    """Where a record that says nothing is written first of all: its acknowledgement tells the broker's time before
    anything is decided by it. A machine's own clock may be seconds off."""
    limits: Limits = DEFAULT_LIMITS


StatesFor = Callable[[StageLoop, BrokerClock], StatesFollower]


class RoleService:
    """Runs one role until it is told to stop."""

    def __init__(
        self,
        role: Role,
        clients: Clients,
        *,
        clock: BrokerClock,
        metrics: RoleMetrics,
        states: StatesFor | None = None,
        configs: Configs | None = None,
        heads: LiveHeads | None = None,
        waits_for_states: bool = False,
        metrics_port: int | None = 0,
        beside: Sequence[RoleService] = (),
        runner: MakeRunner = ModelRunner,
        tune: Callable[[], None] = tune_interpreter,
    ) -> None:
        """`waits_for_states`: a partition is taken over only when every state in it has been read.

        `metrics_port` None: no pages of its own, another service of this process has it `beside` itself. `tune`: done
        once everything long-lived has been made.
        """
        self._tune = tune
        self._beside = beside
        self.role, self._clients = role, clients
        self.clock, self.metrics = clock, metrics
        self.loop = StageLoop(stage=role.stage, wiring=role.wiring, clock=clock, metrics=metrics, limits=role.limits)
        self.runner = None if role.runtimes is None else runner(role.runtimes, self._batch_finished)
        self.states = states(self.loop, clock) if states else None
        self.heads = heads
        self.live = None if configs is None else self._live_pool(role, configs)
        self.predecessors = TakeOver(
            plan=role.plan,
            clock=clock,
            metrics=metrics,
            scan_reader=clients.scan,
            lookups=clients.lookups,
            writer=clients.writer,
            once=clients.once,
        )
        self.sweeper = None if role.sweeps is None else self._sweeper(role.sweeps)
        self.ownership = Ownership(
            plan=role.plan,
            loop=self.loop,
            clock=clock,
            metrics=metrics,
            group_reader=clients.group,
            followed_reader=clients.followed,
            predecessors=self.predecessors,
            lookups=clients.lookups,
            writer=clients.writer,
            ready=self._states_reached if waits_for_states else None,
            sweeper=self.sweeper,
            once=clients.once,
        )
        if self.states is not None:
            self.ownership.on_begun, self.ownership.on_ended = self.states.own, self.states.disown
        if self.runner is not None:
            self.ownership.called_meanwhile = self.runner.called_meanwhile
            self.loop.linger = self.runner.linger
        self.performer = Performer(
            topics=role.topics,
            encoders=role.encoders,
            writer=clients.writer,
            runner=self.runner,
            clock=clock,
            metrics=metrics,
            post=self.loop.post,
            post_quietly=self.loop.post_quietly,
            ledgers=self.loop.ledgers,
            driving=(role.driving_kind, clients.group),
            followed=clients.followed,
            once=clients.once,
        )
        self.ownership.holds_commit = lambda number: self.performer.rejecting[number] > 0
        self.loop.performs(self.performer.perform, self.performer.reject)
        self.loop.unacknowledged = lambda: self.performer.unacknowledged
        if self.sweeper is not None:
            self._sweeps_with(self.sweeper)
        pages = Pages(metrics=self._page, alive=self.troubles, ready=self.not_ready, status=self._status)
        self.server = None if metrics_port is None else StatusServer(pages, metrics_port)
        self.may_join: Callable[[], Awaitable[None]] = _at_once
        """Waited for before it joins its group, when all else is ready."""
        self._stop = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._warm = False

    def _live_pool(self, role: Role, configs: Configs) -> LivePool | None:
        if self.runner is None or role.runtimes is None or role.announcement is None:
            return None
        return LivePool(
            role.pool,
            role.runtimes,
            configs,
            role.announcement,
            runner=self.runner,
            post=self.loop.post,
            count=self.metrics.count,
            now_ms=self.clock.now_ms,
        )

    def _sweeper(self, stage: Stage) -> Sweeper:
        plan, clients = self.role.plan, self._clients
        return Sweeper(
            stage=stage,
            wiring=self.role.wiring,
            answers_topic=plan.followed.get("answers"),
            clock=self.clock,
            metrics=self.metrics,
            reader=clients.sweep(),
            lookups=clients.lookups,
            predictions_topic=self.role.topics.predictions,
            scan=self.predecessors.answered_in,
            limits=self.role.limits,
        )

    def _sweeps_with(self, sweeper: Sweeper) -> None:
        """Its effects are done as those of the loop that serves, by the same writer."""
        performer = Performer(
            topics=self.role.topics,
            encoders=self.role.encoders,
            writer=self._clients.writer,
            runner=None,
            clock=self.clock,
            metrics=self.metrics,
            post=sweeper.loop.post,
            post_quietly=sweeper.loop.post_quietly,
            ledgers=sweeper.loop.ledgers,
            driving=(self.role.driving_kind, self._clients.group),
            followed=sweeper.reader,
            once=self._clients.once,
        )
        own = self.performer.rejecting
        self.ownership.holds_commit = lambda number: own[number] + performer.rejecting[number] > 0
        sweeper.loop.performs(performer.perform, performer.reject)
        sweeper.loop.unacknowledged = lambda: performer.unacknowledged
        sweeper.loop.may_act = self.ownership.holds_lease

    def request_stop(self) -> None:
        """Ask for an orderly stop; safe to call again."""
        self._stop.set()

    async def run(self, serving: Callable[[int], None], warm: Callable[[Runner], Awaitable[None]] | None) -> None:
        """Serve until `request_stop`. `serving` is told the metrics port once the group was joined.

        Raises StreamserveError when a part of the process died, and whatever start-up raises.
        """
        async with AsyncExitStack() as stack:
            await self._prepare(stack, warm)
            if not await self._its_turn():
                return
            await self._join(stack)
            watch = asyncio.get_running_loop().create_task(self._stop.wait())
            stack.callback(watch.cancel)
            joined = asyncio.get_running_loop().create_task(self.ownership.joined.wait())
            stack.callback(joined.cancel)
            waiting = {watch, joined, *self._tasks.values()}
            while not watch.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if joined in done:
                    serving(0 if self.server is None else self.server.port)
                self._check(done - {watch, joined})
            await self._drain()

    async def _prepare(self, stack: AsyncExitStack, warm: Callable[[Runner], Awaitable[None]] | None) -> None:
        clients = self._clients
        if self.server is not None:
            await self.server.start()
            stack.push_async_callback(self.server.stop)
        states = () if self.states is None else self.states.parts
        fences = None if clients.once is None else clients.once.fences
        for part in (clients.writer, clients.lookups, clients.followed, fences, *states):
            if part is not None:
                await part.start()
                stack.push_async_callback(part.stop)
        if self.role.asks_time is not None:
            await self._ask_time(self.role.asks_time)
        if self.runner is not None:
            stack.callback(self.runner.close)
            if warm is not None:
                await warm(self.runner)
        self._warm = True
        stack.push_async_callback(self._end_tasks)
        self._spawn("loop", self.loop.run())
        if self.states is not None:
            await self.states.load()
            self._spawn("states", self.states.follow())
            self._spawn("state ends", self.states.ask())
            self._spawn("keyed states", self.states.load_owned())
        self._tune()
        self._spawn("pulse", self._pulse())

    async def _its_turn(self) -> bool:
        """Whether it is to join: False where it was asked to stop first. Raises where a part dies meanwhile."""
        turn = asyncio.ensure_future(self.may_join())
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait({turn, stop, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
            self._check(done - {turn, stop})
            if turn in done:
                turn.result()
            return not stop.done()
        finally:
            turn.cancel()
            stop.cancel()

    async def _join(self, stack: AsyncExitStack) -> None:
        clients = self._clients
        if self.heads is not None:
            await self.heads.look()
            self._spawn("heads", self.heads.follow())
        if self.live is not None:
            await self.live.look()
            self.live.say = self._announce
            await self.live.tell()
            self._spawn("pool", self.live.follow())
        self._spawn("take over", self.ownership.watch())
        await clients.group.start(assigned=self.ownership.assigned, revoked=self.ownership.revoked)
        stack.push_async_callback(clients.group.stop)
        self._spawn("fetch", self.loop.drain(clients.group, driving=True))
        if clients.followed is not None:
            self._spawn("fetch followed", self.loop.drain(clients.followed))
        self._spawn("commit", self.ownership.commit_forever())
        self._spawn("lateness", self.ownership.keep_time())
        if self.sweeper is not None:
            self._spawn("sweep", self.sweeper.run())

    async def _ask_time(self, at: At) -> None:
        """Until the answer is sure enough; one that took long tells little. Raises BrokerError where none is taken."""
        for left in reversed(range(_TIME_ASKS)):
            try:
                await self._write(at, Record(key=b"clock", value=None))
            except BrokerError:
                if not left:
                    raise
            if self.clock.bound_ms <= SURE_MS:
                return

    async def _announce(self, announcement: Announcement) -> None:
        await self._write(announcement.at, announcement.record)

    async def _write(self, at: At, record: Record) -> None:
        sent_at_ms = self.clock.monotonic_ms()
        ack = await self._clients.writer.send(at, Columns.of([record]))
        if not ack.error:
            self.clock.acknowledged(sent_at_ms, ack.append_ms)
        else:
            raise BrokerError(f"{self.role.name}: a record for {at.topic}-{at.partition} was not taken: {ack.error}")

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.get_running_loop().create_task(work, name=name)

    def _check(self, done: set[asyncio.Task[Any]]) -> None:
        for task in sorted(done, key=lambda task: task.get_name()):
            error = None if task.cancelled() else task.exception()
            _log.error("%s: part %r of the process died", self.role.name, task.get_name(), exc_info=error)
            if isinstance(error, StreamserveError):
                raise error
            raise StreamserveError(
                f"{self.role.name}: part {task.get_name()!r} died ({error!r}); the process stops so that another "
                "can take over. The log has the trace"
            ) from error

    async def _end_tasks(self) -> None:
        self.loop.stop()
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*(ended(task) for task in self._tasks.values()))
        except TimeoutError:
            late = [name for name, task in self._tasks.items() if not task.done()]
            _log.warning("%s: parts %s of the process have not ended in %.0f s", self.role.name, late, _END_S)

    async def _drain(self) -> None:
        """Stop fetching, finish, abort the rest with a reason, commit, leave."""
        started_ms = self.clock.monotonic_ms()
        _log.info("%s: stopping", self.role.name)
        self._tasks["fetch"].cancel()
        self.loop.begin_drain()
        owned = list(self.loop.ledgers)
        if not await self.loop.finished(owned, started_ms + DRAIN_FINISH_MS):
            _log.warning(
                "%s: %d open inputs are left to the next owner: not finished in %d ms",
                self.role.name,
                self.loop.open_requests,
                DRAIN_FINISH_MS,
            )
        await self.ownership.give_up(list(self.loop.ledgers), started_ms + DRAIN_FINISH_MS + 500)
        if self.role.announcement is not None:
            try:
                async with asyncio.timeout(_RETRACT_S):
                    await self._write(self.role.announcement.at, self.role.announcement.retraction)
            except (BrokerError, TimeoutError) as error:
                _log.warning("%s: others are not told that it has stopped: %s", self.role.name, error)
        _log.info("%s: stopped after %d ms", self.role.name, self.clock.monotonic_ms() - started_ms)

    # what the pages say

    def troubles(self) -> list[str]:
        """Why this process is not alive; empty when it is."""
        silent_ms = self.clock.monotonic_ms() - self.loop.turned_at_ms
        found = [f"the loop has not turned for {silent_ms:.0f} ms"] if silent_ms > LIVENESS_MS else []
        fetch_ms = self.loop.longest_fetch_ms()
        found += [f"a fetch has not returned for {fetch_ms:.0f} ms"] if fetch_ms > LIVENESS_MS else []
        found += [f"part {name!r} has ended" for name, task in self._tasks.items() if task.done()]
        return found + [f"{other.role.name}: {words}" for other in self._beside for words in other.troubles()]

    def not_ready(self) -> list[str]:
        """What is missing before this process serves; empty when nothing is."""
        states_missing = self.states is not None and not self.states.loaded
        checks = {
            "models are not warm yet": not self._warm,
            "learnt states are not read yet": states_missing,
            "the group is not joined yet": not self.ownership.joined.is_set(),
            "stopping": self._stop.is_set(),
        }
        away = [] if self.runner is None else self.runner.away()
        if self.loop.ledgers and not self.ownership.holds_lease():
            away.append("the group has not been heard from for too long: nothing is answered until it has")
        found = [words for words, missing in checks.items() if missing] + away + self.troubles()
        return found + [f"{other.role.name}: {words}" for other in self._beside for words in other.not_ready()]

    def _batch_finished(self, event: BatchFinished) -> None:
        self.metrics.batch_finished(event)
        self.loop.post_finished(event)

    async def _states_reached(self, partitions: Any) -> None:
        if self.states is not None:
            await self.states.reached(list(partitions))

    async def _pulse(self) -> None:
        """An idle loop turns too, so that a stuck one can be told from it."""
        while True:
            self.loop.wake()
            self._look()
            await asyncio.sleep(_PULSE_S)

    def _look(self) -> None:
        plan, lags = self.role.plan, {}
        for number in self.loop.ledgers:
            lag = self._clients.group.lag(At(plan.driving, number))
            if lag is not None:
                lags[plan.driving, number] = lag
        self.metrics.gauges(
            lags=lags,
            queued=self.loop.queued_records,
            open_requests=self.loop.open_requests,
            skipped=0 if self.sweeper is None else self.sweeper.requests_left,
            fills=self._fills(),
            clock_ms=(self.clock.offset_ms, self.clock.bound_ms),
            now_ms=self.clock.monotonic_ms(),
        )

        if self.runner is not None:
            self.metrics.processes(self.runner.processes())

    def _fills(self) -> dict[str, Fill]:
        """Of what serves and of what sweeps, the fuller one."""
        fills = self.loop.fills()
        if self.sweeper is not None:
            for bound, fill in self.sweeper.loop.fills().items():
                fills[bound] = fullest([fill, fills.get(bound, fill)])
        return fills

    def _page(self) -> bytes:
        together = (self, *self._beside)
        for service in together:
            service._look()
            if service.runner is not None:  # not in every pulse: a pool of hundreds of plans takes milliseconds
                service.metrics.plans(service.runner.plans())
        return page_of([service.metrics for service in together]) if self._beside else self.metrics.page()

    def _status(self) -> dict[str, Any]:
        self._look()
        return self.metrics.status(self.clock.monotonic_ms()) | {"partitions": sorted(self.loop.ledgers)}


async def _at_once() -> None:
    """Nobody has to be waited for."""
