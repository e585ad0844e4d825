"""What a broker of our own is asked to be, and the files that make Apache Kafka be it."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from streamserve.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamserve.kafka.brokers.java import Java

from streamserve.kafka.brokers.ports import HOST

Profile = Literal["laptop", "bench"]

_HEAP: Mapping[Profile, tuple[str, ...]] = {
    # C1 only: a third of the start and half the memory of C2, which pays off after minutes of load.
    "laptop": ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "bench": ("-Xms256m", "-Xmx768m", "-XX:+UseSerialGC"),
}
_CLUSTER_HEAP = "-Xmx160m"  # replicas' fetchers need some more
_NATIVE_ACCESS_SINCE = 24  # Java warns at start, without this flag, about Kafka's compression libraries
_LARGEST_RECORD_BYTES = 8 * 1024 * 1024
_ROOM_BYTES = 1024 * 1024  # headers and batch overhead
_NODE_COUNTS = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """A broker of our own.

    `state_dir`: its folder, kept between runs, never shared by two brokers that run.
    `nodes`: 1, or 3 with every topic replicated three times.
    `profile`: `laptop` starts fast and is small; `bench` is Java's optimising compiler and 768 MB.
    `port`: of the first node, the others follow; 0 picks free ones.
    `extra`: Kafka broker settings that win over ours.
    Raises `BrokerError` for impossible values.
    """

    state_dir: Path
    nodes: int = 1
    profile: Profile = "laptop"
    port: int = 0
    extra: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.nodes not in _NODE_COUNTS:
            message = f"a broker of our own has 1 or 3 nodes, not {self.nodes}"
            raise BrokerError(message)
        if self.profile not in _HEAP:
            message = f"unknown broker profile {self.profile!r}; there are: {', '.join(_HEAP)}"
            raise BrokerError(message)
        highest = 65535 - self.nodes + 1
        if not 0 <= self.port <= highest:
            message = f"port {self.port} is not possible; use 1 to {highest}, or 0 for any free one"
            raise BrokerError(message)
        if "," in str(self.state_dir):
            message = f"the broker's state folder {self.state_dir} has a comma in its path, which Kafka reads as two"
            raise BrokerError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """One node: its id (from 1), its ports on the loopback address, and its folder."""

    node_id: int
    port: int
    controller_port: int
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def properties_file(self) -> Path:
        return self.folder / "server.properties"


def new_cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes, URL-safe base 64, not beginning with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def node_properties(node: NodePlace, nodes: Sequence[NodePlace], extra: Mapping[str, str]) -> dict[str, str]:
    """The settings of one node of the cluster `nodes`; `extra` wins."""
    count = len(nodes)
    in_sync = 1 if count == 1 else 2
    largest = _LARGEST_RECORD_BYTES + _ROOM_BYTES
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(f"{n.node_id}@{HOST}:{n.controller_port}" for n in nodes),
        "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(node.data),
        "auto.create.topics.enable": "false",
        "num.partitions": "4",
        "default.replication.factor": str(count),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(count),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "message.max.bytes": str(largest),
        "replica.fetch.max.bytes": str(largest),
        **_QUICK_GROUPS,
        **(_QUICK_RESTART if count == 1 else _QUICK_FAILOVER),
        **_SMALL,
        **extra,
    }


_QUICK_GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
# After kill -9 the controller refuses the new incarnation until the old session ends: 1.9 s instead of 10.9 s.
_QUICK_RESTART = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
# All partitions stall until the dead replica is fenced: 1.8 s instead of 8.9 s.
_QUICK_FAILOVER = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "300",
}
_SMALL = {
    "log.cleaner.dedupe.buffer.size": "2097152",  # 126 MB less
    "log.cleaner.io.buffer.size": "65536",
    "log.cleaner.backoff.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
}


def java_command(
    java: Java, jars: Sequence[Path], node: NodePlace, *, options: BrokerOptions, archive: Path | None
) -> list[str]:
    """The command line of one node. `archive`: classes already read and checked, for a start in a second."""
    heap = list(_HEAP[options.profile])
    if options.profile == "laptop" and options.nodes > 1:
        heap[0] = _CLUSTER_HEAP
    shared = [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return [
        str(java.program),
        *heap,
        *(shared if archive is not None else []),
        *common_flags(java),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        "-cp",
        class_path(jars),
        "kafka.Kafka",
        str(node.properties_file),
    ]


def common_flags(java: Java) -> list[str]:
    """Flags that every Java process of ours gets."""
    return ["-Djava.awt.headless=true"] + (
        ["--enable-native-access=ALL-UNNAMED"] if java.version >= _NATIVE_ACCESS_SINCE else []
    )


def class_path(jars: Sequence[Path]) -> str:
    """The jars in the given order, which must be the archive's."""
    return os.pathsep.join(map(str, jars))


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file (Latin-1 with escapes, as Java reads it)."""
    lines = [f"{key}={_escaped(value)}" for key, value in properties.items()]
    path.write_text("\n".join(lines) + "\n", "ascii")


def _escaped(value: str) -> str:
    units = value.replace("\\", "\\\\").replace("\n", "\\n").encode("utf-16-be")
    codes = [units[i] << 8 | units[i + 1] for i in range(0, len(units), 2)]
    return "".join(chr(code) if ord(" ") <= code <= ord("~") else f"\\u{code:04x}" for code in codes)


def lay_data(node: NodePlace, cluster_id: str, template: Path) -> None:
    """Make the node's formatted data folder from the template, unless it has one. The last step is a rename."""
    meta = node.data / "meta.properties"
    if meta.exists():
        return
    shutil.rmtree(node.data, ignore_errors=True)
    node.data.mkdir(parents=True)
    for file in template.iterdir():
        shutil.copyfile(file, node.data / file.name)
    directory_id = new_cluster_id()
    unfinished = node.data / f"meta.{secrets.token_hex(4)}"
    write_properties(
        unfinished,
        {"version": "1", "cluster.id": cluster_id, "node.id": str(node.node_id), "directory.id": directory_id},
    )
    unfinished.replace(meta)
