"""The roles of an app on its Kafka: settings in, a serving process out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from streamserve.assembly import app_rules, model_rules
from streamserve.core.codec import InputCodec
from streamserve.core.effects import Count
from streamserve.core.epochs import EpochTable
from streamserve.core.messages import DeadLetters
from streamserve.core.records import StateRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.stage import Stage
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.join import JoinOptions, JoinStage
from streamserve.core.stages.update import UpdateOptions, UpdateStage
from streamserve.core.stages.worker import WorkerStage
from streamserve.errors import ConfigError, ContractError, MalformedRecord
from streamserve.kafka import admin, intake
from streamserve.kafka.clients import KafkaGroupReader, KafkaLookups, KafkaReader
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.codecs.decisions import decode_decision
from streamserve.kafka.codecs.inputs import input_codec
from streamserve.kafka.hosting import announcement, form_of_rows, load_pool, warmer
from streamserve.kafka.loop import StageLoop, Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.ownership import Plan
from streamserve.kafka.perform import Topics
from streamserve.kafka.ports import At
from streamserve.kafka.runner import ModelRunner
from streamserve.kafka.security import connection_options
from streamserve.kafka.service import Clients, Role, RoleService
from streamserve.kafka.signals import stopping_by_signal
from streamserve.kafka.states import StateDecoder, StatesFollower
from streamserve.kafka.window_store import ANSWERS_BYTES, RocksWindow, window_folder
from streamserve.kafka.writer import KafkaWriter
from streamserve.settings import Settings
from streamserve.topics.names import Kind, topic_name

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _App:
    """What every role needs of an app."""

    settings: Settings
    rules: AppRules
    topics: Topics
    options: Mapping[str, Any]
    codecs: Mapping[str, InputCodec]
    epochs_retention_ms: int


def topics_of(app: str) -> Topics:
    """Full names of an app's topics."""
    kinds = (Kind.REQUESTS, Kind.ANSWERS, Kind.PREDICTIONS, Kind.FEEDBACK, Kind.OUTCOMES, Kind.EPOCHS, Kind.POLICY)
    names = {kind.value: topic_name(app, kind) for kind in kinds}
    return Topics(**names, dlq=topic_name(app, Kind.DLQ))


async def run_worker(settings: Settings, pool: str, start: Start = Start()) -> None:
    """Serve a pool's models until a signal asks to stop; in a fused app also the terminal records.

    Raises ConfigError, ModelError, BrokerError, TopicsDiffer: what keeps it from serving.
    """
    runtimes = load_pool(settings, pool)
    start.loaded()
    app = await _app(settings)
    models = form_of_rows(model_rules(settings, pool), runtimes)
    epochs = EpochTable(app.rules)
    if settings.fused:
        stage: Stage = FusedStage(app.rules, models, app.codecs, epochs)
        sweeps: Stage | None = AggregatorStage(app.rules, epochs, app.codecs)
        plan = _plan(
            settings,
            group="terminal",
            driving=app.topics.requests,
            predictions=app.topics.predictions,
            skips_after_ms=_oldest_ms(app.rules),
        )
    else:
        stage = WorkerStage(app.rules, models, app.codecs, epochs)
        sweeps = None
        plan = _plan(settings, group=f"pool.{pool}", driving=app.topics.requests, skips_after_ms=_oldest_ms(app.rules))
    wiring = Wiring(driving=app.topics.requests, events={app.topics.requests: intake.requests_event})
    role = Role(
        name=f"worker {pool}",
        stage=stage,
        driving_kind="requests",
        wiring=wiring,
        plan=plan,
        topics=app.topics,
        encoders=intake.encoders(app.topics),
        runtimes=runtimes,
        announcement=announcement(settings, pool, start.instance, sorted(runtimes)),
        sweeps=sweeps,
    )
    await _serve([_service(app, role, start, f"worker-{pool}")], start, warmer(runtimes))


async def run_aggregate(settings: Settings, start: Start = Start()) -> None:
    """Write the terminal records of an app with several pools. Raises as `run_worker`; ConfigError in a fused app."""
    if settings.fused:
        raise ConfigError(
            f"{settings.path}: this app is fused: its pool's workers write the predictions themselves. "
            'Start `streamserve worker`, or set [app] fused = "never"'
        )
    start.loaded()
    app = await _app(settings)
    topics = app.topics
    epochs = EpochTable(app.rules)
    role = Role(
        name="aggregate",
        stage=AggregatorStage(app.rules, epochs, app.codecs),
        sweeps=AggregatorStage(app.rules, epochs, app.codecs),
        driving_kind="requests",
        wiring=Wiring(
            driving=topics.requests,
            events={topics.requests: intake.requests_event},
            rejecting={topics.answers: intake.answers_event},
            quiet=frozenset({topics.requests}),  # their answers come later
        ),
        plan=_plan(
            settings,
            group="terminal",
            driving=topics.requests,
            predictions=topics.predictions,
            followed={"answers": topics.answers},
            skips_after_ms=_oldest_ms(app.rules),
        ),
        topics=topics,
        encoders=intake.encoders(topics),
    )
    await _serve([_service(app, role, start, "aggregate")], start, None)


async def run_learn(settings: Settings, start: Start = Start()) -> None:
    """Join feedback with predictions and learn from it: two stages in one process. Raises as `run_worker`."""
    start.loaded()
    app = await _app(settings)
    join, update = _join_role(app), _update_role(app)
    joining = _service(app, join, start, "join", follows_states=False, serves_pages=False)
    updating = _service(app, update, start, "update", waits_for_states=True, beside=[joining])
    await _serve([updating, joining], start, None)


def _join_role(app: _App) -> Role:
    topics, learn = app.topics, app.settings.learn
    partitions = app.settings.app.partitions
    share_bytes = learn.window_bytes // partitions
    predictions_bytes, answers_bytes = share_bytes * 3 // 4, share_bytes // 4
    store = None
    if learn.window_store == "rocksdb":
        store = RocksWindow(window_folder(app.settings), predictions_bytes)
        answers_bytes = min(answers_bytes, ANSWERS_BYTES // partitions)
    options = JoinOptions(
        partitions=partitions,
        window_ms=learn.join_window_ms,
        window_bytes=predictions_bytes,
        answers_bytes=answers_bytes,
    )
    return Role(
        name="join",
        stage=JoinStage(app.rules, options, decode_decision, intake.late_answers, store),
        driving_kind="feedback",
        wiring=Wiring(
            driving=topics.feedback,
            events={topics.predictions: intake.predictions_event},
            rejecting={topics.feedback: intake.feedback_event, topics.answers: intake.raw_answers_event},
        ),
        plan=_plan(
            app.settings,
            group="join",
            driving=topics.feedback,
            rebuilds=True,
            followed={"predictions": topics.predictions, "answers": topics.answers},
        ),
        topics=topics,
        encoders=intake.encoders(topics),
    )


def _update_role(app: _App) -> Role:
    topics, learn = app.topics, app.settings.learn
    options = UpdateOptions(
        partitions=app.settings.app.partitions,
        publish_every_outcomes=learn.publish_every_outcomes,
        publish_every_ms=learn.publish_every_ms,
        republish_ms=app.epochs_retention_ms // 4,
    )
    return Role(
        name="update",
        stage=UpdateStage(app.rules, options),
        driving_kind="outcomes",
        wiring=Wiring(driving=topics.outcomes, events={}, rejecting={topics.outcomes: intake.outcomes_event}),
        plan=_plan(app.settings, group="update", driving=topics.outcomes, rebuilds=True),
        topics=topics,
        encoders=intake.encoders(topics),
    )


def _oldest_ms(rules: AppRules) -> int:
    """A request that came so long before the newest one can no longer be in time, whatever budget it names."""
    return rules.max_deadline_ms


def _plan(settings: Settings, *, group: str, driving: str, **more: Any) -> Plan:
    return Plan(
        group=f"{settings.app.name}.{group}",
        driving=driving,
        commit_interval_ms=settings.group.commit_interval_ms,
        lease_ms=settings.group.session_timeout_ms,
        **more,
    )


async def _app(settings: Settings) -> _App:
    servers = settings.broker.bootstrap_servers
    if not servers:
        raise ConfigError(
            f"{settings.path}: no Kafka is named. Set [broker] bootstrap_servers, or "
            "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS; `streamserve up` starts a Kafka of its own"
        )
    security = connection_options(settings.broker.client)
    declared = await admin.declared_topics(settings, servers, security)
    await admin.verify(servers, declared, security, config=str(settings.path))
    codecs: dict[str, InputCodec] = {
        route.input: input_codec(route.input, settings.app.max_request_bytes) for route in settings.routes.values()
    }
    return _App(
        settings=settings,
        rules=app_rules(settings),
        topics=topics_of(settings.app.name),
        options={"bootstrap_servers": servers, **security},
        codecs=codecs,
        epochs_retention_ms=min(topic.retention_ms or 0 for topic in declared if topic.spec.kind is Kind.EPOCHS),
    )


def _service(
    app: _App,
    role: Role,
    start: Start,
    kind: str,
    *,
    waits_for_states: bool = False,
    follows_states: bool = True,
    serves_pages: bool = True,
    beside: Sequence[RoleService] = (),
) -> RoleService:
    settings, options = app.settings, app.options
    instance = None if start.instance is None else f"{settings.app.name}.{kind}.{start.instance}"
    clients = Clients(
        group=KafkaGroupReader(
            options,
            topic=role.plan.driving,
            group=role.plan.group,
            instance=instance,
            session_timeout_ms=settings.group.session_timeout_ms,
            heartbeat_interval_ms=settings.group.heartbeat_interval_ms,
            committed_only=role.driving_kind == "requests",
        ),
        followed=KafkaReader(options) if role.plan.followed else None,
        scan=lambda: KafkaReader(options),
        lookups=KafkaLookups(options),
        writer=KafkaWriter(options),
    )
    metrics = RoleMetrics(role.name, settings.app.name, app.rules.routes)
    port = settings.metrics.port if start.metrics_port is None else start.metrics_port
    learns = follows_states and any(route.learns for route in app.rules.routes)
    return RoleService(
        role,
        clients,
        clock=BrokerClock(),
        metrics=metrics,
        states=partial(_follower, app, metrics, waits_for_states) if learns else None,
        waits_for_states=waits_for_states and learns,
        metrics_port=port if serves_pages else None,
        beside=beside,
    )


def _follower(
    app: _App, metrics: RoleMetrics, dead_letters: bool, loop: StageLoop, clock: BrokerClock
) -> StatesFollower:
    """`dead_letters`: malformed states are kept as such, not only counted (by one role, not by each)."""
    routes = {route.name: route for route in app.rules.routes}

    def reject(letters: DeadLetters) -> None:
        if dead_letters:
            loop.reject(letters)
        else:
            metrics.count(Count(what=letters.source, label="invalid", n=len(letters.offsets)))

    def decoder(source: str, decode: intake.DecodeState) -> StateDecoder:
        def decoded(value: bytes | None, at: At, offset: int, append_ms: int) -> StateRecord:
            state = decode(value, at, offset, append_ms)
            route = routes.get(state.route)
            if route is not None and state.policy == route.policy.name:
                weights = _weights(state, route)
                metrics.weights(route.name, dict(zip(route.models, weights, strict=True)))
            return state

        return lambda chunk: intake.states_of(chunk, decoded, source, reject)

    return StatesFollower(
        epochs_topic=app.topics.epochs,
        policy_topic=app.topics.policy,
        partitions=app.settings.app.partitions,
        decode={
            app.topics.epochs: decoder("epochs", intake.epoch_of),
            app.topics.policy: decoder("policy", intake.snapshot_of),
        },
        reader=KafkaReader(app.options),
        lookups=KafkaLookups(app.options),
        clock=clock,
        post=loop.post,
        epoch_delay_ms=app.rules.epoch_delay_ms,
    )


def _weights(state: StateRecord, route: Route) -> list[float]:
    """Raises MalformedRecord where the policy cannot read the state that bears its name."""
    try:
        learnt = route.policy.load(state.data, route.models)
    except ContractError as error:
        raise MalformedRecord(f"the state {state.partition}-{state.epoch} of route {route.name}: {error}") from error
    weights: list[float] = route.policy.distribution(learnt, route.models).weights.tolist()
    return weights


async def _serve(services: list[RoleService], start: Start, warm: Callable[[ModelRunner], Any] | None) -> None:
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
