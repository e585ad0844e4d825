"""The roles of an app on its Kafka: settings in, a serving process out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How one process of a role is started."""

    instance: str | None = None
    """Name of this process among its like: a restart under the same name takes its partitions back at once."""
    metrics_port: int | None = None
    """None: the config's."""
    status_file: Path | None = None
    """Gets one line of JSON once the role serves."""
    loaded: Callable[[], None] = lambda: None
    """Called, and waited for, when all is loaded that needs no broker."""


class _Kafka:
    """`Connections` to a Kafka."""

    def __init__(self, settings: Settings, options: Mapping[str, Any]) -> None:
        self._settings = settings
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
    start.loaded()
    app = await _app(settings)
    role = worker_role(app, pool, runtimes, start.instance)
    service = role_service(
        app, role, instance=_instance(app, f"worker-{pool}", start), metrics_port=_port(settings, start)
    )
    await _serve([service], start, warmer(runtimes))


async def run_aggregate(settings: Settings, start: Start = Start()) -> None:
    """Write the terminal records of an app with several pools. Raises as `run_worker`; ConfigError in a fused app."""
    if settings.fused:
        raise ConfigError(
            f"{settings.path}: this app is fused: its pool's workers write the predictions themselves. "
            'Start `streamserve worker`, or set [app] fused = "never"'
        )
    start.loaded()
    app = await _app(settings)
    service = role_service(
        app,
        aggregator_role(app),
        instance=_instance(app, "aggregate", start),
        metrics_port=_port(settings, start),
    )
    await _serve([service], start, None)


async def run_learn(settings: Settings, start: Start = Start()) -> None:
    """Join feedback with predictions and learn from it: two stages in one process. Raises as `run_worker`."""
    start.loaded()
    app = await _app(settings)
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
    await _serve([updating, joining], start, None)


def _instance(app: App, kind: str, start: Start) -> str | None:
    return None if start.instance is None else f"{app.settings.app.name}.{kind}.{start.instance}"


def _port(settings: Settings, start: Start) -> int:
    return settings.metrics.port if start.metrics_port is None else start.metrics_port


async def _app(settings: Settings) -> App:
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
    return app_of(settings, _Kafka(settings, options), retention_ms)


async def _serve(services: list[RoleService], start: Start, warm: Callable[[Runner], Any] | None) -> None:
    """Run the services of one process; the first to die stops the others. The first one's port is told."""
    waiting = {service.role.name for service in services}
    first = services[0]

    def serving(service: RoleService, _port: int) -> None:
        waiting.discard(service.role.name)
        if not waiting:
            _tell(start.status_file, first.role.name, 0 if first.server is None else first.server.port)

    def stop() -> None:
        for service in services:
            service.request_stop()

    with stopping_by_signal(stop):
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(service.run(partial(serving, service), warm)) for service in services]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop()
        if pending:
            await asyncio.wait(pending)
        for task in (*done, *pending):
            task.result()


def _tell(path: Path | None, role: str, port: int) -> None:
    line = json.dumps({"event": "serving", "role": role, "metrics_port": port, "pid": os.getpid()})
    _log.info("serving: %s", line)
    if path is None:
        return
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):  # the supervisor's folder is gone: nobody waits for it
        unfinished.write_text(line + "\n")
        unfinished.replace(path)
