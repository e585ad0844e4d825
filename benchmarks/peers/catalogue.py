"""Every peer: how it is set up and started, and how many requests make a drain of it long enough."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.job import ROUTE
from benchmarks.peers.settings import PeerSettings

ENSEMBLE = 16
#: `drain` fills the topic before the peer starts: requests then wait for as long as a request ever may.
DRAIN_DEADLINE_MS = 60_000
LIVE_DEADLINE_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one measurement of one peer happens."""

    folder: Path
    app: str
    bootstrap_servers: str
    partitions: int
    model_files: tuple[Path, ...]
    deadline_ms: int

    @property
    def requests_topic(self) -> str:
        return f"{self.app}.requests.v1"

    @property
    def answers_topic(self) -> str:
        return f"{self.app}.predictions.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Commands of one measurement. `setup` ones end by themselves, `serve` ones run until they are stopped."""

    serve: tuple[tuple[str, ...], ...]
    setup: tuple[tuple[str, ...], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    """What the benchmark creates; empty where a `setup` command does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    plan: Callable[[Place], Plan]
    rough_rate_per_s: int
    """Only the size of a drain follows from it."""
    models: int = 1
    """0: it copies, its answers must equal the requests."""
    sections: frozenset[str] = frozenset({"drain"})


def _settings(place: Place, *, middle_topic: str = "", max_records: int = 500) -> PeerSettings:
    return PeerSettings(
        bootstrap_servers=place.bootstrap_servers,
        group=f"{place.app}.group",
        requests_topic=place.requests_topic,
        answers_topic=place.answers_topic,
        middle_topic=middle_topic,
        model_files=tuple(str(file) for file in place.model_files),
        max_records=max_records,
    )


def _own_loop(module: str, *, max_records: int = 500) -> Callable[[Place], Plan]:
    def plan(place: Place) -> Plan:
        middle = f"{place.app}.middle.v1"
        return Plan(
            serve=((sys.executable, "-m", f"benchmarks.peers.{module}"),),
            environment=_settings(place, middle_topic=middle, max_records=max_records).environment(),
            topics=(place.requests_topic, place.answers_topic, *([middle] if module == "chain" else [])),
        )

    return plan


def _bytewax(factory: str) -> Callable[[Place], Plan]:
    def plan(place: Place) -> Plan:
        recovery = place.folder / "bytewax-recovery"
        recovery.mkdir()
        run = (sys.executable, "-m", "bytewax.run", f"benchmarks.peers.bytewax_flow:{factory}")
        return Plan(
            setup=((sys.executable, "-m", "bytewax.recovery", str(recovery), "1"),),
            serve=((*run, "-r", str(recovery), "-s", "1", "-b", "0"),),
            environment=_settings(place).environment(),
            topics=(place.requests_topic, place.answers_topic),
        )

    return plan


def streamserve_config(place: Place, *, fused: bool, options: str) -> str:
    """One pool, one route, result cache off; `place.model_files` are its models, each with these `options`."""
    names = [file.stem for file in place.model_files]
    quoted = ", ".join(f'"{name}"' for name in names)
    models = "\n".join(
        f'[models.{name}]\nversion = "1"\nsource = "{file}"\n{options}\n'
        for name, file in zip(names, place.model_files, strict=True)
    )
    return f"""\
[app]
name = "{place.app}"
partitions = {place.partitions}
fused = "{"auto" if fused else "never"}"

[pools.main]
models = [{quoted}]
processes = 1
cache_bytes = 0

{models}
[routes.{ROUTE}]
models = [{quoted}]
policy = {{ name = "static" }}
combine = "mean_probability"
deadline_ms = {place.deadline_ms}
"""


def _streamserve(*, fused: bool = True, options: str = 'batching = "auto"') -> Callable[[Place], Plan]:
    def plan(place: Place) -> Plan:
        config = place.folder / "streamserve.toml"
        config.write_text(streamserve_config(place, fused=fused, options=options), encoding="utf-8")
        program = shutil.which("streamserve", path=str(Path(sys.executable).parent)) or "streamserve"
        worker = (program, "worker", str(config), "--pool", "main")
        return Plan(
            setup=((program, "topics", "create", str(config)),),
            serve=(worker,) if fused else (worker, (program, "aggregate", str(config))),
            environment={"STREAMSERVE_BROKER__BOOTSTRAP_SERVERS": place.bootstrap_servers},
        )

    return plan


_LIVE = frozenset({"drain", "latency"})

PEERS = (
    Peer(name="echo", plan=_own_loop("echo"), rough_rate_per_s=150_000, models=0),
    Peer(
        name="hand",
        plan=_own_loop("hand"),
        rough_rate_per_s=80_000,
        sections=frozenset({"drain", "latency", "sustained"}),
    ),
    Peer(name="bytewax", plan=_bytewax("collected"), rough_rate_per_s=40_000, sections=_LIVE),
    Peer(name="bytewax-fmb", plan=_bytewax("unbuffered"), rough_rate_per_s=40_000),
    Peer(
        name="fused",
        plan=_streamserve(),
        rough_rate_per_s=80_000,
        sections=frozenset({"drain", "latency", "sustained"}),
    ),
    Peer(name="fused-plan", plan=_streamserve(options='runtime = "plan"'), rough_rate_per_s=80_000, sections=_LIVE),
    Peer(name="three-hop", plan=_streamserve(fused=False), rough_rate_per_s=40_000, sections=_LIVE),
    Peer(name="single", plan=_streamserve(options='batching = "none"'), rough_rate_per_s=2_000),
    Peer(name="hand-16x64", plan=_own_loop("hand", max_records=64), rough_rate_per_s=12_000, models=ENSEMBLE),
    Peer(name="hand-16x500", plan=_own_loop("hand"), rough_rate_per_s=40_000, models=ENSEMBLE),
    Peer(name="fused-16", plan=_streamserve(), rough_rate_per_s=20_000, models=ENSEMBLE),
    Peer(
        name="fused-plan-16",
        plan=_streamserve(options='runtime = "plan"'),
        rough_rate_per_s=40_000,
        models=ENSEMBLE,
    ),
    Peer(name="chain", plan=_own_loop("chain"), rough_rate_per_s=60_000, models=0, sections=frozenset({"latency"})),
)

#: What each row means, printed below the table.
LEGEND = {
    "echo": "aiokafka loop, values copied: no JSON, no model",
    "hand": "hand-written aiokafka loop, one predict per fetch of up to 500",
    "bytewax": "collect(64, 5 ms) per partition, recovery store on disk",
    "bytewax-fmb": "flat_map_batch over source batches of 500",
    "fused": "streamserve, worker and aggregator in one process",
    "fused-plan": 'the same, its model opened up and compiled (runtime = "plan")',
    "three-hop": "streamserve, a worker and an aggregator process",
    "single": "streamserve fused, batches of one row",
    "hand-16x64": "hand-written loop, 16 models in sequence, fetches of up to 64",
    "hand-16x500": "the same, fetches of up to 500",
    "fused-16": "streamserve fused, 16 models asked for every request",
    "fused-plan-16": "the same 16, opened up and compiled; what they share runs once",
    "chain": "two copying loops between three topics, in one process",
}
