"""`streamserve` as real processes for acceptance tests: started by its command line, stopped by real signals."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "streamserve.cli"]
PATIENCE = float(os.environ.get("STREAMSERVE_TEST_PATIENCE", "2"))
"""Stated times are multiplied by it, since machines that run tests are shared; 1 on an idle one."""
TIMEOUT_S = 45.0 * PATIENCE
STOP_S = 10.0


class Up:
    """`streamserve up CONFIG --json`, and what it said."""

    def __init__(self, config: Path, *arguments: str, cwd: Path, state: Path) -> None:
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [*COMMAND, "up", str(config), "--json", *arguments],
            cwd=cwd,
            env={**os.environ, "STREAMSERVE_STATE": str(state)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready: dict[str, Any] = {}
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=target) for target in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._said.put(json.loads(line))
        self._said.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.errors.extend(lines)

    def next(self, *events: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """The next line with one of these events."""
        until = time.monotonic() + timeout_s
        while True:
            said = self._said.get(timeout=max(0.1, until - time.monotonic()))
            assert said is not None, self.story()
            if said["event"] in events:
                return said

    def role(self, name: str) -> dict[str, Any]:
        """One process of the ready line: `pid`, `metrics_port`, ..."""
        return next(role for role in self.ready["roles"] if role["name"] == name)

    def status(self) -> dict[str, Any]:
        """A status line that is written from now on."""
        asked_ms = time.time() * 1000
        while (said := self.next("status"))["time_ms"] < asked_ms:
            pass
        return said

    def restarts(self) -> dict[str, int]:
        """How often each process was started again."""
        return {role["name"]: role["restarts"] for role in self.status()["roles"]}

    def wait_for_spare(self, name: str) -> None:
        """Until a loaded process waits to take the place of this one, as when an app has run for a while."""
        while not any(role["name"] == name and role["has_spare"] for role in self.status()["roles"]):
            pass

    def tree(self) -> list[psutil.Process]:
        tree: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return tree

    def stop(self) -> float:
        """SIGTERM: it ends with code 0 and leaves no process. Returns the seconds it took."""
        tree = self.tree()
        asked_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == 0, self.story()
        took_s = time.monotonic() - asked_s
        assert _running(psutil.wait_procs(tree, timeout=1)[1]) == []
        return took_s

    def story(self) -> str:
        return "".join(self.errors[-60:])

    def close(self) -> None:
        tree = self.tree() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        psutil.wait_procs(tree, timeout=STOP_S + 10)
        for thread in self._threads:
            thread.join(TIMEOUT_S)


def _running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Without those that have ended and wait for the machine's first process to take note, which may be slow."""

    def runs(process: psutil.Process) -> bool:
        try:
            return bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    return [process for process in processes if runs(process)]


@contextmanager
def serving(config: Path, *arguments: str, cwd: Path | None = None, state: Path) -> Iterator[Up]:
    """An app under `streamserve up`, ready; killed at the end where the test has not stopped it."""
    up = Up(config, *arguments, cwd=cwd or config.parent, state=state)
    try:
        up.ready = up.next("ready", "stopped")
        assert up.ready["event"] == "ready", up.story()
        yield up
    finally:
        up.close()


def project(folder: Path, *, config: str, model: str, servers: str) -> Path:
    """Write a config and its `acceptance_models.py`; `APP` becomes a name that no other test has."""
    (folder / "acceptance_models.py").write_text(model, "utf-8")
    named = config.replace("APP", f"t{uuid.uuid4().hex[:10]}")
    file = folder / "app.toml"
    file.write_text(f'{named}\n[broker]\nbootstrap_servers = "{servers}"\n', "utf-8")
    return file


def metric(port: int, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels, as the process tells it now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    samples = [
        line
        for line in lines
        if line.partition(" ")[0].partition("{")[0] == name and all(text in line for text in wanted)
    ]
    return sum(float(line.rpartition(" ")[2]) for line in samples)
