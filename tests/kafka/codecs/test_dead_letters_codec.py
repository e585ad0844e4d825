"""Dead letters: the original, and why."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from aiokafka.producer.message_accumulator import BatchBuilder

from streamserve.core.messages import DeadLetters
from streamserve.kafka.codecs.dead_letters import MAX_VALUE_BYTES, encode_dead_letters

LARGE = bytes(range(256)) * 300
LETTERS = DeadLetters(
    source="requests",
    partition=3,
    offsets=np.array([7, 9, 12]),
    append_ms=np.array([1, 2, 3]),
    keys=[b"k", None, None],
    values=[b"\xff", None, LARGE],
    headers=[(("a", b"1"), ("b", None), ("a", b"\xff")), (), ()],
    reasons=["not_json", "empty_value", "too_large"],
    details=["not JSON: bad \ud800", "a tombstone", "too much"],
    stage="worker",
)


def test_each_is_as_it_came_with_where_and_why() -> None:
    records = encode_dead_letters(LETTERS, "digits.requests.v1")
    assert records.keys == [b"k", None, None]
    assert records.values == [b"\xff", b"", LARGE[:MAX_VALUE_BYTES]]
    assert records.headers[0] == [
        ("a", b"1"),
        ("b", None),
        ("a", b"\xff"),
        ("__connect.errors.topic", b"digits.requests.v1"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"7"),
        ("__connect.errors.stage", b"worker"),
        ("__connect.errors.exception.message", b"not JSON: bad ?"),
        ("ss-reason", b"not_json"),
    ]
    assert dict(records.headers[2])["ss-sha256"] == sha256(LARGE).hexdigest().encode()
    assert "ss-sha256" not in dict(records.headers[1])


def test_a_batch_builder_takes_them() -> None:
    records = encode_dead_letters(LETTERS, "digits.requests.v1")
    builder = BatchBuilder(1 << 20, 0)
    for key, value, headers in zip(records.keys, records.values, records.headers, strict=True):
        assert builder.append(timestamp=None, key=key, value=value, headers=headers) is not None
