"""`streamserve up` as a process of its own: started, waited for, listened to, stopped."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

#: From nothing a broker has to start and six processes to load their models; after `make setup` it takes seconds.
READY_WITHIN_S = 120.0
#: `up` stops its roles and its broker in order within 10 s.
STOP_WITHIN_S = 15.0
_LOOK_S = 0.1
_QUOTED_LINES = 25


class AppFailedError(Exception):
    """`streamserve up` did not start, or did not stop as it should; the message has its own words."""


@dataclass(slots=True, kw_only=True)
class App:
    """A running `streamserve up --json`."""

    process: subprocess.Popen[str]
    log: Path
    """What it writes to its standard error."""
    bootstrap_servers: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    news: list[str] = field(default_factory=list)
    """Events other than `ready` and `status`."""

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """SIGTERM, and wait. Raises `AppFailedError` where its exit code is not 0 or it takes too long."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AppFailedError(f"streamserve up had not stopped {STOP_WITHIN_S:.0f} s after SIGTERM") from None
        if code != 0:
            raise AppFailedError(f"streamserve up ended with exit code {code}:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of what it wrote for a person."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.is_file() else []
        return "\n".join(f"  {line}" for line in [*self.news[-5:], *lines[-_QUOTED_LINES:]]) or "  (it said nothing)"


@contextmanager
def running(config: Path, *, log: Path, environment: Mapping[str, str], folder: Path, most_s: float) -> Iterator[App]:
    """`streamserve up config --json`, ready to serve; killed with all its children when the block is left.

    `folder`: its working folder, from which the models' import paths are found. `most_s`: it stops by itself after so
    long, should we be killed before we can stop it. Raises `AppFailedError` where it does not become ready.
    """
    # A cluster that the caller's environment names is left alone: the run wants a new Kafka of its own.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STREAMSERVE_BROKER__")}
    with log.open("w", encoding="utf-8") as stderr:
        # A session of its own: Ctrl-C goes to us, and we stop it in order.
        process = subprocess.Popen(
            _command(config, most_s),
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**inherited, **environment},
            text=True,
            start_new_session=True,
        )
    app = App(process=process, log=log)
    try:
        _await_ready(app)
        yield app
    finally:
        _end(process)


def _command(config: Path, most_s: float) -> list[str]:
    # No spares: nothing is killed in this run, and loading them would take the cores from those that serve.
    options = ["--json", "--no-spares", "--duration", str(most_s)]
    return [sys.executable, "-m", "streamserve.cli", "up", str(config), *options]


def _end(process: subprocess.Popen[str]) -> None:
    """In order if it still runs; else, or on a second Ctrl-C, at once: its children end when it has ended."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_WITHIN_S)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await_ready(app: App) -> None:
    ready: queue.Queue[Mapping[str, Any]] = queue.Queue()
    if app.process.stdout is None:  # never: it was started with a pipe
        raise AppFailedError("streamserve up has no standard output")
    threading.Thread(target=_listen, args=(app, app.process.stdout, ready.put), name="app", daemon=True).start()
    until_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until_s:
        with suppress(queue.Empty):
            event = ready.get(timeout=_LOOK_S)
            app.bootstrap_servers, app.topics = event["bootstrap_servers"], event["topics"]
            return
        if not app.lives:
            raise AppFailedError(
                f"streamserve up did not start (exit code {app.process.returncode}). It said:\n{app.last_words()}"
            )
    raise AppFailedError(f"streamserve up was not ready after {READY_WITHIN_S:.0f} s. It said:\n{app.last_words()}")


def _listen(app: App, lines: IO[str], ready: Callable[[Mapping[str, Any]], None]) -> None:
    """Read events until the output ends; a line that is none is kept as words."""
    for line in lines:
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, TypeError, KeyError):
            app.news.append(line.rstrip())
            continue
        if kind == "ready":
            ready(event)
        elif kind != "status":
            app.restarts += kind == "restarted"
            app.news.append(str(event.get("words", line.rstrip())))
    lines.close()
