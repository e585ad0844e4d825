"""One fault, done once: an app is started, loaded, hurt, and judged by what stands in its predictions topic."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from streamserve.chaos.account import Account, ref_key, settle
from streamserve.chaos.app import App
from streamserve.chaos.clock import wrong_clock
from streamserve.chaos.cluster import Cluster
from streamserve.chaos.load import Answers, Hand, Load
from streamserve.chaos.processes import Roles
from streamserve.chaos.proxy import Proxy
from streamserve.chaos.scene import Fault, Options, Promise, Result, Scene, more_of
from streamserve.kafka import admin
from streamserve.kafka.brokers.ports import HOST
from streamserve.settings import Settings
from streamserve.supervisor.plan import ProcessPlan, processes
from streamserve.topics.names import Kind, topic_name

#: Until every request has its terminal record, once the load is over.
_SETTLE_S = 60.0
#: More for each request: what was passed over after a long outage is swept at a limited rate.
_SETTLED_PER_S = 2_000.0
_BOUNDED_DEADLINE_MS = 2_000
_SERVERS = "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS"


@contextmanager
def started(folder: Path, nodes: int = 1) -> Iterator[Cluster]:
    """A Kafka to do faults to; for several runs, one after the other."""
    cluster = Cluster(folder, nodes)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def run_fault(fault: Fault, app: App, cluster: Cluster, folder: Path, options: Options) -> Result:
    """Do one fault to a new copy of the app. `folder` gets logs and state. Raises StreamserveError where the app cannot
    be started or the fault cannot be done."""
    return asyncio.run(_Run(fault, app, cluster, folder, options).run())


@dataclass(frozen=True, slots=True)
class _Run:
    fault: Fault
    app: App
    cluster: Cluster
    folder: Path
    options: Options

    async def run(self) -> Result:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the broker's troubles are made here
        settings, overrides = self._settings()
        servers = self.cluster.servers
        declared = await admin.declared_topics(settings, servers, {})
        await admin.create(servers, declared, {})
        proxy = Proxy(HOST, self.cluster.proxy_port, self.cluster.second_port)
        await proxy.start()
        partitions = settings.app.partitions
        load = Load(
            servers,
            topic_name(settings.app.name, Kind.REQUESTS),
            partitions=partitions,
            request=self.app.request,
            route=next(iter(settings.routes)),
            rate_per_s=self.options.rate_per_s,
        )
        answers = Answers(servers, topic_name(settings.app.name, Kind.PREDICTIONS), partitions=partitions)
        scene = Scene(
            settings=settings,
            options=self.options,
            cluster=self.cluster,
            roles=self._roles(overrides),
            load=load,
            answers=answers,
            hand=Hand(servers),
            proxy=proxy,
            restarted=lambda more: self._roles({**overrides, **more}),
            wrong_clock=lambda ahead_s: wrong_clock(self.folder, ahead_s),
        )
        try:
            await self._start(scene, processes(settings))
            await self._hurt(scene)
            await asyncio.to_thread(scene.hand.delete, [topic.name for topic in declared])
            return self._result(scene)
        finally:
            await scene.roles.stop(scene.roles.names, at_once=True)
            await proxy.stop()
            await asyncio.to_thread(answers.close)

    def _settings(self) -> tuple[Settings, dict[str, str]]:
        overrides = {
            "STREAMSERVE_APP__NAME": f"chaos-{uuid.uuid4().hex[:8]}",
            "STREAMSERVE_APP__STATE_DIR": str(self.folder / "state"),
            "STREAMSERVE_GROUP__SESSION_TIMEOUT_MS": str(self.options.session_ms),
            "STREAMSERVE_BROKER__CLIENT__SECURITY_PROTOCOL": "PLAINTEXT",
            _SERVERS: self.cluster.proxied_servers if self.fault.proxied == "all" else self.cluster.servers,
            **self.fault.settings,
        }
        if self.fault.deadline_ms is not None:
            for route in self.app.settings(overrides).routes:
                overrides[f"STREAMSERVE_ROUTES__{route}__DEADLINE_MS"] = str(self.fault.deadline_ms)
        if self.fault.deadline_bounded:
            deadlines = [route.deadline_ms for route in self.app.settings(overrides).routes.values()]
            overrides["STREAMSERVE_APP__MAX_DEADLINE_MS"] = str(max(_BOUNDED_DEADLINE_MS, *deadlines))
        return self.app.settings(overrides), overrides

    def _roles(self, overrides: Mapping[str, str]) -> Roles:
        return Roles(
            config=self.app.config,
            folder=self.folder,
            servers=overrides[_SERVERS],
            settings=overrides,
            spares=self.fault.spares,
        )

    async def _start(self, scene: Scene, plans: tuple[ProcessPlan, ...]) -> None:
        second = more_of(plans, self.fault.processes, *self.fault.doubled)
        far = {_SERVERS: self.cluster.proxied_servers} if self.fault.proxied == "one" else {}
        await asyncio.gather(scene.roles.start(plans), scene.roles.start(second, far))
        if self.fault.spares:
            await scene.roles.have_spares()

    async def _hurt(self, scene: Scene) -> None:
        scene.load.start()
        await scene.last(self.options.before_s)
        await self.fault.inject(scene)
        await scene.last(max(self.options.after_s, self.fault.after_s))
        await asyncio.to_thread(scene.load.stop)
        acknowledged = scene.load.acknowledged
        deleted = len(_deleted(scene))
        settle_s = (_SETTLE_S + scene.load.sent / _SETTLED_PER_S) * self.options.patience
        await asyncio.to_thread(scene.answers.read_until, acknowledged, but=deleted, timeout_s=settle_s)
        # What a role may still have in its hands is written before the topic is read to its end.
        await scene.roles.stop(scene.roles.names)
        await asyncio.to_thread(scene.answers.read_to_end)

    def _result(self, scene: Scene) -> Result:
        route = next(iter(scene.settings.routes.values()))
        account = settle(
            scene.load.acknowledged,
            scene.answers.terminal,
            deadline_ms=route.deadline_ms,
            fault_ms=(scene.began_ms, scene.ended_ms),
            end_ms=scene.load.ended_ms,
            deleted=_deleted(scene),
            partitions=scene.settings.app.partitions,
        )
        promise = self.fault.promise(self.options, scene.lasted_s)
        return Result(
            fault=self.fault.name,
            form="fused" if scene.settings.fused else "split",
            rate_per_s=self.options.rate_per_s,
            lasted_s=scene.lasted_s,
            account=account,
            promise=promise,
            load_lag_s=scene.load.worst_lag_s,
            broken=(*scene.broken, *_broken(account, promise, self.options.patience)),
            logs=str(scene.roles.logs),
        )


def _deleted(scene: Scene) -> list[int]:
    below = [(ref_key(partition, 0), ref_key(partition, start)) for partition, start in scene.deleted_below.items()]
    return [key for key in scene.load.acknowledged.keys if any(low <= key < high for low, high in below)]


def _broken(account: Account, promise: Promise, patience: float) -> list[str]:
    gap_s, normal_s, twice = promise.gap_s * patience, promise.normal_s * patience, promise.twice * patience
    unanswered = int((promise.unanswered or 0) * patience)
    checks = {
        f"{account.lost} acknowledged requests have no terminal record": account.lost == 0,
        f"{account.unknown} terminal records belong to no request that was acknowledged": (
            account.unknown <= account.failed_sends
        ),
        f"{account.twice} requests have a second terminal record, promised are at most {twice:.0f}": (
            account.twice <= twice
        ),
        f"{account.deleted} requests are gone with the log": promise.deletes or account.deleted == 0,
        f"{account.error} requests ended as error": account.error == 0,
        f"{account.default + account.expired} requests got the default or expired, promised are at most {unanswered}": (
            promise.unanswered is None or account.default + account.expired <= unanswered
        ),
        f"no answer in time for {account.longest_gap_s:.2f} s, promised are at most {gap_s:.2f} s": (
            account.longest_gap_s <= gap_s
        ),
        f"service was normal after {account.normal_after_s:.2f} s, promised are at most {normal_s:.2f} s": (
            account.normal_after_s <= normal_s
        ),
    }
    return [words for words, kept in checks.items() if not kept]
