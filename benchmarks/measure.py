"""One measurement: topics, a driver process, the peer's processes, and what the driver saw."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stub's __all__

from benchmarks import usage
from benchmarks.driver import Step, Task
from benchmarks.machine import Cores
from benchmarks.peers.catalogue import DRAIN_DEADLINE_MS, LIVE_DEADLINE_MS, Peer, Place, Plan

PARTITIONS = 4
STOP_TIMEOUT_S = 12.0
ADMIN_TIMEOUT_S = 30.0
SETUP_TIMEOUT_S = 120.0
#: Beyond what a task can last by its own time-outs something hangs.
MEASUREMENT_TIMEOUT_S = 600.0
#: Requests that an open loop may need before its first step: one every 50 ms for 60 s, then 200/s for 2 s.
WARM_REQUESTS = 1_600
_LOG_LINES = 15


class MeasurementFailed(Exception):
    """A peer or the driver ended or hung; the message quotes the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all measurements of one run share."""

    folder: Path
    repository: Path
    bootstrap_servers: str
    cores: Cores
    model_files: tuple[Path, ...]

    @property
    def broker_pids(self) -> list[int]:
        return usage.listener_pids(int(self.bootstrap_servers.rpartition(":")[2]))


def environment(extra: dict[str, str], repository: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(repository),
        **extra,
    }


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LOG_LINES:])


def _admin(bootstrap_servers: str) -> AdminClient:
    # Level 4: without librdkafka's remarks on events that nobody fetched before it was closed.
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 4})


def create_topics(bootstrap_servers: str, topics: tuple[str, ...]) -> None:
    admin = _admin(bootstrap_servers)
    config = {"message.timestamp.type": "LogAppendTime"}  # as streamserve's own topics: the same work for the broker
    wanted = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1, config=config) for topic in topics]
    for future in admin.create_topics(wanted).values():
        future.result(ADMIN_TIMEOUT_S)


def delete_topics(bootstrap_servers: str, app: str) -> None:
    """Frees the disk; the next measurement has topics of its own anyway."""
    admin = _admin(bootstrap_servers)
    topics = [name for name in admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics if name.startswith(f"{app}.")]
    if topics:
        for future in admin.delete_topics(topics).values():
            future.result(ADMIN_TIMEOUT_S)


def _run_setup(plan: Plan, place: Place, bench: Bench) -> None:
    log = place.folder / "setup.log"
    for command in plan.setup:
        with log.open("ab") as output:
            try:
                code = subprocess.run(
                    command,
                    env=environment(plan.environment, bench.repository),
                    cwd=place.folder,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=SETUP_TIMEOUT_S,
                    check=False,
                ).returncode
            except OSError as error:
                raise MeasurementFailed(f"{' '.join(command)}: {error}") from error
            except subprocess.TimeoutExpired as error:
                raise MeasurementFailed(f"{' '.join(command)}: not done in {SETUP_TIMEOUT_S:.0f} s") from error
        if code:
            raise MeasurementFailed(f"{' '.join(command)}: exit code {code}\n{_tail(log)}")


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    give_up_at = time.monotonic() + STOP_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.1, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _serving(plan: Plan, place: Place, bench: Bench) -> Iterator[dict[Path, subprocess.Popen[bytes]]]:
    """The peer's processes on their core, by log file; stopped at the end whatever happens."""
    running: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        for number, command in enumerate(plan.serve):
            log = place.folder / f"peer-{number}.log"
            with log.open("wb") as output, bench.cores.for_peer():
                running[log] = subprocess.Popen(
                    command,
                    env=environment(plan.environment, bench.repository),
                    cwd=place.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        yield running
    finally:
        _stop(list(running.values()))


class DriverProcess:
    """The driver and its JSON lines."""

    def __init__(self, task: Task, place: Place, bench: Bench) -> None:
        self._log = place.folder / "driver.log"
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.driver", orjson.dumps(asdict(task)).decode()],
                env=environment({}, bench.repository),
                cwd=place.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="driver-lines", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def tell(self, **details: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(details) + b"\n")
        self._process.stdin.flush()

    def expect(self, event: str, peers: dict[Path, subprocess.Popen[bytes]]) -> dict[str, Any]:
        """The next event, while the peers live. Raises MeasurementFailed where one of them, or the driver, ends."""
        give_up_at = time.monotonic() + MEASUREMENT_TIMEOUT_S
        while time.monotonic() < give_up_at:
            try:
                line = self._lines.get(timeout=0.5)
            except queue.Empty:
                for log, process in peers.items():
                    if process.poll() is not None:
                        raise MeasurementFailed(f"the peer ended with {process.returncode}:\n{_tail(log)}") from None
                continue
            if not line:
                raise MeasurementFailed(f"the driver ended:\n{_tail(self._log)}")
            said: dict[str, Any] = orjson.loads(line)
            if said.pop("event") == event:
                return said
        raise MeasurementFailed(f"the driver did not say {event!r} in {MEASUREMENT_TIMEOUT_S:.0f} s")

    def close(self) -> None:
        _stop([self._process])
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _measure(bench: Bench, peer: Peer, app: str, *, requests: int, steps: tuple[Step, ...]) -> dict[str, Any]:
    place = Place(
        folder=bench.folder / app,
        app=app,
        bootstrap_servers=bench.bootstrap_servers,
        partitions=PARTITIONS,
        model_files=bench.model_files[: peer.models],
        deadline_ms=LIVE_DEADLINE_MS if steps else DRAIN_DEADLINE_MS,
    )
    place.folder.mkdir(parents=True)
    plan = peer.plan(place)
    task = Task(
        bootstrap_servers=bench.bootstrap_servers,
        requests_topic=place.requests_topic,
        answers_topic=place.answers_topic,
        partitions=PARTITIONS,
        seed=len(app) + requests,
        requests=requests,
        steps=steps,
        model_files=tuple(str(file) for file in place.model_files),
        deadline_ms=place.deadline_ms,
    )
    with contextlib.ExitStack() as stack:
        if plan.topics:
            create_topics(bench.bootstrap_servers, plan.topics)
        stack.callback(delete_topics, bench.bootstrap_servers, app)
        _run_setup(plan, place, bench)
        driver = DriverProcess(task, place, bench)
        stack.callback(driver.close)
        driver.expect("ready", {})
        peers = stack.enter_context(_serving(plan, place, bench))
        driver.tell(peer_pids=[each.pid for each in peers.values()], broker_pids=bench.broker_pids)
        return driver.expect("result", peers)


def measure_drain(bench: Bench, peer: Peer, app: str, seconds: float) -> dict[str, Any]:
    """Raises MeasurementFailed with the end of the log of what failed."""
    return _measure(bench, peer, app, requests=int(peer.rough_rate_per_s * seconds), steps=())


def measure_live(bench: Bench, peer: Peer, app: str, steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    """One dictionary a step. Raises MeasurementFailed with the end of the log of what failed."""
    requests = WARM_REQUESTS + sum(int(step.rate_per_s * step.seconds) + 1 for step in steps)
    steps_seen: list[dict[str, Any]] = _measure(bench, peer, app, requests=requests, steps=steps)["steps"]
    return steps_seen
