"""From an app's config to its roles: which stage, which topics, which encoders; and each role as a service.

What a role talks to comes in as `Clients`, so the same composition runs on Kafka and on a simulated log.

Long since each role is one declaration, and all of them are to be seen side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from streamserve.assembly import app_rules, model_rules
from streamserve.core.bounds import Bounds
from streamserve.core.codec import InputCodec
from streamserve.core.contexts import GLOBAL
from streamserve.core.effects import Count
from streamserve.core.epochs import EpochTable
from streamserve.core.events import StatesFetched
from streamserve.core.messages import DeadLetters
from streamserve.core.records import StateRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.around import frozen_models
from streamserve.core.stage import Stage
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.join import JoinOptions, JoinStage
from streamserve.core.stages.update import UpdateOptions, UpdateStage
from streamserve.core.stages.worker import WorkerStage
from streamserve.errors import ContractError
from streamserve.kafka import intake
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.codecs.decisions import decode_decision
from streamserve.kafka.codecs.inputs import INPUTS, input_codec
from streamserve.kafka.codecs.learning import is_keyed_key
from streamserve.kafka.configs import Configs
from streamserve.kafka.delivery import join_outputs, terminal_outputs, update_outputs
from streamserve.kafka.freezes import Freezes
from streamserve.kafka.heads import LiveHeads
from streamserve.kafka.hosting import announcement, form_of_rows, with_lanes
from streamserve.kafka.loop import Limits, StageLoop, Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.once import ExactlyOnce, Outputs
from streamserve.kafka.perform import Topics
from streamserve.kafka.plan import Plan
from streamserve.kafka.ports import At, Chunk, GroupReader, LogLookups, LogReader, LogWriter
from streamserve.kafka.service import Clients, Role, RoleService
from streamserve.kafka.states import KeyedStates, StateDecoder, StatesFollower
from streamserve.kafka.window_store import ANSWERS_BYTES, RocksWindow, window_folder
from streamserve.runtimes.base import Runtime
from streamserve.settings import Settings
from streamserve.topics.names import Kind, topic_name


class Connections(Protocol):
    """Makes the clients of one process."""

    def group(self, *, topic: str, group: str, instance: str | None, committed_only: bool) -> GroupReader: ...

    def reader(self) -> LogReader: ...

    def lookups(self) -> LogLookups: ...

    def writer(self) -> LogWriter: ...

    def scan(self, *, committed_only: bool = False) -> LogReader:
        """For look-ups: reads on where a partition ends in a marker."""
        ...

    def once(
        self, outputs: Outputs | None, *, group: str, topics: Topics, writer: LogWriter, lookups: LogLookups
    ) -> ExactlyOnce | None:
        """What sees to it that these outputs stand in the log once; None where delivery is at least once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What every role needs of an app."""

    settings: Settings
    rules: AppRules
    topics: Topics
    connections: Connections
    codecs: Mapping[str, InputCodec]
    epochs_retention_ms: int


def app_of(settings: Settings, connections: Connections, epochs_retention_ms: int) -> App:
    """Raises ConfigError on a policy that cannot be made."""
    # Of every form: a route that comes later may have another one.
    codecs: dict[str, InputCodec] = {name: input_codec(name, settings.app.max_request_bytes) for name in INPUTS}
    return App(
        settings=settings,
        rules=app_rules(settings),
        topics=topics_of(settings.app.name),
        connections=connections,
        codecs=codecs,
        epochs_retention_ms=epochs_retention_ms,
    )


def topics_of(app: str) -> Topics:
    """Full names of an app's topics."""
    kinds = (Kind.REQUESTS, Kind.ANSWERS, Kind.PREDICTIONS, Kind.FEEDBACK, Kind.OUTCOMES, Kind.EPOCHS)
    states = (Kind.POLICY, Kind.CONTEXTS)
    names = {kind.value: topic_name(app, kind) for kind in (*kinds, *states)}
    return Topics(**names, dlq=topic_name(app, Kind.DLQ))


def worker_role(app: App, pool: str, runtimes: dict[str, Runtime], instance: str | None) -> Role:
    """A process of a pool; in a fused app it also writes the terminal records."""
    settings = app.settings
    models = with_lanes(form_of_rows(model_rules(settings, pool), runtimes), runtimes)
    epochs = EpochTable(app.rules)
    if settings.fused:
        stage: Stage = FusedStage(app.rules, models, app.codecs, epochs, pool=pool)
        sweeps: Stage | None = AggregatorStage(app.rules, epochs, app.codecs, sweeps=True)
        plan = _plan(
            settings,
            group="terminal",
            driving=app.topics.requests,
            predictions=app.topics.predictions,
            skips_after_ms=_oldest_ms(app.rules),
        )
    else:
        stage = WorkerStage(app.rules, models, app.codecs, epochs, pool=pool)
        sweeps = None
        plan = _plan(settings, group=f"pool.{pool}", driving=app.topics.requests, skips_after_ms=_oldest_ms(app.rules))
    return Role(
        name=f"worker {pool}",
        stage=stage,
        driving_kind="requests",
        wiring=Wiring(driving=app.topics.requests, events={app.topics.requests: intake.requests_event}),
        plan=plan,
        topics=app.topics,
        encoders=intake.encoders(app.topics),
        runtimes=runtimes,
        announcement=announcement(settings, pool, instance, runtimes),
        pool=pool,
        sweeps=sweeps,
        once=terminal_outputs(app.topics) if settings.fused else None,
        asks_time=_time_asked_at(app),
        limits=_limits(app.rules.bounds),
    )


def aggregator_role(app: App) -> Role:
    """Writes the terminal records of an app with several pools."""
    topics = app.topics
    epochs = EpochTable(app.rules)
    return Role(
        name="aggregate",
        stage=AggregatorStage(app.rules, epochs, app.codecs),
        sweeps=AggregatorStage(app.rules, epochs, app.codecs, sweeps=True),
        once=terminal_outputs(topics),
        driving_kind="requests",
        wiring=Wiring(
            driving=topics.requests,
            events={topics.requests: intake.requests_event},
            rejecting={topics.answers: intake.answers_event},
            quiet=frozenset({topics.requests}),  # their answers come later
        ),
        plan=_plan(
            app.settings,
            group="terminal",
            driving=topics.requests,
            predictions=topics.predictions,
            followed={"answers": topics.answers},
            skips_after_ms=_oldest_ms(app.rules),
        ),
        topics=topics,
        encoders=intake.encoders(topics),
        asks_time=_time_asked_at(app),
        limits=_limits(app.rules.bounds),
    )


def join_role(app: App) -> Role:
    """Feedback meets its prediction."""
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
        max_waiting=app.rules.bounds.waiting_feedback,
        max_unacknowledged=app.rules.bounds.unacknowledged_records,
        max_remembered=app.rules.bounds.remembered_feedback,
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
        once=join_outputs(topics, partitions),
        asks_time=_time_asked_at(app),
        limits=_limits(app.rules.bounds),
    )


def update_role(app: App) -> Role:
    """Outcomes teach the policies' states."""
    topics, learn = app.topics, app.settings.learn
    options = UpdateOptions(
        partitions=app.settings.app.partitions,
        publish_every_outcomes=learn.publish_every_outcomes,
        publish_every_ms=learn.publish_every_ms,
        republish_ms=app.epochs_retention_ms // 4,
        keep_ms=2 * app.rules.max_deadline_ms + app.rules.epoch_delay_ms,
        max_unacknowledged=app.rules.bounds.unacknowledged_records,
        max_remembered=app.rules.bounds.remembered_feedback,
    )
    return Role(
        name="update",
        stage=UpdateStage(app.rules, options),
        driving_kind="outcomes",
        wiring=Wiring(driving=topics.outcomes, events={}, rejecting={topics.outcomes: intake.outcomes_event}),
        plan=_plan(app.settings, group="update", driving=topics.outcomes, rebuilds=True),
        topics=topics,
        encoders=intake.encoders(topics),
        once=update_outputs(topics),
        asks_time=_time_asked_at(app),
        limits=_limits(app.rules.bounds),
    )


def _limits(bounds: Bounds) -> Limits:
    return Limits(
        most_records=bounds.fetched_records,
        most_bytes=bounds.fetched_bytes,
        most_unacknowledged=bounds.unacknowledged_records,
    )


def _time_asked_at(app: App) -> At:
    """A tombstone in a compacted topic: nobody reads it, and it goes by itself."""
    return At(topic_name(app.settings.app.name, Kind.MODELS), 0)


def _oldest_ms(rules: AppRules) -> int:
    """A request that came so long before the newest one can no longer be in time, whatever budget it names."""
    return rules.max_deadline_ms


def _plan(settings: Settings, *, group: str, driving: str, **more: Any) -> Plan:
    return Plan(
        group=f"{settings.app.name}.{group}",
        driving=driving,
        commit_interval_ms=settings.group.commit_interval_ms,
        lease_ms=settings.group.session_timeout_ms,
        partitions=settings.app.partitions,
        **more,
    )


def role_service(
    app: App,
    role: Role,
    *,
    instance: str | None = None,
    make: Callable[..., RoleService] = RoleService,
    clock: BrokerClock | None = None,
    metrics: RoleMetrics | None = None,
    metrics_port: int | None = 0,
    waits_for_states: bool = False,
    follows_states: bool = True,
    beside: Sequence[RoleService] = (),
) -> RoleService:
    """`instance`: of a static member of the group. `make`, `clock`, `metrics`: others than a real process has."""
    connections = app.connections
    writer, lookups = connections.writer(), connections.lookups()
    clients = Clients(
        group=connections.group(
            topic=role.plan.driving,
            group=role.plan.group,
            instance=instance,
            committed_only=role.driving_kind == "requests",
        ),
        followed=connections.reader() if role.plan.followed else None,
        scan=connections.scan,
        sweep=partial(connections.scan, committed_only=True),
        lookups=lookups,
        writer=writer,
        once=connections.once(role.once, group=role.plan.group, topics=role.topics, writer=writer, lookups=lookups),
    )
    metrics = metrics or RoleMetrics(role.name, app.settings.app.name, app.rules.routes)
    configs = Configs(app.settings, app.rules)
    heads = None if role.runtimes is None else LiveHeads(role.runtimes, metrics.count)
    learns = follows_states and any(route.learns for route in app.rules.routes)
    service = make(
        role,
        clients,
        clock=clock or BrokerClock(),
        metrics=metrics,
        states=partial(_follower, app, configs, metrics, dead_letters=waits_for_states, beside=beside, heads=heads)
        if follows_states
        else None,
        configs=configs if follows_states else None,
        heads=heads if follows_states else None,
        waits_for_states=waits_for_states and learns,
        metrics_port=metrics_port,
        beside=beside,
    )
    writer.may_send = service.ownership.holds_lease  # the loop has asked before its turn, which may have been long ago
    return service


def _follower(
    app: App,
    configs: Configs,
    metrics: RoleMetrics,
    loop: StageLoop,
    clock: BrokerClock,
    *,
    dead_letters: bool,
    beside: Sequence[RoleService],
    heads: LiveHeads | None = None,
) -> StatesFollower:
    """`dead_letters`: malformed states are kept as such, not only counted (by one role, not by each). `beside`: they
    are told of routes, too."""
    routes = {route.name: route for route in app.rules.routes}
    freezes = Freezes(metrics.frozen)

    def switches(chunk: Chunk) -> StatesFetched:
        fetched = intake.switches_of(chunk)
        freezes.switched(fetched.switches)
        if heads is not None:
            heads.take(chunk)
        changed = configs.take(chunk)
        if not changed:
            return fetched
        routes.update({route.name: route for record in changed for route in record.routes})
        metrics.follow_routes(routes)
        fetched = replace(fetched, routes=changed)
        for other in beside:
            other.metrics.follow_routes(routes)
            other.loop.post(StatesFetched(states=(), routes=changed))
        return fetched

    def reject(letters: DeadLetters) -> None:
        if dead_letters:
            loop.reject(letters)
        else:
            metrics.count(Count(what=letters.source, label="invalid", n=len(letters.offsets)))

    def decoder(source: str, decode: intake.DecodeState, skips: intake.Skips) -> StateDecoder:
        def decoded(value: bytes | None, at: At, offset: int, append_ms: int) -> StateRecord:
            state = decode(value, at, offset, append_ms)
            route = routes.get(state.route)
            if route is not None and state.policy == route.policy.name:
                learnt = _learnt(state, route)
                metrics.learnt.heard(route, state, learnt)
                if state.context == GLOBAL:
                    freezes.heard(route, frozen_models(route.policy, learnt))
            return state

        return lambda chunk: intake.states_of(chunk, decoded, source, reject, skips)

    def not_wanted(at: At, key: bytes | None, _value: bytes | None) -> bool:
        """A learner looks at all: it counts the contexts whose key has moved."""
        return not dead_letters and at.partition not in follower.owned and is_keyed_key(key)

    def not_keyed(_at: At, key: bytes | None, value: bytes | None) -> bool:
        return value is None or not is_keyed_key(key)

    from_epochs, from_contexts = (
        decoder("epochs", intake.epoch_of, not_keyed),
        decoder("contexts", intake.snapshot_of, not_keyed),
    )
    keyed = KeyedStates(
        contexts_topic=app.topics.contexts,
        decode=lambda chunk: (from_contexts if chunk.at.topic == app.topics.contexts else from_epochs)(chunk),
        scan=app.connections.scan,
        keep_ms=app.rules.max_deadline_ms + app.rules.epoch_delay_ms,
    )
    follower = StatesFollower(
        epochs_topic=app.topics.epochs,
        policy_topic=app.topics.policy,
        models_topic=topic_name(app.settings.app.name, Kind.MODELS),
        partitions=app.settings.app.partitions,
        decode={
            app.topics.epochs: decoder("epochs", intake.epoch_of, not_wanted),
            app.topics.policy: decoder("policy", intake.snapshot_of, lambda _at, _key, _value: False),
            topic_name(app.settings.app.name, Kind.MODELS): switches,
        },
        reader=app.connections.reader(),
        lookups=app.connections.lookups(),
        clock=clock,
        post=loop.post,
        epoch_delay_ms=app.rules.epoch_delay_ms,
        keyed=keyed if any(route.learns and route.keyed for route in routes.values()) else None,
    )
    return follower


def _learnt(state: StateRecord, route: Route) -> Any:
    """The policy's state. Raises ContractError where the policy cannot read the state that bears its name."""
    try:
        return route.policy.load(state.data, route.models)
    except ContractError as error:
        raise ContractError(f"the state {state.partition}-{state.epoch} of route {route.name}: {error}") from error
