"""What a running broker of ours has written down, so that another process can find, ask and stop it."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from streamserve.errors import BrokerError
from streamserve.kafka.brokers.ports import HOST
from streamserve.kafka.brokers.probe import live_brokers
from streamserve.kafka.brokers.process import Process, start_mark
from streamserve.places import state_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE_NAME = "broker.json"
_VERSION = 1
_PROBE_TIMEOUT_S = 1.0
_KILL_TIMEOUT_S = 5.0
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node as written down. `mark` tells its process from a later one with the same pid."""

    node_id: int
    pid: int
    mark: str
    port: int
    controller_port: int
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRecord:
    """The content of `broker.json`."""

    bootstrap_servers: str
    cluster_id: str
    kafka_version: str
    started_at_ms: int
    detached: bool
    nodes: tuple[NodeRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node now."""

    node_id: int
    pid: int
    port: int
    running: bool
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """A broker of ours now.

    `running`: at least one of its processes is there. `ready`: a client is answered, and every node is alive.
    `ended_unasked`: it was started, and has gone without a stop. Without a broker: no nodes, empty address.
    """

    state_dir: str
    running: bool
    ready: bool
    ended_unasked: bool
    bootstrap_servers: str
    started_at_ms: int
    detached: bool
    kafka_version: str
    nodes: tuple[NodeStatus, ...]


def write_record(state_dir: Path, record: BrokerRecord) -> None:
    """Replace `broker.json` as a whole."""
    unfinished = state_dir / f"{FILE_NAME}.{secrets.token_hex(4)}"
    unfinished.write_text(json.dumps({"version": _VERSION, **asdict(record)}, indent=1) + "\n", "utf-8")
    unfinished.replace(state_dir / FILE_NAME)


def read_record(state_dir: Path) -> BrokerRecord | None:
    """What was written down; none where nothing was.

    Raises `BrokerError` for a file that this version cannot read.
    """
    path = state_dir / FILE_NAME
    try:
        return _parse(json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as failure:
        message = f"{path} was written by another version of streamserve, or damaged; stop that broker, then remove it"
        raise BrokerError(message) from failure


def _parse(raw: dict[str, Any]) -> BrokerRecord:
    if raw.pop("version") != _VERSION:
        raise ValueError
    nodes = tuple(NodeRecord(**node) for node in raw.pop("nodes"))
    return BrokerRecord(nodes=nodes, **raw)


def remove_record(state_dir: Path) -> None:
    """Forget the broker: it has been stopped."""
    with suppress(FileNotFoundError):
        (state_dir / FILE_NAME).unlink()


def read_status(state_dir: Path) -> BrokerStatus:
    """The broker of this folder now, whoever started it.

    Raises `BrokerError` for a file that this version cannot read.
    """
    record = read_record(state_dir)
    if record is None:
        return BrokerStatus(
            state_dir=str(state_dir),
            running=False,
            ready=False,
            ended_unasked=False,
            bootstrap_servers="",
            started_at_ms=0,
            detached=False,
            kafka_version="",
            nodes=(),
        )
    nodes = tuple(
        NodeStatus(
            node_id=node.node_id,
            pid=node.pid,
            port=node.port,
            running=start_mark(node.pid) == node.mark,
            log=node.log,
        )
        for node in record.nodes
    )
    running = any(node.running for node in nodes)
    return BrokerStatus(
        state_dir=str(state_dir),
        running=running,
        ready=running and answers(record.nodes, record.cluster_id, frozenset(node.node_id for node in nodes)),
        ended_unasked=not running,
        bootstrap_servers=record.bootstrap_servers,
        started_at_ms=record.started_at_ms,
        detached=record.detached,
        kafka_version=record.kafka_version,
        nodes=nodes,
    )


def await_ready(state_dir: Path, timeout_s: float) -> BrokerStatus:
    """Wait until the broker of this folder, which another process starts, is ready.

    Raises `BrokerError` where a node of it ends, or it is not ready after `timeout_s`.
    """
    until = time.monotonic() + timeout_s
    while not (now := read_status(state_dir)).ready:
        ended = ", ".join(str(node.node_id) for node in now.nodes if not node.running)
        if ended or not now.nodes:
            what = f"node {ended} of it has ended" if ended else "it has ended"
        elif time.monotonic() >= until:
            what = f"it does not answer after {timeout_s:.0f} s; its log: {now.nodes[0].log}"
        else:
            time.sleep(_LOOK_AGAIN_S)
            continue
        message = (
            f"the broker in {state_dir} is not ready: {what}. Stop it with '{stop_command(state_dir)}', then start"
        )
        raise BrokerError(message)
    return now


def stop_command(state_dir: Path) -> str:
    """What a person types to stop the broker of this folder."""
    name = state_dir.parent.name
    with suppress(BrokerError):  # not every folder's name can be a broker's
        if state_dir == state_folder(name):
            return "streamserve broker stop" if name == "default" else f"streamserve broker stop --name {name}"
    return f"streamserve broker stop --state-dir {shlex.quote(str(state_dir))}"


def answers(nodes: Sequence[NodeRecord], cluster_id: str, alive: frozenset[int]) -> bool:
    """Whether each of `nodes` answers a client and sees at least the nodes `alive`."""
    for node in nodes:
        live = live_brokers(HOST, node.port, _PROBE_TIMEOUT_S)
        if live is None or live.cluster_id != cluster_id or not live.node_ids >= alive:
            return False
    return True


def stop_recorded(state_dir: Path, timeout_s: float) -> bool:
    """Stop the broker of this folder, whoever started it; false when none ran.

    Asks first; kills what has not ended after `timeout_s`. Raises `BrokerError` when it cannot be ended.
    """
    record = read_record(state_dir)
    if record is None:
        return False
    processes = [Process(pid=node.pid, mark=node.mark) for node in record.nodes]
    ran = any(process.is_running for process in processes)
    stop_all(processes, timeout_s)
    remove_record(state_dir)
    return ran


def stop_all(processes: Sequence[Process], timeout_s: float) -> None:
    """Ask all to end, wait for all within one deadline, kill the rest.

    Raises `BrokerError` when one survives even that.
    """
    for process in processes:
        process.terminate()
    until = time.monotonic() + timeout_s
    late = [process for process in processes if not process.wait(max(0.0, until - time.monotonic()))]
    for process in late:
        process.kill()
    for process in late:
        if not process.wait(_KILL_TIMEOUT_S):
            message = f"the broker's process {process.pid} cannot be ended; end it by hand (kill -9 {process.pid})"
            raise BrokerError(message)
