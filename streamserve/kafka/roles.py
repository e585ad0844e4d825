"""The roles of an app on its Kafka: settings in, a serving process out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from streamserve.errors import ConfigError
from streamserve.kafka import admin
from streamserve.kafka.clients import KafkaGroupReader, KafkaReader
from streamserve.kafka.composition import (
    App,
    aggregator_role,
    app_of,
    join_role,
    role_service,
    topics_of,
    update_role,
    worker_role,
)
from streamserve.kafka.delivery import exactly_once
from streamserve.kafka.hosting import load_pool, warmer
from streamserve.kafka.lookups import KafkaLookups
from streamserve.kafka.once import ExactlyOnce, Outputs
from streamserve.kafka.perform import Topics
from streamserve.kafka.ports import GroupReader, LogLookups, LogReader, LogWriter
from streamserve.kafka.rawfetch import RawReader
from streamserve.kafka.runner import Runner
from streamserve.kafka.security import connection_options
from streamserve.kafka.service import RoleService
from streamserve.kafka.signals import stopping_by_signal
from streamserve.kafka.writer import KafkaWriter
from streamserve.settings import Settings
from streamserve.topics.names import Kind

__all__ = ["Start", "run_aggregate", "run_learn", "run_worker", "topics_of"]

_log = logging.getLogger(__name__)


class Supervision(Protocol):
    """What a process tells whoever has started it, and hears from there (`streamserve.supervisor.parent`)."""

    def wait_for_go(self) -> None:
        """All is loaded that needs no broker; waits until the process may connect."""
        ...

    async def wait_to_join(self) -> None:
        """All is done but to join the group; waits until it may."""
        ...

    def has_twin(self) -> bool:
        """Whether another process, loaded already, joins under the same name as soon as this one has ended."""
        ...

    async def twin_prepared(self) -> None:
        """This process is to stop; waits, not for long, until its twin has only to join."""
        ...

    def gave_up(self) -> None:
        """This process has left its group and writes nothing any more."""
        ...


class Unsupervised:
    """`Supervision` of a process that nobody watches."""

    def wait_for_go(self) -> None:
        """It may at once."""

    async def wait_to_join(self) -> None:
        """It may at once."""

    def has_twin(self) -> bool:
        return False

    async def twin_prepared(self) -> None:
        """There is none."""

    def gave_up(self) -> None:
        """Nobody waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How one process of a role is started."""

    instance: str | None = None
    """Name of this process among its like: a restart under the same name takes its partitions back at once."""
    metrics_port: int | None = None
    """None: the config's."""
    status_file: Path | None = None
    """Gets one line of JSON once the role serves."""
    supervision: Supervision = field(default_factory=Unsupervised)


class _HandOver:
    """Whether this process leaves its partitions to its twin. One that stops in order does: no others are moved then.
    After an error it gives them up: its twin may be kept waiting."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self.in_order = False

    def __call__(self) -> bool:
        return self.in_order and self._supervision.has_twin()


class _Kafka:
    """`Connections` to a Kafka."""

    def __init__(self, settings: Settings, options: Mapping[str, Any], hands_over: _HandOver) -> None:
        self._settings = settings
        self._hands_over = hands_over
        self._group = settings.group
        self._options = options

    def group(self, *, topic: str, group: str, instance: str | None, committed_only: bool) -> GroupReader:
        return KafkaGroupReader(
            self._options,
            topic=topic,
            group=group,
            instance=instance,
            session_timeout_ms=self._group.session_timeout_ms,
            heartbeat_interval_ms=self._group.heartbeat_interval_ms,
            committed_only=committed_only,
            hands_over=self._hands_over,
        )

    def reader(self) -> LogReader:
        return KafkaReader(self._options)

    def lookups(self) -> LogLookups:
        return KafkaLookups(self._options)

    def writer(self) -> LogWriter:
        return KafkaWriter(self._options)

    def scan(self, *, committed_only: bool = False) -> LogReader:
        return RawReader(self._options, committed_only=committed_only)

    def once(
        self, outputs: Outputs | None, *, group: str, topics: Topics, writer: LogWriter, lookups: LogLookups
    ) -> ExactlyOnce | None:
        if not isinstance(writer, KafkaWriter) or not isinstance(lookups, KafkaLookups):
            raise TypeError("the writer and the look-ups are others than these connections make")
        return exactly_once(
            self._settings, self._options, outputs, group=group, topics=topics, writer=writer, lookups=lookups
        )


async def run_worker(settings: Settings, pool: str, start: Start = Start()) -> None:
    """Serve a pool's models until a signal asks to stop; in a fused app also the terminal records.

    Raises ConfigError, ModelError, BrokerError, TopicsDiffer: what keeps it from serving.
    """
    runtimes = load_pool(settings, pool)
    start.supervision.wait_for_go()
    hands_over = _HandOver(start.supervision)
    app = await _app(settings, hands_over)
    role = worker_role(app, pool, runtimes, start.instance)
    service = role_service(
        app, role, instance=_instance(app, f"worker-{pool}", start), metrics_port=_port(settings, start)
    )
    await _serve([service], start, hands_over, warmer(runtimes))


async def run_aggregate(settings: Settings, start: Start = Start()) -> None:
    """Write the terminal records of an app with several pools. Raises as `run_worker`; ConfigError in a fused app."""
    if settings.fused:
        raise ConfigError(
            f"{settings.path}: this app is fused: its pool's workers write the predictions themselves. "
            'Start `streamserve worker`, or set [app] fused = "never"'
        )
    start.supervision.wait_for_go()
    hands_over = _HandOver(start.supervision)
    app = await _app(settings, hands_over)
    service = role_service(
        app,
        aggregator_role(app),
        instance=_instance(app, "aggregate", start),
        metrics_port=_port(settings, start),
    )
    await _serve([service], start, hands_over)


async def run_learn(settings: Settings, start: Start = Start()) -> None:
    """Join feedback with predictions and learn from it: two stages in one process. Raises as `run_worker`."""
    start.supervision.wait_for_go()
    hands_over = _HandOver(start.supervision)
    app = await _app(settings, hands_over)
    joining = role_service(
        app, join_role(app), instance=_instance(app, "join", start), follows_states=False, metrics_port=None
    )
    updating = role_service(
        app,
        update_role(app),
        instance=_instance(app, "update", start),
        waits_for_states=True,
        metrics_port=_port(settings, start),
        beside=[joining],
    )
    await _serve([updating, joining], start, hands_over)


def _instance(app: App, kind: str, start: Start) -> str | None:
    return None if start.instance is None else f"{app.settings.app.name}.{kind}.{start.instance}"


def _port(settings: Settings, start: Start) -> int:
    return settings.metrics.port if start.metrics_port is None else start.metrics_port


async def _app(settings: Settings, hands_over: _HandOver) -> App:
    servers = settings.broker.bootstrap_servers
    if not servers:
        raise ConfigError(
            f"{settings.path}: no Kafka is named. Set [broker] bootstrap_servers, or "
            "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS; `streamserve up` starts a Kafka of its own"
        )
    security = connection_options(settings.broker.client)
    declared = await admin.declared_topics(settings, servers, security)
    await admin.verify(servers, declared, security, config=str(settings.path))
    options = {"bootstrap_servers": servers, **security}
    retention_ms = min(topic.retention_ms or 0 for topic in declared if topic.spec.kind is Kind.EPOCHS)
    return app_of(settings, _Kafka(settings, options, hands_over), retention_ms)


async def _serve(
    services: list[RoleService],
    start: Start,
    hands_over: _HandOver,
    warm: Callable[[Runner], Any] | None = None,
) -> None:
    """Run the services of one process; the first to die stops the others. The first one's port is told."""
    supervision, first = start.supervision, services[0]
    waiting = {service.role.name for service in services}
    unprepared = {service.role.name for service in services}
    all_prepared = asyncio.Event()

    def serving(service: RoleService, _port: int) -> None:
        waiting.discard(service.role.name)
        if not waiting:
            _tell(start.status_file, first.role.name, 0 if first.server is None else first.server.port)

    async def may_join(service: RoleService) -> None:
        unprepared.discard(service.role.name)
        if not unprepared:
            all_prepared.set()
        await all_prepared.wait()
        await supervision.wait_to_join()

    def stop() -> None:
        for service in services:
            service.request_stop()

    async def stop_in_order() -> None:
        hands_over.in_order = True
        await supervision.twin_prepared()
        stop()

    loop, leaving = asyncio.get_running_loop(), []
    with stopping_by_signal(lambda: leaving.append(loop.create_task(stop_in_order()))):
        for service in services:
            service.may_join = partial(may_join, service)
        tasks = [loop.create_task(service.run(partial(serving, service), warm)) for service in services]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop()
        if pending:
            await asyncio.wait(pending)
        for task in (*done, *pending):
            task.result()
    supervision.gave_up()


def _tell(path: Path | None, role: str, port: int) -> None:
    line = json.dumps({"event": "serving", "role": role, "metrics_port": port, "pid": os.getpid()})
    _log.info("serving: %s", line)
    if path is None:
        return
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):  # the supervisor's folder is gone: nobody waits for it
        unfinished.write_text(line + "\n")
        unfinished.replace(path)
