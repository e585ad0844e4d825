"""A worker's models come and go while it serves, as the configs of the log say."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamserve.assembly import app_rules, sections_of
from streamserve.core.effects import Count
from streamserve.core.events import BatchFinished, ModelsHosted
from streamserve.errors import BrokerError
from streamserve.kafka import pool
from streamserve.kafka.codecs.configs import PROPOSED_KEY, encode_config
from streamserve.kafka.codecs.hosts import LEASE_MS, SAY_EVERY_MS, decode_hosts
from streamserve.kafka.configs import Configs
from streamserve.kafka.hosting import announcement, load_pool
from streamserve.kafka.pool import LivePool
from streamserve.kafka.ports import At, Chunk, Record
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes.base import Runtime
from streamserve.settings import Settings, parse_settings

NOW_MS = 1_000_000
MODELS = """
import numpy as np
def first(batch): return batch[:, 0]
def second(batch): return -batch[:, 0]
def broken(): raise ValueError("its file is damaged")
"""


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "live_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "_LET_GO_S", 0.0)


def settings_of(**models: str) -> Settings:
    """Name -> source."""
    names = ", ".join(f'"{name}"' for name in models)
    tables = "".join(f'models.{name}.source = "live_models:{source}"\n' for name, source in models.items())
    app = 'app = { name = "a", max_deadline_ms = 1000 }'
    return parse_settings(f"{app}\npools.p.models = [{names}]\nroutes.r.models = [{names}]\n{tables}", "app.toml")


def chunk(*records: tuple[int, Record], append_ms: int = NOW_MS) -> Chunk:
    n = len(records)
    return Chunk(
        at=At("a.models.v1", 0),
        offsets=np.array([offset for offset, _ in records], np.int64),
        append_ms=np.full(n, append_ms, np.int64),
        keys=[record.key for _, record in records],
        values=[record.value for _, record in records],
        headers=[()] * n,
        next_offset=records[-1][0] + 1,
        lag=0,
    )


def config(settings: Settings, number: int, *, in_force: bool) -> tuple[int, Record]:
    return number, encode_config(sections_of(settings), number, in_force=in_force)


def configs_of(settings: Settings) -> Configs:
    return Configs(settings, app_rules(settings))


class Process:
    """A worker's pool, without the rest of it."""

    def __init__(self, settings: Settings) -> None:
        self.now_ms = NOW_MS
        self.runtimes: dict[str, Runtime] = load_pool(settings, "p")
        self.finished: asyncio.Queue[BatchFinished] = asyncio.Queue()
        self.runner = ModelRunner(self.runtimes, self.finished.put_nowait)
        self.configs = configs_of(settings)
        self.posted: list[Any] = []
        self.counted: list[Count] = []
        self.said: list[Record] = []
        self.live = LivePool(
            "p",
            self.runtimes,
            self.configs,
            announcement(settings, "p", "0", self.runtimes),
            runner=self.runner,
            post=self.posted.append,
            count=self.counted.append,
            now_ms=lambda: self.now_ms,
        )
        self.live.say = self._say

    async def _say(self, announcement: Any) -> None:
        self.said.append(announcement.record)

    async def hears(self, *records: tuple[int, Record], append_ms: int = NOW_MS) -> Any:
        """What it then says that it hosts."""
        self.configs.take(chunk(*records, append_ms=append_ms))
        await self.live.look()
        return decode_hosts(self.said[-1].value, "") if self.said else None

    async def call(self, model: str) -> BatchFinished:
        self.runner.submit(1, model, np.ones((1, 1)))
        return await self.finished.get()


async def test_what_is_proposed_is_loaded_warmed_and_told_of() -> None:
    process = Process(settings_of(one="first"))
    hosts = await process.hears(config(settings_of(one="first", two="second"), 1, in_force=False))
    assert (hosts.models, hosts.seen, hosts.failed) == (["one@1", "two@1"], 1, {})
    assert set(process.posted[-1].models) == {"one@1", "two@1"}
    outputs = (await process.call("two@1")).outputs
    assert outputs is not None
    assert outputs.labels.tolist() == [-1.0]


async def test_a_model_that_cannot_be_loaded_is_told_of_and_the_others_serve_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process(settings_of(one="first"))
    with caplog.at_level(logging.ERROR, "streamserve"):
        hosts = await process.hears(config(settings_of(one="first", bad="broken()"), 1, in_force=False))
    assert hosts.models == ["one@1"]
    assert "its file is damaged" in hosts.failed["bad@1"]
    assert "bad@1 cannot be loaded" in caplog.text
    assert [(count.what, count.label, count.n) for count in process.counted] == [("models", "not_loaded", 1)]
    assert (await process.call("one@1")).outputs is not None


async def test_what_the_broker_did_not_take_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    process = Process(settings_of(one="first"))

    async def refuse(_announcement: Any) -> None:
        raise BrokerError("it is away")

    process.live.say = refuse
    with caplog.at_level(logging.WARNING, "streamserve"):
        await process.hears(config(settings_of(one="first", two="second"), 1, in_force=False))
    assert "cannot be told yet: it is away" in caplog.text
    process.live.say = process._say
    await process.live.look()
    assert len(process.said) == 1
    await process.live.look()
    assert len(process.said) == 1


async def test_what_it_hosts_is_said_again_so_that_nobody_takes_it_for_gone() -> None:
    process = Process(settings_of(one="first"))
    for _ in range(7):
        await process.live.look()
        process.now_ms += SAY_EVERY_MS // 2
    assert len(process.said) == 4
    hosts = decode_hosts(process.said[-1].value, "")
    assert hosts is not None
    assert (hosts.models, hosts.lease_ms) == (["one@1"], LEASE_MS)


async def test_a_proposal_that_is_taken_back_is_let_go() -> None:
    process = Process(settings_of(one="first"))
    await process.hears(config(settings_of(one="first", two="second"), 1, in_force=False))
    hosts = await process.hears((2, Record(key=PROPOSED_KEY, value=None)))
    assert hosts.models == ["one@1"]


async def test_a_model_is_let_go_when_no_request_can_ask_for_it_and_its_memory_is_free() -> None:
    before, after = settings_of(one="first", two="second"), settings_of(two="second")
    process = Process(before)
    gone = weakref.ref(process.runtimes["one@1"])
    hosts = await process.hears(config(before, 1, in_force=True), config(after, 2, in_force=True))
    assert hosts.models == ["one@1", "two@1"]
    process.now_ms = NOW_MS + 1_000 + 1_000 + 60_000 + 1_000  # delay, longest deadline, a minute, the delay once more
    await process.live.look()
    hosts = decode_hosts(process.said[-1].value, "")
    assert hosts is not None
    assert hosts.models == ["two@1"]
    assert process.posted[-1] == ModelsHosted(models=process.posted[-1].models)
    assert set(process.posted[-1].models) == {"two@1"}
    for _ in range(100):  # its thread ends by itself
        gc.collect()
        if gone() is None:
            break
        await asyncio.sleep(0.01)
    assert gone() is None


async def test_a_process_that_starts_later_follows_the_log_not_its_file() -> None:
    process = Process(settings_of(one="first"))
    await process.hears(
        config(settings_of(one="first"), 1, in_force=True), config(settings_of(two="second"), 2, in_force=True)
    )
    assert set(process.configs.newest.models) == {"two"}
    assert sorted(process.runtimes) == ["one@1", "two@1"]


def test_a_config_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    configs = configs_of(settings_of(one="first"))
    number, record = config(settings_of(one="first"), 1, in_force=True)
    damaged = Record(key=record.key, value=(record.value or b"").replace(b'"source"', b'"sauce"'))
    with caplog.at_level(logging.ERROR, "streamserve"):
        assert configs.take(chunk((number, damaged))) == ()
    assert "routes stay as they are" in caplog.text


def test_a_config_gives_its_routes_with_their_place_in_the_log() -> None:
    configs = configs_of(settings_of(one="first"))
    record = configs.take(chunk(config(settings_of(one="first"), 7, in_force=True)))[0]
    assert (record.number, record.offset, record.append_ms) == (7, 7, NOW_MS)
    assert [(route.name, route.models, route.pools) for route in record.routes] == [("r", ("one@1",), ("p",))]


def test_configs_that_no_request_is_decided_by_any_more_are_forgotten() -> None:
    """Also where nobody asks what a pool is to host: by an aggregator and a learner."""
    configs = configs_of(settings_of(one="first"))
    for number in range(1, 30):
        at_ms = NOW_MS + 24 * 3_600_000 * number
        configs.take(chunk(config(settings_of(one="first"), number, in_force=True), append_ms=at_ms))
    assert len(configs._in_force) == 2
    assert configs.seen == 29
