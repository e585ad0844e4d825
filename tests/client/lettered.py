"""An app's log in memory with dead letters in it, written as our roles write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.client.dead_letters import Filter, Survey, survey
from streamserve.client.redrive import Result, look_for_unsure, plan, redrive, settle, writing
from streamserve.client.scanning import scanning
from streamserve.client.targets import RouteHint
from streamserve.core.messages import DeadLetters, Failure
from streamserve.kafka.codecs import encode_dead_letters
from streamserve.kafka.ports import At, Columns, LogWriter, Record
from streamserve.testing.log import ManualClock, MemoryLog, Stored
from streamserve.topics import Kind, topic_name
from tests.client.conftest import APP, FEEDBACK, PARTITIONS, REQUESTS, MemoryApp

DLQ = topic_name(APP, Kind.DLQ)


class Lettered:
    """Each record comes a second after the last."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=self.clock.epoch)
        self.app = MemoryApp(self.log)

    @property
    def now_ms(self) -> int:
        return int(self.clock.epoch() * 1000)

    def letter(
        self,
        value: bytes | None = b"poison",
        *headers: tuple[str, bytes | None],
        source: str = "requests",
        at: tuple[int, int] = (0, 0),
        key: bytes | None = b"k",
        reason: str = "refused",
        message: str = "it raised",
        model: str = "",
        stack: str = "",
    ) -> str:
        """Write one; its place."""
        self.clock.advance(1000)
        failure = Failure(exception="ValueError", stack=stack, attempts=2, model=model)
        letters = DeadLetters(
            source=source,
            partition=at[0],
            offsets=np.array([at[1]]),
            append_ms=np.array([self.now_ms]),
            keys=[key],
            values=[value],
            headers=[headers],
            reasons=[reason],
            details=[message],
            stage="aggregator",
            failures={0: failure} if model else {},
        )
        ack = self.log.append(At(DLQ, at[0]), encode_dead_letters(letters, f"{APP}.{source}.v1"))
        return f"{at[0]}-{ack.offset}"

    def write(self, topic: str, partition: int, value: bytes | None, *headers: tuple[str, bytes | None]) -> None:
        self.clock.advance(1000)
        self.log.append(At(topic, partition), Columns.of([Record(value=value, headers=headers)]))

    async def survey(self, chosen: Filter | None = None, **more: Any) -> Survey:
        async with scanning(self.app) as scanner:
            return await survey(APP, scanner, chosen or Filter(), **more)

    async def places(self, **chosen: Any) -> list[str]:
        return [letter.place for letter in (await self.survey(Filter(**chosen))).letters]

    async def plan(
        self, chosen: Filter | None = None, *, routes: Mapping[str, RouteHint] | None = None, **more: Any
    ) -> tuple[Survey, list[Result]]:
        async with scanning(self.app) as scanner:
            found = await survey(APP, scanner, chosen or Filter(), routes=routes, whole=True)
            unsure = await look_for_unsure(scanner, found.marks, {letter.said.source for letter in found.letters})
        async with writing(self.app) as writer:
            await settle(writer, found, unsure)
        return found, plan(APP, found, {REQUESTS: PARTITIONS, FEEDBACK: PARTITIONS}, unsure, **more)

    async def do(self, found: Survey, planned: list[Result], writer: LogWriter | None = None) -> list[Result]:
        async with scanning(self.app) as scanner:
            doing = redrive(scanner, writer or self.app.writer(), found, planned)
            return [result async for result in doing]

    async def redrive(self, chosen: Filter | None = None, **more: Any) -> list[Result]:
        return await self.do(*await self.plan(chosen, **more))

    def records(self, topic: str) -> list[tuple[int, Stored]]:
        return [(partition, record) for partition, records in self.log.records(topic).items() for record in records]
