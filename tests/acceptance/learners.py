"""A learner that tests may kill, beside an app's topics and its worker: each a process of its own."""

from __future__ import annotations

import signal
import subprocess
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.running import COMMAND, TIMEOUT_S

MODELS = ("tens@1", "units@1")
MODEL = """
import numpy as np

def tens(batch):
    return batch[:, 0].astype(np.int64) // 10 % 10

def units(batch):
    return batch[:, 0].astype(np.int64) % 10
"""


class Learner:
    """`streamserve learn` as a process under a fixed name; the next one has its predecessor's partitions at once."""

    def __init__(self, config: Path) -> None:
        self.status = config.parent / f"learner-{uuid.uuid4().hex}.json"
        name = ["--instance", "0", "--status-file", str(self.status)]
        self.log = (config.parent / "learner.log").open("ab")
        self._command = [*COMMAND, "learn", str(config), *name]
        self._started_s = time.monotonic()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=self.log, cwd=self.status.parent)

    @property
    def serves(self) -> bool:
        """A start that a slow machine's broker did not answer in time is begun again, as a supervisor would."""
        if self._process.poll() is not None:
            story = Path(self.log.name).read_text("utf-8")[-3000:]
            assert time.monotonic() - self._started_s < TIMEOUT_S, story
            self._process = self._start()
        return self.status.exists()

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        self._process.wait(TIMEOUT_S)
        self.log.close()


@contextmanager
def app(config: Path) -> Iterator[dict[str, Any]]:
    """The app's topics and its worker; what a foreign client needs to know."""
    name = tomllib.loads(config.read_text("utf-8"))["app"]["name"]
    servers = tomllib.loads(config.read_text("utf-8"))["broker"]["bootstrap_servers"]
    subprocess.run([*COMMAND, "topics", "create", str(config)], check=True, cwd=config.parent, capture_output=True)
    status = config.parent / "worker.json"
    arguments = ["worker", str(config), "--pool", "main", "--status-file", str(status)]
    with subprocess.Popen([*COMMAND, *arguments], cwd=config.parent, stderr=subprocess.DEVNULL) as worker:
        try:
            until = time.monotonic() + TIMEOUT_S
            while not status.exists():
                assert worker.poll() is None and time.monotonic() < until
                time.sleep(0.05)
            kinds = ("requests", "predictions", "feedback", "outcomes", "epochs", "policy", "contexts", "dlq")
            yield {"bootstrap_servers": servers, "topics": {kind: f"{name}.{kind}.v1" for kind in kinds}}
        finally:
            worker.terminate()
