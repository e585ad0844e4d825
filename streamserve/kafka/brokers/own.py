"""A real Apache Kafka of our own: one node, or three that replicate each other, on the loopback address."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from streamserve.errors import BrokerError
from streamserve.kafka.brokers.jars import KAFKA_VERSION
from streamserve.kafka.brokers.options import (
    BrokerOptions,
    NodePlace,
    java_command,
    lay_data,
    new_cluster_id,
    node_properties,
    write_properties,
)
from streamserve.kafka.brokers.ports import HOST, free_ports, is_free
from streamserve.kafka.brokers.preparation import Prepared, prepare
from streamserve.kafka.brokers.process import Process, spawn
from streamserve.kafka.brokers.state import (
    BrokerRecord,
    BrokerStatus,
    NodeRecord,
    answers,
    read_record,
    read_status,
    remove_record,
    stop_all,
    stop_command,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

_PORT_ATTEMPTS = 5
_LOOK_AGAIN_S = 0.01
_QUOTED_LINES = 12
_QUOTED_CHARACTERS = 2_000
_PORT_TAKEN = re.compile(r"BindException|Address already in use")
_LEAST_FREE_BYTES = 32 << 20
_STACK_FRAME = re.compile(r"^\s*(at |\.\.\. \d+ more)")


class FolderInUse(BrokerError):
    """Another process runs, starts or stops the broker of this folder."""


class _PortTakenError(Exception):
    """Another program took one of our ports between the look and Kafka's bind."""


def _silent(_text: str) -> None:
    """Says nothing."""


class OwnBroker:
    """A broker of our own; data stays in `options.state_dir`.

    Synchronous. Not for two threads at once. Unless started detached, every Kafka process ends when this process ends,
    also by `kill -9`. As a context manager: started on entry, stopped on exit.
    """

    def __init__(self, options: BrokerOptions, say: Callable[[str], None] = _silent) -> None:
        """`say` gets a line for people before each long step (the first start fetches jars)."""
        self._options = options
        self._say = say
        self._prepared: Prepared | None = None
        self._lock_fd = -1
        self._places: list[NodePlace] = []
        self._processes: dict[int, Process] = {}
        self._cluster_id = ""
        self._detached = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def options(self) -> BrokerOptions:
        return self._options

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, comma-separated for three nodes; empty before `start`."""
        return ",".join(f"{HOST}:{place.port}" for place in self._places)

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each node that was started and not stopped, by node id (from 1)."""
        return {node_id: process.pid for node_id, process in self._processes.items()}

    def start(self, *, detached: bool = False, timeout_s: float = 60.0) -> str:
        """Start all nodes, wait until each answers a client, return the bootstrap servers.

        `detached`: the broker outlives this process, until `streamserve broker stop` or `stop()`.
        Raises `BrokerError`: Java or jars missing, folder in use (`FolderInUse`), full or of another size, port taken,
        Kafka stopped while starting (its last lines are quoted) or not ready after `timeout_s`. Nothing runs then.
        """
        if self._processes:
            message = f"this broker was started already, at {self.bootstrap_servers}"
            raise BrokerError(message)
        self._prepared = prepare(self._say)
        self._detached = detached
        self._take_lock()
        folder = self._options.state_dir
        try:
            refuse_full_disk(folder, shutil.disk_usage(folder).free)
            self._cluster_id = self._ensure_cluster()
            self._start_on_free_ports(timeout_s)
        except OSError as failure:
            self._abandon()
            raise _unwritable(folder, failure) from failure
        except BaseException:
            self._abandon()
            raise
        if detached:
            self._release_lock()  # the Java processes hold it on
        return self.bootstrap_servers

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop all nodes in order, killing what has not ended after `timeout_s`. Does nothing when none runs.

        Raises `BrokerError` when a process cannot be ended.
        """
        if not self._processes:
            return
        stop_all(list(self._processes.values()), timeout_s)
        self._processes.clear()
        remove_record(self._options.state_dir)
        self._release_lock()

    def status(self) -> BrokerStatus:
        """The broker now. Raises `BrokerError` for a state file that this version cannot read."""
        return read_status(self._options.state_dir)

    def wait(self, timeout_s: float) -> bool:
        """Wait until a node has ended (true) or the time is over (false)."""
        until = time.monotonic() + timeout_s
        while all(process.is_running for process in self._processes.values()):
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, 0.2))
        return True

    def why_ended(self) -> str:
        """For people: which node has ended by itself, with what exit code, and its last lines. Empty when all run."""
        for place in self._places:
            process = self._processes.get(place.node_id)
            if process is not None and process.wait(0):
                return self._obituary(place, process)
        return ""

    def kill_node(self, node_id: int) -> None:
        """`kill -9` one node, and wait until it has ended. Its data stays."""
        process = self._processes.pop(node_id)
        stop_all([process], timeout_s=0.0)

    def start_node(self, node_id: int, timeout_s: float = 60.0) -> None:
        """Start a node again that was killed, on its ports, and wait until all started nodes answer.

        Raises `BrokerError` as `start` does.
        """
        place = next(place for place in self._places if place.node_id == node_id)
        self._spawn(place)
        self._write_record()
        try:
            self._await_answers([place], timeout_s)
        except _PortTakenError as taken:
            message = f"port {place.port} or {place.controller_port} of node {node_id} was taken by another program"
            raise BrokerError(message) from taken

    def _take_lock(self) -> None:
        folder = self._options.state_dir
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as failure:
            raise _unwritable(folder, failure) from failure
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release_lock()
            record = read_record(folder)
            where = f" (process {record.nodes[0].pid}, {record.bootstrap_servers})" if record else ""
            message = (
                f"a broker already runs in {folder}{where}; use it, stop it with '{stop_command(folder)}', or take "
                "another --name or --state-dir"
            )
            raise FolderInUse(message) from None

    def _release_lock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _ensure_cluster(self) -> str:
        """The id of the folder's cluster, made on first use; a cluster's size is fixed then."""
        file = self._options.state_dir / "cluster.json"
        if not file.exists():
            facts = {"cluster_id": new_cluster_id(), "nodes": self._options.nodes}
            unfinished = file.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(facts) + "\n", "utf-8")
            unfinished.replace(file)
        facts = json.loads(file.read_text("utf-8"))
        if facts["nodes"] != self._options.nodes:
            message = (
                f"{self._options.state_dir} holds the data of a broker of {facts['nodes']} node(s), "
                f"{self._options.nodes} asked for; take another --name or --state-dir, or remove that folder"
            )
            raise BrokerError(message)
        return str(facts["cluster_id"])

    def _start_on_free_ports(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for _ in range(_PORT_ATTEMPTS):
            self._places = self._choose_places()
            try:
                for place in self._places:
                    self._spawn(place)
                self._write_record()
                self._await_answers(self._places, until - time.monotonic())
            except _PortTakenError:
                stop_all(list(self._processes.values()), timeout_s=0.0)
                self._processes.clear()
            else:
                return
        message = f"{_PORT_ATTEMPTS} times another program took a port that was free a moment before; try again"
        raise BrokerError(message)

    def _choose_places(self) -> list[NodePlace]:
        count = self._options.nodes
        chosen = free_ports(2 * count)
        ports = chosen[:count]
        if self._options.port:
            ports = list(range(self._options.port, self._options.port + count))
            for port in ports:
                if not is_free(port):
                    message = (
                        f"port {port} on {HOST} is in use by another program, or not allowed to this user; choose "
                        "another with --port, or leave it out for any free one"
                    )
                    raise BrokerError(message)
        return [
            NodePlace(
                node_id=index + 1,
                port=ports[index],
                controller_port=chosen[count + index],
                folder=self._options.state_dir / f"node-{index + 1}",
            )
            for index in range(count)
        ]

    def _spawn(self, place: NodePlace) -> None:
        assert self._prepared is not None
        place.folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            place.log.replace(place.log.with_suffix(".log.1"))
        write_properties(place.properties_file, node_properties(place, self._places, self._options.extra))
        lay_data(place, self._cluster_id, self._prepared.template)
        command = java_command(
            self._prepared.java, self._prepared.jars, place, options=self._options, archive=self._prepared.archive
        )
        self._processes[place.node_id] = spawn(command, log=place.log, lock_fd=self._lock_fd, detached=self._detached)

    def _await_answers(self, places: Sequence[NodePlace], timeout_s: float) -> None:
        """Until the nodes at `places` answer and see every started node alive."""
        records = {record.node_id: record for record in self._records()}
        waiting = [records[place.node_id] for place in places]
        until = time.monotonic() + timeout_s
        while not answers(waiting, self._cluster_id, frozenset(self._processes)):
            for place in places:
                process = self._processes[place.node_id]
                if process.wait(0):
                    self._raise_for(place, process)
            if time.monotonic() >= until:
                message = f"our Kafka broker does not answer after {timeout_s:.0f} s; {_quote(places[0].log)}"
                raise BrokerError(message)
            time.sleep(_LOOK_AGAIN_S)

    def _raise_for(self, place: NodePlace, process: Process) -> None:
        if _PORT_TAKEN.search(_read(place.log)):
            raise _PortTakenError
        raise BrokerError(self._obituary(place, process))

    def _obituary(self, place: NodePlace, process: Process) -> str:
        code = process.exit_code()
        with_code = "" if code is None else f" with exit code {code}"
        return f"our Kafka broker (node {place.node_id}) stopped by itself{with_code}; {_quote(place.log)}"

    def _records(self) -> list[NodeRecord]:
        return [
            NodeRecord(
                node_id=place.node_id,
                pid=process.pid,
                mark=process.mark,
                port=place.port,
                controller_port=place.controller_port,
                log=str(place.log),
            )
            for place in self._places
            if (process := self._processes.get(place.node_id)) is not None
        ]

    def _write_record(self) -> None:
        write_record(
            self._options.state_dir,
            BrokerRecord(
                bootstrap_servers=self.bootstrap_servers,
                cluster_id=self._cluster_id,
                kafka_version=KAFKA_VERSION,
                started_at_ms=time.time_ns() // 1_000_000,
                detached=self._detached,
                nodes=tuple(self._records()),
            ),
        )

    def _abandon(self) -> None:
        stop_all(list(self._processes.values()), timeout_s=0.0)
        self._processes.clear()
        remove_record(self._options.state_dir)
        self._release_lock()


def refuse_full_disk(folder: Path, free_bytes: int) -> None:
    """Raises `BrokerError` where Kafka would want for room: it starts, then waits or stops, and does not say why."""
    if free_bytes < _LEAST_FREE_BYTES:
        message = (
            f"only {free_bytes / 2**20:.1f} MiB are free where the broker's data is kept, {folder}, and Kafka needs "
            f"{_LEAST_FREE_BYTES >> 20} to start; free some, or name another folder (STREAMSERVE_STATE)"
        )
        raise BrokerError(message)


def _unwritable(folder: Path, failure: OSError) -> BrokerError:
    why = failure.strerror or failure
    return BrokerError(f"cannot write the broker's state folder {folder} ({why}); name another (STREAMSERVE_STATE)")


def _read(log: Path) -> str:
    try:
        return log.read_text("utf-8", "replace")
    except OSError:
        return ""


def _quote(log: Path) -> str:
    """The log's last lines without stack frames, for an error message."""
    lines = [line for line in _read(log).splitlines() if line.strip() and not _STACK_FRAME.match(line)]
    if not lines:
        return f"its log {log} is empty"
    quoted = "\n".join(f"  {line}" for line in lines[-_QUOTED_LINES:])[-_QUOTED_CHARACTERS:]
    return f"the last lines of {log}:\n{quoted}"
