"""An app of a few lines that shares no code with ours: answers every request through confluent-kafka.

The label of a row is the sum of its numbers. Models: `sum@1` answers, `odd@1` says one more, `gone@1` is missing.
"""

from __future__ import annotations

import json
import threading
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition

TIMEOUT_S = 20.0


class Responder:
    """Reads `<app>.requests.v1` from its start, on a thread."""

    def __init__(self, bootstrap_servers: str, app: str, partitions: int, *, doubled: bool = False) -> None:
        """`doubled`: every terminal record is written twice, the second one with another label."""
        self._app, self._doubled = app, doubled
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": f"{app}-foreign", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(f"{app}.requests.v1", n, 0) for n in range(partitions)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.trouble: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self._consumer.close()
        assert self.trouble == []

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                self.trouble.append(str(message.error()))
                continue
            for shift in (0, 1000) if self._doubled else (0,):
                self._answer(message, shift)
            self._producer.flush(TIMEOUT_S)

    def _answer(self, message: Any, shift: int) -> None:
        ref = f"{message.partition()}-{message.offset()}"
        body = terminal(message.value(), ref, shift)
        self._producer.produce(
            f"{self._app}.predictions.v1",
            partition=message.partition(),
            key=message.key() or body["id"].encode(),
            value=json.dumps(body),
            headers=[("ss-ref", ref), ("ss-id", body["id"]), ("ss-outcome", body["parameters"]["outcome"])],
        )


def terminal(value: bytes, ref: str, shift: int = 0) -> dict[str, Any]:
    """The terminal record of a request."""
    parameters = {
        "outcome": "partial",
        "reason": "members_missing",
        "probability": 1.0,
        "epoch": -1,
        "chosen": "sum@1,odd@1,gone@1",
        "missing": "gone@1=late",
        "confidence": 0.5,
        "queue_ms": 1,
        "inference_ms": 2,
        "total_ms": 4,
    }
    try:
        request = json.loads(value)
        (tensor,) = request["inputs"]
        width = len(tensor["data"]) // tensor["shape"][0]
        rows = [tensor["data"][start : start + width] for start in range(0, len(tensor["data"]), width)]
    except ValueError:
        parameters |= {"outcome": "error", "reason": "not_json", "chosen": "", "detail": "no JSON at all"}
        del parameters["missing"], parameters["confidence"]
        return {"model_name": "", "id": ref, "outputs": [], "parameters": parameters}
    sums = [sum(row) + shift for row in rows]
    outputs = [
        {"name": "label", "shape": [len(rows)], "datatype": "FP64", "data": sums},
        {"name": "member.odd@1", "shape": [len(rows)], "datatype": "FP64", "data": [each + 1 for each in sums]},
    ]
    return {"model_name": "digits", "id": request.get("id", ref), "outputs": outputs, "parameters": parameters}
