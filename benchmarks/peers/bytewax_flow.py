"""Bytewax: `python -m bytewax.run benchmarks.peers.bytewax_flow:collected` (or `:unbuffered`).

`collected` batches with `collect(64, 5 ms)` per partition, as its users would; `unbuffered` calls the model on each
source batch of up to 500 instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow, Stream

from benchmarks import job
from benchmarks.peers.settings import PeerSettings

COLLECT_ROWS = 64
COLLECT_WAIT = timedelta(milliseconds=5)
UNBUFFERED_ROWS = 500


class _Predict:
    def __init__(self, settings: PeerSettings) -> None:
        self._models = job.load_models(settings.models)

    def __call__(self, messages: Iterable[Any]) -> list[KafkaSinkMessage[bytes, bytes]]:
        batch = list(messages)
        ids, inputs = job.decode_rows([message.value for message in batch])
        labels = job.predict_labels(self._models, inputs)
        return [
            KafkaSinkMessage(key=message.key, value=job.encode_answer(request_id, label), partition=message.partition)
            for message, request_id, label in zip(batch, ids, labels.tolist(), strict=True)
        ]


def _source(settings: PeerSettings, flow: Dataflow, rows: int) -> Stream[Any]:
    brokers = [settings.bootstrap_servers]
    return op.input("requests", flow, KafkaSource(brokers, [settings.requests_topic], batch_size=rows))


def _sink(settings: PeerSettings, answers: Stream[Any]) -> None:
    brokers = [settings.bootstrap_servers]
    op.output("answers", answers, KafkaSink(brokers, settings.answers_topic, add_config={"linger.ms": "1"}))


def collected() -> Dataflow:
    settings = PeerSettings.from_environment()
    predict = _Predict(settings)
    flow = Dataflow("tabular")
    keyed = op.key_on("partition", _source(settings, flow, COLLECT_ROWS), lambda message: str(message.partition))
    batches = op.collect("collect", keyed, COLLECT_WAIT, COLLECT_ROWS)
    _sink(settings, op.flat_map("predict", batches, lambda keyed_batch: predict(keyed_batch[1])))
    return flow


def unbuffered() -> Dataflow:
    settings = PeerSettings.from_environment()
    flow = Dataflow("tabular")
    _sink(settings, op.flat_map_batch("predict", _source(settings, flow, UNBUFFERED_ROWS), _Predict(settings)))
    return flow
