from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from streamserve.core.effects import EmitAnswers, EmitPredictions
from streamserve.core.events import Event, Produced, ProduceFailed
from streamserve.core.messages import DeadLetters
from streamserve.core.reasons import Outcome
from streamserve.kafka import intake
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.codecs.predictions import encode_predictions
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.perform import Performer, Topics
from streamserve.kafka.ports import Ack, At, RecordColumns
from streamserve.testing.log import MemoryGroupReader, MemoryLog, MemoryWriter
from tests.core.test_aggregator import answers
from tests.kafka.test_metrics import predictions, value

KINDS = ("requests", "answers", "predictions", "feedback", "outcomes", "epochs", "policy", "contexts", "dlq")
TOPICS = Topics(**{kind: kind for kind in KINDS})


def performer_on(
    log: MemoryLog,
    metrics: RoleMetrics,
    events: list[Event],
    max_bytes: int = 1 << 20,
    writer: MemoryWriter | None = None,
) -> Performer:
    encoders = replace(intake.encoders(TOPICS), predictions=partial(encode_predictions, max_bytes=max_bytes))
    return Performer(
        topics=TOPICS,
        encoders=encoders,
        writer=writer or MemoryWriter(log),
        runner=None,
        clock=BrokerClock(),
        metrics=metrics,
        post=events.append,
        post_quietly=events.append,
        ledgers={},
        driving=("requests", MemoryGroupReader(log, topic="requests", group="g")),
        followed=None,
    )


async def test_terminal_records_of_several_partitions_are_written_apart_and_acknowledged_together() -> None:
    log, events = MemoryLog({"predictions": 3, "requests": 3}), []
    performer = performer_on(log, RoleMetrics("worker", "a"), events)
    block = replace(predictions([Outcome.OK] * 4, [1] * 4), partition=np.array([0, 2, 0, 2]))
    performer.perform(EmitPredictions(token=7, predictions=block))
    async with asyncio.timeout(5):
        while not events:  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0)
    assert [(event.token, event.offsets) for event in events if isinstance(event, Produced)] == [(7, {0: 0, 2: 0})]
    written = {
        partition: [dict(stored.headers)["ss-ref"].decode() for stored in stored_records]
        for partition, stored_records in log.records("predictions").items()
    }
    assert written == {0: ["0-0", "0-2"], 1: [], 2: ["2-1", "2-3"]}


class Half(MemoryWriter):
    """Refuses partition 2, and the end of what is sent to partition 1."""

    def send(self, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        sent = super().send(at, records)
        if at.partition:
            whole = sent.result()
            sent = asyncio.get_running_loop().create_future()
            sent.set_result(replace(whole, error="refused", written=2 if at.partition == 1 else 0))
        return sent


async def test_where_one_partition_fails_what_stands_in_the_others_is_told() -> None:
    log, events = MemoryLog({"predictions": 3, "answers": 3, "requests": 3}), []
    performer = performer_on(log, RoleMetrics("worker", "a"), events, writer=Half(log))
    block = replace(predictions([Outcome.OK] * 6, [1] * 6), partition=np.array([0, 1, 2, 1, 0, 1]))
    performer.perform(EmitPredictions(token=7, predictions=block))
    assert performer.unacknowledged == 6
    (said,) = answers("a@1", [0, 1, 2], [1, 2, 3], partition=np.array([0, 1, 1])).blocks
    performer.perform(EmitAnswers(token=8, answers=said))
    assert performer.unacknowledged == 9, "rows, though a record holds several"
    async with asyncio.timeout(5):
        while len(events) < 2:  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0)
    assert performer.unacknowledged == 0
    told = {event.token: event.written for event in events if isinstance(event, ProduceFailed)}
    assert told == {7: {0: 2, 1: 2}, 8: {0: 1}}, "one record holds several answers: none of a partition, or all"


async def test_a_record_that_became_too_large_is_counted_as_the_error_that_it_says() -> None:
    log, events, metrics = MemoryLog({"predictions": 1, "requests": 1}), [], RoleMetrics("worker", "a")
    block = replace(predictions([Outcome.OK] * 2, [1] * 2), ids=["short", "x" * 5_000])
    performer_on(log, metrics, events, max_bytes=2_000).perform(EmitPredictions(token=1, predictions=block))
    name = "streamserve_requests_total"
    assert value(metrics, name, route="r", outcome="ok", reason="all_answered") == 1
    assert value(metrics, name, route="r", outcome="error", reason="output_too_large") == 1
    assert block.outcome.tolist() == [Outcome.OK, Outcome.OK]


class RefusesOnce(MemoryWriter):
    refused = False

    def send(self, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        if self.refused:
            return super().send(at, records)
        self.refused = True
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(Ack(error="refused"))
        return sent


async def test_a_rejected_record_counts_as_unacknowledged_until_its_dead_letter_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamserve.kafka.perform._RETRY_S", 0.01)
    log, events = MemoryLog({"dlq": 1, "requests": 1}), []
    performer = performer_on(log, RoleMetrics("join", "a"), events, writer=RefusesOnce(log))
    letters = DeadLetters(
        source="feedback",
        partition=0,
        offsets=np.arange(2),
        append_ms=np.zeros(2, np.int64),
        keys=[None] * 2,
        values=[b"junk"] * 2,
        headers=[()] * 2,
        reasons=["not_json"] * 2,
        details=["no"] * 2,
        stage="join",
    )
    performer.reject(letters)
    await asyncio.sleep(0)
    assert (performer.unacknowledged, log.records("dlq")[0]) == (2, [])
    async with asyncio.timeout(5):
        while performer.unacknowledged:  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.001)
    assert len(log.records("dlq")[0]) == 2
