"""Every figure of `/metrics` has a source: a worker and a learner on the real broker, driven, then looked at."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from streamserve.kafka import admin
from streamserve.kafka.clients import KafkaReader
from streamserve.kafka.ports import At, Columns, Record
from streamserve.kafka.roles import Start, run_learn, run_worker, topics_of
from streamserve.kafka.writer import KafkaWriter
from streamserve.settings import Settings, load_settings

WAIT_S = 30.0
CONFIG = """
[app]
name = "{app}"
partitions = 1
[broker]
bootstrap_servers = "{servers}"
[pools.main]
models = ["plus", "broken"]
[models.plus]
source = "figures_{app}:plus"
[models.broken]
source = "figures_{app}:broken"
[routes.sign]
models = ["plus", "broken"]
policy = {{ name = "hedge", eta = 0.5 }}
deadline_ms = 20000
"""
MODELS = """
from streamserve.runtimes.metrics import report_metric

def plus(batch):
    report_metric("rows_seen", len(batch))
    return (batch.sum(axis=1) > 0).astype("int64")

def broken(batch):
    raise ValueError("it broke")
"""
BODY = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1.0, 2.0]}]}

pytestmark = [pytest.mark.broker, pytest.mark.beside]


@pytest.fixture
def settings(broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    app = f"t{uuid.uuid4().hex[:10]}"
    (tmp_path / f"figures_{app}.py").write_text(MODELS)
    config = tmp_path / "app.toml"
    config.write_text(CONFIG.format(app=app, servers=broker.bootstrap_servers))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return load_settings(config)


class App:
    """A worker and a learner of one app in this process, with a writer and a reader of its topics."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.options = {"bootstrap_servers": settings.broker.bootstrap_servers}
        self.settings = settings
        self.topics = topics_of(settings.app.name)
        self._folder = folder
        self._writer = KafkaWriter(self.options)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> App:
        servers = self.settings.broker.bootstrap_servers or ""
        await admin.create(servers, await admin.declared_topics(self.settings, servers, {}), {})
        await self._writer.start()
        worker = run_worker(self.settings, "main", Start(metrics_port=0, status_file=self._folder / "worker"))
        learner = run_learn(self.settings, Start(metrics_port=0, status_file=self._folder / "learn"))
        self._tasks = [asyncio.create_task(worker), asyncio.create_task(learner)]
        await self.until(lambda: all((self._folder / name).exists() for name in ("worker", "learn")))
        return self

    async def __aexit__(self, *_error: object) -> None:
        pending = set(self._tasks)
        while pending:  # a signal reaches the role that listened last
            os.kill(os.getpid(), signal.SIGTERM)
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
        await self._writer.stop()
        for task in self._tasks:
            task.result()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not true():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)

    async def send(self, topic: str, value: bytes | None, **headers: bytes) -> None:
        record = Record(value=value, headers=tuple((name.replace("_", "-"), text) for name, text in headers.items()))
        ack = await self._writer.send(At(topic, 0), Columns.of([record]))
        assert not ack.error

    async def read(self, topic: str, n: int) -> list[Record]:
        """The first n records of a topic."""
        reader, found = KafkaReader(self.options), list[Record]()
        await reader.start()
        try:
            reader.read({At(topic, 0): 0})
            async with asyncio.timeout(WAIT_S):
                while len(found) < n:
                    for chunk in await reader.fetch(max_records=100, timeout_ms=100):
                        columns = zip(chunk.values, chunk.keys, chunk.headers, strict=True)
                        found += [Record(value=value, key=key, headers=headers) for value, key, headers in columns]
        finally:
            await reader.stop()
        return found

    async def figures(self, role: str) -> dict[str, float]:
        """Sum over labels of each metric of a role, by name with the labels that were asked for left in."""
        port = orjson.loads((self._folder / role).read_text())["metrics_port"]
        address = f"http://127.0.0.1:{port}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(address, timeout=5).read().decode())
        found: dict[str, float] = {}
        for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", page, re.MULTILINE):
            for key in (name, *(f"{name}|{pair}" for pair in re.findall(r'\w+="[^"]*"', labels))):
                found[key] = found.get(key, 0.0) + float(value)
        return found

    async def figures_with(self, role: str, *names: str) -> dict[str, float]:
        """The figures, once each of `names` is above 0."""
        found: dict[str, float] = {}
        async with asyncio.timeout(WAIT_S):
            while [name for name in names if not found.get(name)]:
                found = await self.figures(role)
        return found


async def test_a_driven_worker_and_learner_have_all_figures(settings: Settings, tmp_path: Path) -> None:
    async with App(settings, tmp_path) as app:
        topics = app.topics
        for i in range(10):
            await app.send(topics.requests, orjson.dumps({"id": str(i), **BODY}))
        await app.send(topics.requests, b"no JSON")
        await app.read(topics.predictions, 11)
        await app.send(topics.feedback, orjson.dumps({"label": 1}), ss_ref=b"0-0")
        await app.send(topics.feedback, b"no JSON")
        worker = await app.figures_with(
            "worker",
            'streamserve_requests_total|outcome="partial"',
            'streamserve_requests_total|outcome="error"',
            "streamserve_request_duration_seconds_count",
            "streamserve_queue_wait_seconds_count",
            "streamserve_inference_duration_seconds_count",
            "streamserve_batch_size_count",
            "streamserve_batches_total",
            "streamserve_batches_failed_total",
            "streamserve_deadline_slack_seconds_count",
            "streamserve_dlq_records_total",
            'streamserve_ensemble_members_missing_total|member="broken@1"',
            'streamserve_bandit_selections_total|policy="hedge"',
            'streamserve_bandit_selections_total|arm="plus@1"',
            'streamserve_cache_requests_total|result="hit"',
            "streamserve_rebalances_total",
            "streamserve_build_info",
            'streamserve_model_metric|name="rows_seen"',
            "streamserve_consumed_records_total",
            "streamserve_assigned_partitions",
        )
        assert worker["streamserve_consumer_lag_records"] == 0
        assert worker["streamserve_drain_seconds"] == 0
        await app.figures_with(
            "learn",
            'streamserve_feedback_joined_total|status="matched"',
            'streamserve_consumed_records_total|role="join"',
            'streamserve_consumed_records_total|role="update"',
            'streamserve_events_total|what="outcomes"',
            "streamserve_dlq_records_total",
            "streamserve_model_weight",
        )


async def test_a_worker_says_what_it_hosts_and_that_it_has_left(settings: Settings, tmp_path: Path) -> None:
    async with App(settings, tmp_path) as app:
        hosts = next(r for r in await app.read(f"{settings.app.name}.models.v1", 2) if r.key != b"clock")
        assert orjson.loads(hosts.value or b"")["models"] == ["broken@1", "plus@1"]
        assert (hosts.key or b"").startswith(b"main/")
    _, gone = [r for r in await app.read(f"{settings.app.name}.models.v1", 3) if r.key != b"clock"]
    assert (gone.key, gone.value) == (hosts.key, None)


async def test_malformed_records_of_our_own_topics_are_skipped_counted_and_kept(
    settings: Settings, tmp_path: Path
) -> None:
    async with App(settings, tmp_path) as app:
        topics = app.topics
        await app.send(topics.outcomes, b'{"v":1}')
        await app.send(topics.epochs, b"[")
        await app.send(topics.answers, b"\xff")
        words = {"v": 1, "route": "sign", "context": "", "policy": "hedge", "data": {"x": []}, "includes": {}}
        unknown = orjson.dumps({**words, "previous": -1})
        await app.send(topics.epochs, unknown)
        letters = await app.read(topics.dlq, 4)
        sources = {dict(letter.headers)["__connect.errors.topic"] for letter in letters}
        assert sources == {name.encode() for name in (topics.outcomes, topics.epochs, topics.answers)}
        names = [f'streamserve_events_total|what="{kind}"' for kind in ("outcomes", "epochs", "answers")]
        await app.figures_with("learn", 'streamserve_dlq_records_total|reason="malformed"', *names)
        await app.figures_with("worker", 'streamserve_events_total|what="epochs"')
        # learning goes on behind them
        await app.send(topics.requests, orjson.dumps({"id": "1", **BODY}))
        await app.read(topics.predictions, 1)
        await app.send(topics.feedback, orjson.dumps({"label": 1}), ss_ref=b"0-0")
        await app.figures_with("learn", 'streamserve_events_total|label="learnt"')
        await app.read(topics.epochs, 3)
