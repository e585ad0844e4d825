"""The slow parser reads what the fast one reads, and what it refuses."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.kafka.rawfetch import parse
from tests.effort import examples

GZIP = 1
_some_bytes = st.one_of(st.none(), st.binary(max_size=300))
_record = st.tuples(_some_bytes, _some_bytes, st.lists(st.tuples(st.text("abc", max_size=5), _some_bytes), max_size=3))


def batch_of(
    records: list[Any], base: int = 0, codec: int = 0, *, transactional: bool = False, producer: int = -1
) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, int(transactional), producer, 0, 0, 1 << 20)
    for i, (key, value, headers) in enumerate(records):
        builder.append(i, 1_000 + i, key, value, headers)
    return struct.pack(">q", base) + bytes(builder.build())[8:]


@given(st.lists(_record, min_size=1, max_size=20), st.integers(0, 1 << 40), st.sampled_from([0, GZIP]))
@settings(max_examples=examples(60))
def test_it_reads_what_the_fast_parser_reads(records: list[Any], base: int, codec: int) -> None:
    data = batch_of(records, base, codec)
    found, next_offset = parse(data, base, None)
    fast = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in DefaultRecordBatch(data)]
    assert [tuple(r) for r in found] == fast
    assert next_offset == base + len(records)


def test_a_header_name_that_is_not_utf8_is_written_out() -> None:
    data = batch_of([(b"k", b"v", [("name", b"x")])]).replace(b"name", b"\xff\xfeme")
    records, _ = parse(data, 0, None)
    assert records[0].headers == (("\\xff\\xfeme", b"x"),)
    assert records[0].value == b"v"


def test_records_below_the_position_are_left_out() -> None:
    data = batch_of([(None, b"%d" % i, []) for i in range(5)], base=10)
    records, next_offset = parse(data, 13, None)
    assert [(r.offset, r.value) for r in records] == [(13, b"3"), (14, b"4")]
    assert next_offset == 15


def test_records_of_an_aborted_transaction_are_left_out() -> None:
    data = batch_of([(None, b"aborted", [])], transactional=True, producer=5)
    data += batch_of([(None, b"kept", [])], base=1, producer=6)
    assert [r.value for r in parse(data, 0, [(5, 0)])[0]] == [b"kept"]
    assert [r.value for r in parse(data, 0, None)[0]] == [b"aborted", b"kept"]


def test_each_offset_of_a_batch_that_cannot_be_read_becomes_a_record_that_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = bytearray(batch_of([(None, b"x" * 100, [])] * 3, codec=GZIP))
    bad[70:90] = b"\x00" * 20
    records, next_offset = parse(bytes(bad) + batch_of([(None, b"good", [])], base=3), 1, None)
    assert [(r.offset, r.value) for r in records] == [(1, None), (2, None), (3, b"good")]
    assert records[0].headers[0][0] == "ss-unreadable"
    assert records[0].append_ms == 1_002
    assert next_offset == 4
    assert "cannot be read" in caplog.text


def test_the_readable_head_of_a_damaged_batch_is_kept() -> None:
    data = batch_of([(None, b"%d" % i * 9, []) for i in range(4)])
    at = data.index(b"2" * 9) - 1  # the length of the third value
    records, next_offset = parse(data[:at] + b"\x7f" + data[at + 1 :], 0, None)
    assert [r.value for r in records] == [b"0" * 9, b"1" * 9, None, None]
    assert next_offset == 4


def test_an_aborted_or_control_batch_that_cannot_be_read_has_no_records() -> None:
    bad = bytearray(batch_of([(None, b"x" * 100, [])], codec=GZIP, transactional=True, producer=5))
    bad[70:90] = b"\x00" * 20
    assert parse(bytes(bad), 0, [(5, 0)]) == ([], 1)


@given(st.binary(max_size=40), st.integers(0, 200))
@settings(max_examples=examples(200))
def test_bytes_that_are_changed_never_raise(noise: bytes, at: int) -> None:
    data = bytearray(batch_of([(b"key", b"value" * 10, [("h", b"x")])] * 3))
    at %= len(data)
    data[at : at + len(noise)] = noise[: len(data) - at]
    parse(bytes(data), 0, None)
