from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np

from streamserve.core.effects import EmitPredictions
from streamserve.core.events import Event, Produced
from streamserve.core.reasons import Outcome
from streamserve.kafka import intake
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.codecs.predictions import encode_predictions
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.perform import Performer, Topics
from streamserve.testing.log import MemoryGroupReader, MemoryLog, MemoryWriter
from tests.kafka.test_metrics import predictions, value

KINDS = ("requests", "answers", "predictions", "feedback", "outcomes", "epochs", "policy", "dlq")
TOPICS = Topics(**{kind: kind for kind in KINDS})


def performer_on(log: MemoryLog, metrics: RoleMetrics, events: list[Event], max_bytes: int = 1 << 20) -> Performer:
    encoders = replace(intake.encoders(TOPICS), predictions=partial(encode_predictions, max_bytes=max_bytes))
    return Performer(
        topics=TOPICS,
        encoders=encoders,
        writer=MemoryWriter(log),
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


async def test_a_record_that_became_too_large_is_counted_as_the_error_that_it_says() -> None:
    log, events, metrics = MemoryLog({"predictions": 1, "requests": 1}), [], RoleMetrics("worker", "a")
    block = replace(predictions([Outcome.OK] * 2, [1] * 2), ids=["short", "x" * 5_000])
    performer_on(log, metrics, events, max_bytes=2_000).perform(EmitPredictions(token=1, predictions=block))
    name = "streamserve_requests_total"
    assert value(metrics, name, route="r", outcome="ok", reason="all_answered") == 1
    assert value(metrics, name, route="r", outcome="error", reason="output_too_large") == 1
    assert block.outcome.tolist() == [Outcome.OK, Outcome.OK]
