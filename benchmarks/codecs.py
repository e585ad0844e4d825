"""What a record costs in each codec, in microseconds: `python -m benchmarks.codecs`.

The case is that of the other benchmarks: single rows of 20 doubles, one model, whole-number labels, blocks of 200.
Processor time, best of many short rounds, garbage collector off: what the code costs, not what else the machine did.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson

from benchmarks.job import FEATURES, encode_requests, request_rows
from streamserve.core.messages import PROBABILITY_ONE, Answers, AnyArray, Choice, DeadLetters, Headers, Predictions
from streamserve.kafka.codecs import (
    INPUT_CODECS,
    decode_answers,
    decode_decision,
    decode_feedback,
    encode_answers,
    encode_dead_letters,
    encode_predictions,
)

BLOCK = 200
BLOCKS = 3
ROUNDS = 100
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def microseconds_per_record(work: Callable[[], object], records: int) -> float:
    """Best of `ROUNDS`, each of `BLOCKS` calls that treat `records` records."""
    best = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            start = time.process_time()
            for _ in range(BLOCKS):
                work()
            best = min(best, time.process_time() - start)
    finally:
        gc.enable()
    return best / (BLOCKS * records) * 1e6


def choices(n: int) -> Choice:
    return Choice(
        chosen=np.ones(n, np.uint64),
        probability=np.full(n, PROBABILITY_ONE),
        epoch=np.full(n, 311),
        stale=np.zeros(n, np.bool_),
    )


def predictions(n: int, labels: AnyArray, *, probabilities: bool = False) -> Predictions:
    """`n` requests of one row each, answered by one model, with ids, keys and traces."""
    names = [f"{index:08d}" for index in range(n)]
    return Predictions(
        partition=np.full(n, 3),
        route="tabular",
        models=("linear@1",),
        offsets=np.arange(n) + 1_000_000,
        append_ms=np.full(n, 1_767_225_604_210),
        keys=[name.encode() for name in names],
        ids=list(names),
        traces=[TRACE] * n,
        outcome=np.zeros(n, np.uint8),
        reason=np.zeros(n, np.uint8),
        row_starts=np.arange(n + 1),
        labels=labels,
        probabilities=np.random.default_rng(1).random((n, 2)) if probabilities else None,
        classes=np.array([0, 1]) if probabilities else None,
        confidence=np.random.default_rng(2).random(n),
        choice=choices(n),
        answered=np.ones(n, np.uint64),
        missing=np.zeros((n, 1), np.uint8),
        members=(),
        queue_ms=np.arange(n, dtype=np.int32) % 50,
        inference_ms=np.arange(n, dtype=np.int32) % 7,
        total_ms=np.arange(n, dtype=np.int32) % 70,
        late=np.zeros(n, np.bool_),
        off_epoch=np.zeros(n, np.bool_),
    )


def answers(n: int) -> Answers:
    return Answers(
        partition=np.full(n, 3),
        route="tabular",
        model="linear@1",
        offsets=np.arange(n) + 1_000_000,
        row_starts=np.arange(n + 1),
        labels=np.arange(n) % 2,
        probabilities=np.random.default_rng(1).random((n, 2)),
        classes=np.array([0, 1]),
        missing=np.zeros(n, np.uint8),
        ids=[f"{index:08d}" for index in range(n)],
        choice=choices(n),
        queue_ms=np.zeros(n, np.int32),
        inference_ms=np.zeros(n, np.int32),
    )


def dead_letters(n: int) -> DeadLetters:
    return DeadLetters(
        source="requests",
        partition=3,
        offsets=np.arange(n),
        append_ms=np.arange(n),
        keys=[b"key"] * n,
        values=[b"{" * 200] * n,
        headers=[()] * n,
        reasons=["not_json"] * n,
        details=["not JSON: bad byte at 1"] * n,
        stage="worker",
    )


def input_cases() -> Mapping[str, Callable[[], object]]:
    rows = request_rows(BLOCK, seed=1)
    none: list[Headers] = [()] * BLOCK
    described: list[Headers] = [(("ss-dtype", b"float64"), ("ss-shape", b"1,%d" % FEATURES))] * BLOCK
    oip = encode_requests(rows)
    nested = [value.replace(b'"data":[', b'"data":[[').replace(b"]}]}", b"]]}]}") for value in oip]
    plain = [orjson.dumps([row.tolist()]) for row in rows]
    raw = [row.tobytes() for row in rows]
    text = [b"a text of some forty letters, as they come"] * BLOCK
    broken = [value[:-1] for value in oip]
    return {
        "oip, flat FP64": lambda: INPUT_CODECS["oip"].decode(oip, none),
        "oip, nested FP64": lambda: INPUT_CODECS["oip"].decode(nested, none),
        "oip, not JSON": lambda: INPUT_CODECS["oip"].decode(broken, none),
        "rows": lambda: INPUT_CODECS["rows"].decode(plain, none),
        "text": lambda: INPUT_CODECS["text"].decode(text, none),
        "raw": lambda: INPUT_CODECS["raw"].decode(raw, described),
    }


def output_cases() -> Mapping[str, Callable[[], object]]:
    labels = np.arange(BLOCK) % 2
    names = np.array(["yes", "no"], object)[labels]
    blocks: dict[str, Predictions] = {
        "predictions, INT64 label": predictions(BLOCK, labels),
        "predictions, text label": predictions(BLOCK, names),
        "predictions, with probabilities": predictions(BLOCK, labels, probabilities=True),
    }
    return {name: partial(encode_predictions, block) for name, block in blocks.items()}


def loop_cases() -> Mapping[str, Callable[[], object]]:
    block = answers(BLOCK)
    (encoded,) = encode_answers(block)
    prediction = encode_predictions(predictions(1, np.array([1]))).values[0] or b""
    letters = dead_letters(BLOCK)
    place: dict[str, Any] = {"partition": 3, "offset": 9, "append_ms": 1_000}
    said = b'{"id":"00000017","label":1}'
    return {
        "answers, write": lambda: encode_answers(block),
        "answers, read": lambda: decode_answers(encoded, 3),
        "dead letters": lambda: encode_dead_letters(letters, "tabular.requests.v1"),
        "decision": lambda: [decode_decision(prediction) for _ in range(BLOCK)],
        "feedback": lambda: [decode_feedback(said, (("ss-ref", b"3-17"),), **place) for _ in range(BLOCK)],
    }


def main() -> None:
    one = predictions(1, np.array([1]))
    print(f"{'microseconds a record, blocks of ' + str(BLOCK):<40}")
    for name, work in {**input_cases(), **output_cases(), **loop_cases()}.items():
        print(f"{name:<34}{microseconds_per_record(work, BLOCK):>6.2f}")
    print(f"{'predictions, block of one':<34}{microseconds_per_record(lambda: encode_predictions(one), 1):>6.2f}")


if __name__ == "__main__":
    main()
