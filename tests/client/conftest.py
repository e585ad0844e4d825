"""Coroutine tests run on an event loop of their own; a log in memory, and an app on it that answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
import pytest

from streamserve.kafka.ports import Ack, At, Columns, LogReader, LogWriter, Record
from streamserve.testing.log import MemoryLog, MemoryLookups, MemoryReader, MemoryWriter, Stored

APP = "digits"
PARTITIONS = 3
REQUESTS, PREDICTIONS, FEEDBACK = (f"{APP}.{kind}.v1" for kind in ("requests", "predictions", "feedback"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


class MemoryClientLookups(MemoryLookups):
    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self._memory = log

    async def partition_count(self, topic: str) -> int:
        return len(self._memory.partitions(topic))

    async def first_since(self, times_ms: Mapping[At, int]) -> dict[At, int]:
        found = {}
        for at, time_ms in times_ms.items():
            later = [r.offset for r in self._memory.records(at.topic)[at.partition] if r.append_ms >= time_ms]
            if later:
                found[at] = later[0]
        return found

    async def remove_before(self, at: At, offset: int) -> int:
        self._memory.delete_before(at, offset)
        return offset


@dataclass
class MemoryApp:
    """`ClientLog` on a log in memory, and what a server would do on it."""

    log: MemoryLog
    address: str = "memory"
    writers: list[MemoryWriter] = field(default_factory=list)

    def reader(self) -> LogReader:
        return MemoryReader(self.log)

    def writer(self) -> LogWriter:
        self.writers.append(MemoryWriter(self.log))
        return self.writers[-1]

    def lookups(self) -> MemoryClientLookups:
        return MemoryClientLookups(self.log)

    def requests(self) -> list[tuple[int, Stored]]:
        """(partition, record) of every request."""
        return [(partition, r) for partition, rs in self.log.records(REQUESTS).items() for r in rs]

    def answer(self, partition: int, offset: int, **more: object) -> Ack:
        """Write the terminal record of a request, its label being its offset."""
        value, headers = terminal(partition, offset, **more)
        return self.log.append(At(PREDICTIONS, partition), Columns.of([Record(value=value, headers=headers)]))

    async def answer_all(self, n: int) -> None:
        """Answer each of the first n requests as soon as it is there."""
        answered: set[tuple[int, int]] = set()
        while len(answered) < n:
            for partition, record in self.requests():
                if (partition, record.offset) not in answered:
                    answered.add((partition, record.offset))
                    self.answer(partition, record.offset)
            if len(answered) < n:
                await self.log.wait(1.0)


def terminal(
    partition: int, offset: int, *, label: int | None = None, outcome: str = "ok", id: str | None = None
) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """Value and headers of a terminal record."""
    ref = f"{partition}-{offset}"
    label = offset if label is None else label
    tensor = {"name": "label", "shape": [1], "datatype": "INT64", "data": [label]}
    answered = outcome in ("ok", "partial", "default")
    body = {
        "model_name": "digits",
        "id": id or ref,
        "outputs": [tensor] if answered else [],
        "parameters": {
            "outcome": outcome,
            "reason": "all_answered" if outcome == "ok" else "deadline_passed",
            "probability": 1.0,
            "epoch": -1,
            "chosen": "linear@1",
            "queue_ms": 2,
            "inference_ms": 1,
            "total_ms": 5,
        },
    }
    return orjson.dumps(body), (("ss-ref", ref.encode()), ("ss-id", ref.encode()), ("ss-outcome", outcome.encode()))


@pytest.fixture
def app() -> MemoryApp:
    return MemoryApp(MemoryLog(dict.fromkeys((REQUESTS, PREDICTIONS, FEEDBACK), PARTITIONS)))
