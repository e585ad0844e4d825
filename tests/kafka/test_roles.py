"""Whole roles on the real broker, started from a config, stopped by a real signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest

from streamserve.errors import ConfigError, TopicsDiffer
from streamserve.kafka import admin
from streamserve.kafka.clients import KafkaReader
from streamserve.kafka.ports import At, Chunk, Columns, Record
from streamserve.kafka.roles import Start, run_aggregate, run_learn, run_worker, topics_of
from streamserve.kafka.writer import KafkaWriter
from streamserve.settings import Settings, load_settings

WAIT_S = 30.0
CONFIG = """
[app]
name = "{app}"
partitions = 2
fused = "{fused}"
[broker]
bootstrap_servers = "{servers}"
{pools}
[models.plus]
source = "signs_{app}:plus"
[models.minus]
source = "signs_{app}:minus"
[routes.sign]
models = ["plus", "minus"]
policy = {{ name = "hedge", eta = 0.5 }}
deadline_ms = 20000
"""
ONE_POOL = '[pools.main]\nmodels = ["plus", "minus"]\n'
TWO_POOLS = '[pools.left]\nmodels = ["plus"]\n[pools.right]\nmodels = ["minus"]\n'
MODELS = """
def plus(batch):
    return (batch.sum(axis=1) > 0).astype("int64")

def minus(batch):
    return (batch.sum(axis=1) <= 0).astype("int64")
"""


@pytest.fixture
def settings(broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Settings:
    app = f"t{uuid.uuid4().hex[:10]}"
    fused = request.param == "fused"
    (tmp_path / f"signs_{app}.py").write_text(MODELS)
    config = tmp_path / "app.toml"
    config.write_text(
        CONFIG.format(
            app=app,
            fused="auto" if fused else "never",
            servers=broker.bootstrap_servers,
            pools=ONE_POOL if fused else TWO_POOLS,
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return load_settings(config)


async def make_topics(settings: Settings) -> None:
    servers = settings.broker.bootstrap_servers or ""
    await admin.create(servers, await admin.declared_topics(settings, servers, {}), {})


async def exchange(
    settings: Settings, tmp_path: Path, n: int, *roles: Coroutine[Any, Any, None]
) -> list[dict[str, Any]]:
    """Start roles, send n requests, return the predictions once all are there and the roles have stopped."""
    options = {"bootstrap_servers": settings.broker.bootstrap_servers}
    topics = topics_of(settings.app.name)
    writer, reader = KafkaWriter(options), KafkaReader(options)
    await writer.start()
    await reader.start()
    tasks = [asyncio.create_task(role) for role in roles]
    try:
        body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1.0, 2.0]}]}
        for i in range(n):
            value = orjson.dumps({"id": str(i), **body})
            await writer.send(At(topics.requests, i % 2), Columns.of([Record(value=value)]))
        reader.read({At(topics.predictions, partition): 0 for partition in range(2)})
        chunks = await read(reader, n, tasks)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait(tasks, timeout=WAIT_S)
        await reader.stop()
        await writer.stop()
    for task in tasks:
        task.result()
    return [json.loads(value or b"") for chunk in chunks for value in chunk.values]


async def read(reader: KafkaReader, n: int, tasks: list[asyncio.Task[None]]) -> list[Chunk]:
    chunks: list[Chunk] = []
    async with asyncio.timeout(WAIT_S):
        while sum(len(chunk) for chunk in chunks) < n and not any(task.done() for task in tasks):
            chunks += await reader.fetch(max_records=100, timeout_ms=200)
    return chunks


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.parametrize("settings", ["fused"], indirect=True)
async def test_a_fused_worker_answers_each_request_once(settings: Settings, tmp_path: Path) -> None:
    await make_topics(settings)
    status = tmp_path / "status"
    start = Start(instance="0", metrics_port=0, status_file=status)
    found = await exchange(settings, tmp_path, 20, run_worker(settings, "main", start))
    assert sorted(int(prediction["id"]) for prediction in found) == list(range(20))
    assert {prediction["parameters"]["outcome"] for prediction in found} == {"ok"}
    told = json.loads(status.read_text())
    assert told["event"] == "serving"
    assert told["metrics_port"] > 0


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.parametrize("settings", ["split"], indirect=True)
async def test_pools_aggregator_and_learner_work_together(settings: Settings, tmp_path: Path) -> None:
    await make_topics(settings)
    start = Start(metrics_port=0)
    # One process is the test: signals reach the role that listened last, so the others are stopped through it.
    found = await exchange(
        settings,
        tmp_path,
        20,
        _all(
            run_worker(settings, "left", start),
            run_worker(settings, "right", start),
            run_aggregate(settings, start),
            run_learn(settings, start),
        ),
    )
    assert sorted(int(prediction["id"]) for prediction in found) == list(range(20))
    assert {prediction["parameters"]["outcome"] for prediction in found} == {"ok"}
    assert {prediction["parameters"]["chosen"] for prediction in found} == {"plus@1,minus@1"}


async def _all(*roles: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(role) for role in roles]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    while pending:
        os.kill(os.getpid(), signal.SIGTERM)
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.result()


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.parametrize("settings", ["fused"], indirect=True)
async def test_a_role_refuses_to_start_without_its_topics(settings: Settings) -> None:
    with pytest.raises(TopicsDiffer, match="streamserve topics create"):
        await run_worker(settings, "main")


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.parametrize("settings", ["fused"], indirect=True)
async def test_an_aggregator_of_a_fused_app_is_refused(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="this app is fused"):
        await run_aggregate(settings)
