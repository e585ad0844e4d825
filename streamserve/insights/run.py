"""`streamserve insights` as a process: settings in, a serving Faust app out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from streamserve.assembly import app_rules
from streamserve.errors import BrokerError, ConfigError
from streamserve.insights.app import InsightsApp
from streamserve.insights.drift import DriftRule
from streamserve.insights.slices import InsightRules
from streamserve.kafka import admin
from streamserve.kafka.brokers import state_folder
from streamserve.kafka.brokers.ports import free_ports, is_free
from streamserve.kafka.http import HOST, Pages, StatusServer
from streamserve.kafka.logs import about
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.roles import Start
from streamserve.kafka.security import connection_options
from streamserve.kafka.signals import stopping_by_signal
from streamserve.settings import InsightsSettings, Settings

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.3
#: A member of the group that was killed counts as one for its session; a little more for the broker to notice.
_GONE_S = 3.0
_GAUGES_EVERY_S = 1.0


async def run_insights(settings: Settings, start: Start) -> None:
    """Serve until a signal asks to stop. Raises ConfigError, BrokerError, TopicsDiffer: what keeps it from serving."""
    wanted = settings.insights or InsightsSettings()
    rules = rules_of(settings, wanted)
    start.supervision.wait_for_go()
    servers = settings.broker.bootstrap_servers
    if not servers:
        raise ConfigError(
            f"{settings.path}: no Kafka is named. Set [broker] bootstrap_servers, or "
            "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS; `streamserve up` starts a Kafka of its own, and insights with it "
            "where the config has [insights]"
        )
    security = connection_options(settings.broker.client)
    declared = await admin.declared_topics(settings, servers, security)
    await admin.verify(servers, declared, security, config=str(settings.path))
    await start.supervision.wait_to_join()
    instance = None if start.instance is None else f"{settings.app.name}.insights.{start.instance}"
    await _alone(settings, servers, security, instance)
    if wanted.web_port and not is_free(wanted.web_port):
        raise ConfigError(
            f"port {wanted.web_port} for the web view of insights is taken on {HOST}. "
            "Choose another by [insights] web_port; 0 takes any free one"
        )
    app = InsightsApp(
        settings,
        rules,
        options={"bootstrap_servers": servers, **security},
        replication=declared[0].replication,
        web_port=wanted.web_port or free_ports(1)[0],
        folder=_folder(settings),
        instance=instance,
    )
    await _serve(app, start)
    start.supervision.gave_up()


def rules_of(settings: Settings, wanted: InsightsSettings) -> InsightRules:
    """What the config says of insights and routes."""
    return InsightRules(
        routes={route.name: route for route in app_rules(settings).routes},
        window_ms=wanted.window_ms,
        most_cells=wanted.most_rows,
        drift=DriftRule(threshold=wanted.drift_threshold, tolerance=wanted.drift_tolerance),
    )


def _folder(settings: Settings) -> Path:
    """Where Faust keeps its files: next to nothing, the state is in the changelog."""
    folder = (settings.app.state_dir or state_folder(settings.app.name).parent).absolute() / "insights"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be made ({error.strerror}); set [app] state_dir, or the variable "
            "STREAMSERVE_STATE, to a folder that can be written"
        ) from error
    return folder


async def _alone(settings: Settings, servers: str, security: admin.ClientOptions, instance: str | None) -> None:
    """Wait until nobody is in the group, not longer than one who was killed counts as a member."""
    group = f"{settings.app.name}.insights"
    give_up_s = time.monotonic() + settings.group.session_timeout_ms / 1000 + _GONE_S
    while (members := await admin.members(servers, group, security, but=instance)) != []:
        if time.monotonic() > give_up_s:
            if members is None:  # Faust waits for one
                return
            raise BrokerError(
                f"insights of {settings.app.name} run already: {', '.join(members)} in group {group}. "
                "One process makes the insights of an app: stop that one first"
            )
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _serve(app: InsightsApp, start: Start) -> None:
    settings, stop = app.settings, asyncio.Event()
    metrics = RoleMetrics("insights", settings.app.name)

    def not_ready() -> list[str]:
        return [] if app.recovered.is_set() else ["the changelog is being read"]

    pages = Pages(
        metrics=metrics.page,
        alive=lambda: [] if app.failure is None else [str(app.failure)],
        ready=not_ready,
        status=lambda: metrics.status(time.monotonic() * 1000) | {"web_port": app.web_port},
    )
    server = StatusServer(pages, settings.metrics.port if start.metrics_port is None else start.metrics_port)
    await server.start()
    looking = asyncio.create_task(_look(app, metrics))
    telling = asyncio.create_task(_tell(app, start, server.port))
    try:
        with stopping_by_signal(stop.set):
            await app.run(stop)
    finally:
        for task in (looking, telling):
            task.cancel()
        await asyncio.gather(looking, telling, return_exceptions=True)
        await server.stop()


async def _tell(app: InsightsApp, start: Start, port: int) -> None:
    """Once it serves."""
    await app.recovered.wait()
    line = json.dumps({"event": "serving", "role": "insights", "metrics_port": port, "pid": os.getpid()})
    _log.info("serving: %s", line)
    _log.info("the web view is at http://%s:%d/insights/", HOST, app.web_port, extra=about("serve"))
    if start.status_file is not None:
        unfinished = start.status_file.with_name(f"{start.status_file.name}.{os.getpid()}")
        with suppress(FileNotFoundError):  # the supervisor's folder is gone: nobody waits for it
            unfinished.write_text(line + "\n")
            unfinished.replace(start.status_file)


async def _look(app: InsightsApp, metrics: RoleMetrics) -> None:
    """Keep the gauges."""
    while True:
        await asyncio.sleep(_GAUGES_EVERY_S)
        if app.recovered.is_set():
            metrics.read_records(app.consumed)
            metrics.gauges(
                lags=app.lags(),
                queued=0,
                open_requests=0,
                fills=app.board.fills(),
                clock_ms=(0.0, 0.0),
                now_ms=time.monotonic() * 1000,
            )
