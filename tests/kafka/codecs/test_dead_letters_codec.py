"""Dead letters: the original, and why."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder

from streamserve.core.messages import DeadLetters, Headers
from streamserve.errors import MalformedRecord
from streamserve.kafka.codecs.dead_letters import MAX_VALUE_BYTES, decode_dead_letter, encode_dead_letters

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


def test_what_was_written_is_read_back() -> None:
    records = encode_dead_letters(LETTERS, "digits.requests.v1")
    first, _, cut = (decode_dead_letter(tuple(headers)) for headers in records.headers)
    assert first.source == ("digits.requests.v1", 3, 7)
    assert first.source.ref == "3-7"
    assert (first.stage, first.reason, first.message) == ("worker", "not_json", "not JSON: bad ?")
    assert (first.exception, first.stack, first.model, first.attempts, first.sha256) == ("", "", "", "", "")
    assert first.headers == LETTERS.headers[0]
    assert cut.sha256 == sha256(LARGE).hexdigest()


def test_headers_of_the_original_that_are_named_like_ours_stay_its_own() -> None:
    theirs = tuple(encode_dead_letters(LETTERS, "digits.requests.v1").headers[0])
    again = encode_dead_letters(replace(LETTERS, headers=[theirs, (), ()]), "digits.feedback.v1")
    read = decode_dead_letter(tuple(again.headers[0]))
    assert read.source.topic == "digits.feedback.v1"
    assert read.headers == theirs


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("ss-reason", b"x"),),
        (("__connect.errors.topic", b"t"),),
        (("__connect.errors.topic", b"t"), ("__connect.errors.partition", b"-1"), ("__connect.errors.offset", b"0")),
        (("__connect.errors.topic", b"t"), ("__connect.errors.partition", b"1"), ("__connect.errors.offset", None)),
    ],
)
def test_what_is_no_dead_letter_of_ours(headers: Headers) -> None:
    with pytest.raises(MalformedRecord):
        decode_dead_letter(headers)
