"""`streamserve up` as a person uses it: real processes, real signals, a foreign client.

Long since each case needs the same helpers around a child process and its lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import queue
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.timeout(180)]

TIMEOUT_S = 90.0
STOP_S = 10.0
PARTITIONS = 2
MODEL = """
import numpy as np

def predict(batch):
    return (batch.sum(axis=1) > 0).astype(np.int64)

def other(batch):
    return np.ones(len(batch), np.int64)
"""
FUSED = """
[app]
name = "tiny"
partitions = 2

[pools.main]
models = ["sum", "one"]

[models.sum]
source = "tiny_model:predict"

[models.one]
source = "tiny_model:other"

[routes.main]
models = ["sum", "one"]
policy = "hedge"
deadline_ms = 5000
"""
SPLIT = FUSED.replace(
    '[pools.main]\nmodels = ["sum", "one"]', '[pools.left]\nmodels = ["sum"]\n\n[pools.right]\nmodels = ["one"]'
)


class Up:
    """`streamserve up CONFIG --json`, and what it said."""

    def __init__(self, config: Path, *arguments: str) -> None:
        self.stderr: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "streamserve.cli", "up", config.name, "--json", *arguments],
            cwd=config.parent,
            env={**os.environ, "STREAMSERVE_STATE": str(config.parent / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=target) for target in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()
        self.tree: list[psutil.Process] = []

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.stderr.extend(self.process.stderr)

    def next(self, *events: str) -> dict[str, Any]:
        """The next line with one of these events; without any, the next line."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            said = self._said.get(timeout=max(0.1, until - time.monotonic()))
            assert said is not None, "".join(self.stderr[-40:])
            if not events or said["event"] in events:
                self.tree = psutil.Process(self.process.pid).children(recursive=True)
                return said

    def end(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        return code


def project(folder: Path, config: str, model: str = MODEL) -> Path:
    (folder / "tiny_model.py").write_text(model, "utf-8")
    file = folder / "app.toml"
    file.write_text(config, "utf-8")
    return file


@contextmanager
def running(config: Path, *arguments: str) -> Iterator[Up]:
    up = Up(config, *arguments)
    try:
        yield up
    finally:
        up.process.kill()
        up.end()
        assert up.process.stdout is not None and up.process.stderr is not None
        up.process.stdout.close()
        up.process.stderr.close()
        psutil.wait_procs(up.tree, timeout=STOP_S + 10)


class Caller:
    """Sends requests and waits for their predictions: shares no code with streamserve."""

    def __init__(self, ready: dict[str, Any]) -> None:
        servers, self.topics = ready["bootstrap_servers"], ready["topics"]
        self.producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self.consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "caller", "fetch.wait.max.ms": 20, "log_level": 0}
        )
        places = [TopicPartition(self.topics["predictions"], number) for number in range(PARTITIONS)]
        for place in places:
            place.offset = self.consumer.get_watermark_offsets(place, timeout=20)[1]
        self.consumer.assign(places)
        self.sent = 0

    def send(self) -> str:
        self.sent += 1
        name = f"call-{self.sent}"
        inputs = [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [self.sent, 1.0]}]
        value = json.dumps({"id": name, "inputs": inputs})
        self.producer.produce(self.topics["requests"], value.encode(), partition=self.sent % PARTITIONS)
        self.producer.poll(0)
        return name

    def ask(self, count: int = 20) -> dict[str, dict[str, Any]]:
        """Predictions of `count` new requests, by id."""
        names = {self.send() for _ in range(count)}
        self.producer.flush(20)
        answers: dict[str, dict[str, Any]] = {}
        until = time.monotonic() + TIMEOUT_S
        while len(answers) < count:
            assert time.monotonic() < until, f"no prediction for {sorted(names - answers.keys())}"
            record = self.consumer.poll(0.2)
            if record is not None and record.error() is None:
                value = json.loads(record.value())
                if value["id"] in names:
                    answers[value["id"]] = value
        return answers

    def close(self) -> None:
        self.consumer.close()


@contextmanager
def calling(ready: dict[str, Any]) -> Iterator[Caller]:
    caller = Caller(ready)
    try:
        yield caller
    finally:
        caller.close()


def outcomes(answers: dict[str, dict[str, Any]]) -> set[str]:
    return {answer["parameters"]["outcome"] for answer in answers.values()}


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_it_serves_a_foreign_client_stops_in_order_and_keeps_its_data(tmp_path: Path) -> None:
    config = project(tmp_path, FUSED)
    for run in range(2):
        with running(config) as up:
            ready = up.next("ready")
            assert {"requests", "answers", "predictions", "feedback", "epochs"} <= ready["topics"].keys()
            assert [role["name"] for role in ready["roles"]] == ["worker-main-0", "learn-0"]
            for role in ready["roles"]:
                assert role["role"] in psutil.Process(role["pid"]).cmdline()
            with calling(ready) as caller:
                place = TopicPartition(ready["topics"]["predictions"], 0)
                assert bool(caller.consumer.get_watermark_offsets(place, timeout=20)[1]) == bool(run)
                assert outcomes(caller.ask()) == {"ok"}
            status = up.next("status")
            while not status["roles"][0]["status"]["outcomes"]["ok"]:
                status = up.next("status")
            assert status["roles"][0]["status"]["batches"]
            asked_s = time.monotonic()
            up.process.send_signal(signal.SIGTERM if run else signal.SIGINT)
            assert up.next("stopping", "stopped")["event"] == "stopping"
            assert up.end() == 0, "".join(up.stderr)
            assert time.monotonic() - asked_s < STOP_S
            assert psutil.wait_procs(up.tree, timeout=1)[1] == []


@pytest.mark.slow
def test_every_killed_role_is_replaced_and_serves(tmp_path: Path) -> None:
    with running(project(tmp_path, SPLIT)) as up:
        ready = up.next("ready")
        assert [role["name"] for role in ready["roles"]] == [
            "worker-left-0",
            "worker-right-0",
            "aggregate-0",
            "learn-0",
        ]
        with calling(ready) as caller:
            assert outcomes(caller.ask()) == {"ok"}
            for role in ready["roles"]:
                os.kill(role["pid"], signal.SIGKILL)
                gone = up.next("exited")
                assert (gone["name"], gone["exit_code"], gone["restarts_in_s"]) == (role["name"], -signal.SIGKILL, 0)
                back = up.next("restarted")
                assert back["name"] == role["name"]
                assert back["pid"] != role["pid"]
                assert outcomes(caller.ask()) == {"ok"}
        up.process.send_signal(signal.SIGTERM)
        assert up.end() == 0, "".join(up.stderr)


@pytest.mark.slow
def test_a_killed_kafka_is_started_again_and_nothing_else_is_needed(tmp_path: Path) -> None:
    with running(project(tmp_path, FUSED)) as up:
        ready = up.next("ready")
        with calling(ready) as caller:
            caller.ask()
            (java,) = [process for process in up.tree if process.name() == "java"]
            java.kill()
            assert up.next("exited")["name"] == "kafka"
            assert up.next("restarted")["bootstrap_servers"] == ready["bootstrap_servers"]
            assert len(caller.ask()) == 20
        up.process.send_signal(signal.SIGTERM)
        assert up.end() == 0, "".join(up.stderr)


def test_nothing_is_left_after_kill_9_and_the_app_starts_again(tmp_path: Path) -> None:
    config = project(tmp_path, FUSED)
    with running(config) as up:
        up.next("ready")
        everything = psutil.Process(up.process.pid).children(recursive=True)
        up.process.kill()
        assert psutil.wait_procs(everything, timeout=20)[1] == []
    with running(config, "--duration", "0") as again:
        again.next("ready")
        assert again.end() == 0


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever goes wrong, nobody waits for a process that goes on."""
    try:
        yield
    finally:
        process.kill()


def test_an_unread_standard_output_stalls_nothing(tmp_path: Path) -> None:
    config = project(tmp_path, FUSED)
    process = subprocess.Popen(
        [sys.executable, "-m", "streamserve.cli", "up", config.name, "--json"],
        cwd=tmp_path,
        env={**os.environ, "STREAMSERVE_STATE": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    with process, ended(process):
        assert process.stdout is not None
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        while (ready := json.loads(process.stdout.readline()))["event"] == "waiting":
            pass
        with calling(ready) as caller:
            pid = ready["roles"][0]["pid"]
            os.set_blocking(process.stdout.fileno(), False)
            wait_until(Stuck(process.stdout.fileno()))
            assert outcomes(caller.ask()) == {"ok"}
            os.kill(pid, signal.SIGKILL)
            assert len(caller.ask()) == 20
        asked_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert time.monotonic() - asked_s < STOP_S


class Stuck:
    """True once what waits in a pipe has not grown for longer than the time between two lines: no more fits in."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._held, self._since_s = 0, time.monotonic()

    def __call__(self) -> bool:
        held = int.from_bytes(fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
        if held != self._held:
            self._held, self._since_s = held, time.monotonic()
        return held > 0 and time.monotonic() - self._since_s > 3.0


def test_a_model_that_cannot_be_loaded_ends_it_with_the_models_words(tmp_path: Path) -> None:
    with running(project(tmp_path, FUSED, model="import nonsense_that_is_nowhere\n")) as up:
        assert up.end() == 3
        said = "".join(up.stderr)
        assert "worker-main-0 could not start: " in said
        assert "nonsense_that_is_nowhere" in said
        assert "Traceback" not in said.rpartition("streamserve: ")[2]


def test_a_model_that_ends_its_process_is_told_with_its_exit_code(tmp_path: Path) -> None:
    with running(project(tmp_path, FUSED, model="import os\nos._exit(3)\n")) as up:
        assert up.end() == 3
        said = "".join(up.stderr)
        assert "could not start: its process ended with exit code 3 while loading model sum@1" in said


def test_a_sample_that_cannot_be_had_ends_it_with_the_models_words(tmp_path: Path) -> None:
    model = (
        MODEL
        + """
class Asked:
    def __call__(self, batch):
        return predict(batch)

    @property
    def sample(self):
        raise ValueError("no sample of mine")

asked = Asked()
"""
    )
    with running(project(tmp_path, FUSED.replace("tiny_model:predict", "tiny_model:asked"), model=model)) as up:
        assert up.end() == 3
        said = "".join(up.stderr)
        assert "could not start: model sum@1: its sample row cannot be had: ValueError: no sample of mine" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_model_that_hangs_is_named(tmp_path: Path) -> None:
    with running(project(tmp_path, FUSED, model="import signal\nsignal.pause()\n")) as up:
        waiting = up.next()
        assert (waiting["event"], waiting["name"]) == ("waiting", "worker-main-0")
        assert waiting["doing"] == "loading model sum@1"
        up.process.send_signal(signal.SIGTERM)
        assert up.end() == 0, "".join(up.stderr)


def test_the_same_app_twice_is_refused(tmp_path: Path) -> None:
    config = project(tmp_path, FUSED)
    with running(config) as up:
        up.next("ready")
        with running(config) as second:
            assert second.end() == 1
            assert f"runs already under `streamserve up` (process {up.process.pid}" in "".join(second.stderr)
        up.process.send_signal(signal.SIGTERM)
        assert up.end() == 0


@pytest.mark.slow
def test_in_a_terminal_it_shows_a_live_view(tmp_path: Path) -> None:
    config = project(tmp_path, FUSED)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "streamserve.cli", "up", config.name],
        cwd=tmp_path,
        env={**os.environ, "STREAMSERVE_STATE": str(tmp_path / "state"), "TERM": "xterm"},
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    with process, os.fdopen(ours, "rb", buffering=0) as terminal:
        while b"ready after" not in shown or b"serving" not in shown:
            shown += terminal.read(65_536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how a terminal ends
            while more := terminal.read(65_536):
                shown += more
        assert process.wait(TIMEOUT_S) == 0
    assert b"tiny on Kafka at " in shown
    assert b"stopped after" in shown
    assert (tmp_path / "state" / "tiny" / "logs" / "worker-main-0.log").stat().st_size > 0
