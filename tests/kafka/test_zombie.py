"""A worker that was stopped for longer than its session, and goes on: it writes nothing and commits nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from streamserve.kafka import admin
from streamserve.kafka.clients import KafkaReader
from streamserve.kafka.lookups import KafkaLookups
from streamserve.kafka.ports import At, Columns, Record
from streamserve.kafka.roles import topics_of
from streamserve.kafka.writer import KafkaWriter
from streamserve.settings import load_settings

WAIT_S = 30.0
PARTITIONS = 2
CONFIG = """
[app]
name = "{app}"
partitions = 2
[broker]
bootstrap_servers = "{servers}"
[group]
session_timeout_ms = 2000
heartbeat_interval_ms = 200
commit_interval_ms = 50
[pools.main]
models = ["plus"]
[models.plus]
source = "zombie:plus"
[routes.sign]
models = ["plus"]
policy = {{ name = "static" }}
deadline_ms = 20000
"""
MODEL = "def plus(batch):\n    return batch.sum(axis=1)\n"
BODY = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1.0, 2.0]}]}

pytestmark = pytest.mark.broker


@contextmanager
def worker(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "streamserve.cli", "worker", "app.toml", "--pool", "main"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--metrics-port", "0", "--status-file", str(folder / name)], cwd=folder, stderr=log, stdout=log
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def partitions_of(folder: Path, name: str) -> list[int]:
    """What a worker owns; nothing before it serves."""
    if not (folder / name).exists():
        return []
    port = json.loads((folder / name).read_text())["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
        found: list[int] = json.load(answer)["partitions"]
    return found


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await true():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.05)


class Traffic:
    """Requests sent, and the terminal records that came, by ref."""

    def __init__(self, servers: str, app: str) -> None:
        self.topics, options = topics_of(app), {"bootstrap_servers": servers}
        self.writer, self.reader, self.lookups = KafkaWriter(options), KafkaReader(options), KafkaLookups(options)
        self.refs: Counter[bytes] = Counter()
        self.sent = 0
        self._group = f"{app}.terminal"

    async def __aenter__(self) -> Traffic:
        for part in (self.writer, self.reader, self.lookups):
            await part.start()
        self.reader.read({At(self.topics.predictions, number): 0 for number in range(PARTITIONS)})
        return self

    async def __aexit__(self, *_error: object) -> None:
        for part in (self.writer, self.reader, self.lookups):
            await part.stop()

    async def send(self, n: int) -> None:
        for i in range(self.sent, self.sent + n):
            value = orjson.dumps({"id": str(i), **BODY})
            await self.writer.send(At(self.topics.requests, i % PARTITIONS), Columns.of([Record(value=value)]))
        self.sent += n

    async def _fetch(self) -> None:
        for chunk in await self.reader.fetch(max_records=500, timeout_ms=50):
            self.refs.update(dict(headers)["ss-ref"] or b"" for headers in chunk.headers)

    async def answered(self) -> bool:
        await self._fetch()
        return len(self.refs) == self.sent

    async def committed(self) -> list[int]:
        found = await self.lookups.committed(
            self._group, [At(self.topics.requests, number) for number in range(PARTITIONS)]
        )
        return sorted(commit.offset for commit in found.values())


async def test_a_worker_stopped_beyond_its_session_neither_answers_nor_commits(broker: Any, tmp_path: Path) -> None:
    app, servers = f"t{uuid.uuid4().hex[:10]}", broker.bootstrap_servers
    (tmp_path / "zombie.py").write_text(MODEL)
    (tmp_path / "app.toml").write_text(CONFIG.format(app=app, servers=servers))
    await admin.create(servers, await admin.declared_topics(load_settings(tmp_path / "app.toml"), servers, {}), {})

    async def owns(name: str, n: int) -> bool:
        return len(await asyncio.to_thread(partitions_of, tmp_path, name)) == n

    async with Traffic(servers, app) as traffic:
        with worker(tmp_path, "first") as first:
            await until(lambda: owns("first", PARTITIONS))
            await traffic.send(20)
            await until(traffic.answered)
            first.send_signal(signal.SIGSTOP)
            # These go into the stopped process's socket: it has them all when it wakes up.
            await traffic.send(20)
            with worker(tmp_path, "second") as second:
                await until(lambda: owns("second", PARTITIONS))
                await until(traffic.answered)
                await until(lambda: _equal(traffic.committed, [20, 20]))
                first.send_signal(signal.SIGCONT)
                await until(lambda: owns("first", 1))  # it has come back as one of two
                await traffic.send(20)
                await until(traffic.answered)
                await until(lambda: _equal(traffic.committed, [30, 30]))
                assert first.poll() is None
                assert second.poll() is None
                assert await traffic.answered()
    assert set(traffic.refs.values()) == {1}


async def _equal(value: Callable[[], Awaitable[list[int]]], expected: list[int]) -> bool:
    return await value() == expected
