"""A simulated process: the real services of a role on a loop of its own; started, stopped, killed, started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from streamserve.core.effects import Count, RunBatch
from streamserve.core.events import BatchFinished
from streamserve.core.messages import DeadLetters, Predictions
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route
from streamserve.errors import StreamserveError
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.composition import (
    App,
    aggregator_role,
    app_of,
    join_role,
    role_service,
    update_role,
    worker_role,
)
from streamserve.kafka.hosting import warmer
from streamserve.kafka.learnt_metrics import LearntMetrics
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.ports import At, Chunk
from streamserve.kafka.service import Role, RoleService
from streamserve.runtimes.base import Runtime
from streamserve.runtimes.isolation import ProcessState
from streamserve.runtimes.plan_figures import PlanFigures
from streamserve.settings import Settings
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.clients import SimulatedConnections
from streamserve.testing.simulator.clock import MachineClock
from streamserve.testing.simulator.groups import Coordinator
from streamserve.testing.simulator.models import SimulatedModel, SimulatedRunner, Weather
from streamserve.testing.simulator.node import Node
from streamserve.testing.simulator.plan import Process
from streamserve.testing.simulator.transactions import TransactionCoordinator
from streamserve.testing.simulator.world import Machine, World
from streamserve.testing.simulator.writer import Effects

_EPOCHS_RETENTION_MS = 86_400_000
#: A process that died by itself is started again after this.
_RESTART_MS = 300.0
#: A run has a hundredth of the requests of an outage, and passes over as many.
_LEAST_SKIPPED = 10
#: A twin has read the states and waits; so soon it knows that the one before it has ended.
_TWIN_JOINS_MS = (0.5, 20.0)


class _QuietLearnt(LearntMetrics):
    def __init__(self) -> None: ...
    def heard(self, route: Route, state: StateRecord, learnt: Any) -> None: ...


class QuietMetrics(RoleMetrics):
    """Counts what a stage counts, in one dictionary of the run; no collectors."""

    def __init__(self, role: str, counts: dict[str, int]) -> None:
        self.role = role
        self.learnt = _QuietLearnt()
        self._tally = counts

    def count(self, effect: Count) -> None:
        key = f"{effect.what} {effect.label}"
        self._tally[key] = self._tally.get(key, 0) + effect.n

    def consumed(self, chunk: Chunk) -> None: ...
    def batch(self, effect: RunBatch) -> None: ...
    def batch_finished(self, event: BatchFinished) -> None: ...
    def predictions(self, block: Predictions) -> None: ...
    def dead_letters(self, letters: DeadLetters) -> None: ...
    def rebalanced(self, partitions: int) -> None: ...
    def fenced(self, partitions: int, fence_ms: float, look_ms: float) -> None: ...

    def lost(self, *, shut_out: bool) -> None:
        words = "shut out by a fence" if shut_out else "partition taken anew"
        self._tally[words] = self._tally.get(words, 0) + 1

    def follow_routes(self, routes: Mapping[str, Route]) -> None: ...
    def frozen(self, route: str, model: str, is_frozen: bool) -> None: ...
    def processes(self, states: Sequence[ProcessState]) -> None: ...
    def plans(self, figures: PlanFigures | None) -> None: ...
    def settle(self) -> None: ...
    def gauges(self, **_gauges: object) -> None: ...


class Environment:
    """What all processes of a run share."""

    def __init__(
        self,
        *,
        world: World,
        log: SimulatedLog,
        settings: Sequence[Settings],
        models: Sequence[Mapping[str, Mapping[str, SimulatedModel]]],
        weather: Weather,
    ) -> None:
        """`settings`, `models`: before and after the deploy; `models` by pool, then by model id."""
        self.world, self.log, self.settings, self.models, self.weather = world, log, settings, models, weather
        self.coordinator = Coordinator(log)
        self.static = False
        """Processes are static members of their groups."""
        self.variant_of: dict[str, int] = {}
        """A process's life -> 1 where it has the new config."""
        self.deploy_ms = float("inf")
        self.old_until_ms = 0.0
        """When the last process with the old config ended."""
        once = settings[0].app.delivery == "exactly_once"
        self.transactions = TransactionCoordinator(log) if once else None
        self.counts: dict[str, int] = {}
        self.ownerships: dict[tuple[str, int], list[tuple[float, str]]] = {}
        """(group, partition) -> when it was given to which process's life."""

    def assigned(self, group: str, partitions: Iterable[At], life: str) -> None:
        for at in partitions:
            self.ownerships.setdefault((group, at.partition), []).append((self.world.now, life))


class SimulatedProcess:
    """One process of the plan, through all its lives."""

    def __init__(self, form: Process, environment: Environment, told: Callable[[str, str], None]) -> None:
        """`told`: what happened to it, for the story: its name and words."""
        self.form = form
        self._env = environment
        self._told = told
        self.clock = MachineClock(environment.world.clock, rate=form.rate, skew_ms=form.skew_ms)
        self.machine: Machine | None = None
        self.services: list[RoleService] = []
        self.connections: SimulatedConnections | None = None
        self.effects = Effects()
        self._node: Node | None = None
        self.lives = 0
        self._variant = 0
        self.variant = 0
        """Of the config with which it is started next."""
        self.stopping = self._hands_over = False
        self.gone_until = 0.0
        """It is not started before."""
        self.troubles: list[str] = []
        """What it died of by itself."""
        self.graves: list[Machine] = []
        self.idle_at_the_end = True

    @property
    def life(self) -> str:
        return f"{self.form.name}#{self.lives}"

    @property
    def alive(self) -> bool:
        return self.machine is not None and not self.machine.dead

    def start(self) -> None:
        if self.alive:
            return
        env = self._env
        if env.world.now < self.gone_until:
            env.world.at(self.gone_until + env.world.delay(0, 100), self.start)
            return
        self.lives += 1
        self._variant = env.variant_of[self.life] = self.variant
        self.stopping = self._hands_over = False
        machine = self.machine = Machine(env.world, self.clock)
        effects = Effects()
        effects.crash_at, effects.send_fates, effects.commit_fates = (
            {},
            self.effects.send_fates,
            self.effects.commit_fates,
        )
        effects.used, effects.failed, effects.slow = self.effects.used, self.effects.failed, self.effects.slow
        effects.assigned, effects.begun = partial(self._assigned, machine), partial(self._begun, machine)
        settings = env.settings[self._variant]
        group = settings.group
        node = Node(
            name=self.life,
            machine=machine,
            log=env.log,
            coordinator=env.coordinator,
            session_ms=float(group.session_timeout_ms),
            heartbeat_ms=float(group.heartbeat_interval_ms),
            effects=effects,
            transactions=env.transactions,
            hands_over=lambda: self._hands_over and self.machine is machine,
        )
        self.effects = effects
        self._node = node
        self.connections = SimulatedConnections(node)
        app = app_of(settings, self.connections, _EPOCHS_RETENTION_MS)
        self.services = self._services(app, machine)
        self._told(self.form.name, "starts")
        machine.loop.create_task(self._live(machine))

    def _assigned(self, machine: Machine, group: str, partitions: Iterable[At]) -> None:
        if not machine.dead:
            self._env.assigned(group, partitions, self.life)

    def _begun(self, machine: Machine, group: str, partitions: Iterable[At]) -> None:
        if not machine.dead:
            self._told(self.form.name, f"owns {sorted(at.partition for at in partitions)} in {group}")

    def _services(self, app: App, machine: Machine) -> list[RoleService]:
        env, form = self._env, self.form

        def service(role: Role, **more: object) -> RoleService:
            return role_service(
                app,
                replace(role, plan=replace(role.plan, least_skipped=_LEAST_SKIPPED)),
                make=partial(RoleService, runner=make_runner, tune=lambda: None),
                clock=BrokerClock(monotonic=self.clock.monotonic, epoch=self.clock.epoch),
                metrics=QuietMetrics(form.role, env.counts),
                metrics_port=None,
                instance=form.name if env.static else None,
                **more,  # type: ignore[arg-type]
            )

        def make_runner(runtimes: Mapping[str, Runtime], finished: Callable[[BatchFinished], None]) -> SimulatedRunner:
            return SimulatedRunner(
                runtimes, finished, machine=machine, world=env.world, process=form.name, weather=env.weather
            )

        if form.role == "worker":
            return [service(worker_role(app, form.pool, dict(env.models[self._variant][form.pool]), form.name))]
        if form.role == "aggregate":
            return [service(aggregator_role(app))]
        joining = service(join_role(app), follows_states=False)
        return [service(update_role(app), waits_for_states=True, beside=[joining]), joining]

    async def _live(self, machine: Machine) -> None:
        """As a real process runs its services: the first to end stops the others; then it is gone."""
        warm = warmer(self._env.models[self._variant][self.form.pool]) if self.form.role == "worker" else None
        loop = asyncio.get_running_loop()
        services = self.services
        tasks = [loop.create_task(service.run(lambda _port: None, warm)) for service in services]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for service in services:
            service.request_stop()
        await asyncio.wait(tasks)
        errors = [error for task in tasks if (error := task.exception()) is not None]
        for error in errors:
            cause = f" ({error.__cause__!r})" if error.__cause__ is not None else ""
            self.troubles.append(f"{type(error).__name__}: {error}{cause}")
            if not isinstance(error, StreamserveError):
                self.troubles.append("not an error of ours")
        self._end(machine, "died: " + self.troubles[-1] if errors else "has stopped")
        if errors:
            self._env.world.after(_RESTART_MS, self.start)
        elif self._hands_over:
            self._env.world.after(self._env.world.delay(*_TWIN_JOINS_MS), self.start)

    def _end(self, machine: Machine, words: str) -> None:
        if not machine.dead:
            machine.kill()
            if not self._variant:
                self._env.old_until_ms = self._env.world.now
            self.graves.append(machine)
            self._told(self.form.name, words)

    def kill(self, words: str = "is killed") -> bool:
        """As kill -9; whether there was something to kill."""
        if self.machine is None or self.machine.dead:
            return False
        self._end(self.machine, words)
        return True

    def request_stop(self, *, hands_over: bool = False) -> bool:
        """As SIGTERM; `hands_over`: its twin takes its place as soon as it is gone."""
        machine = self.machine
        if machine is None or machine.dead:
            return False
        self.stopping, self._hands_over = True, hands_over
        for service in self.services:
            machine.loop.call_soon(service.request_stop)
        return True

    def follow_late(self, topics: Iterable[str], for_ms: float) -> bool:
        """It reads nothing more of these topics for so long; False where it is not there."""
        if self._node is None or not self.alive:
            return False
        self._node.follows_late.update(dict.fromkeys(topics, self._env.world.now + for_ms))
        return True

    @property
    def idle(self) -> bool:
        """Nothing is open in it; also true of one that is not there."""
        if not self.alive:
            return True
        return all(
            service.role.stage.idle
            and not service.loop.queued_records
            and (service.sweeper is None or not service.sweeper.requests_left)
            for service in self.services
        )

    @property
    def open_requests(self) -> int:
        if not self.alive:
            return 0
        sweepers = [service.sweeper.loop for service in self.services if service.sweeper is not None]
        return sum(loop.open_requests for loop in [*(service.loop for service in self.services), *sweepers])

    def bury(self) -> None:
        """At the end of the run."""
        self.idle_at_the_end = self.idle
        self.kill("the run is over")
        for machine in self.graves:
            machine.loop.bury()

    def forget(self) -> None:
        """Let go of what its lives were made of."""
        self.graves.clear()
        self.services.clear()
        self.machine = self.connections = self._node = None
