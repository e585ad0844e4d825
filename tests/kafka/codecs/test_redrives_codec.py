"""What a redrive leaves in the log: read back as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.errors import ContractError, MalformedRecord
from streamserve.kafka.codecs.dead_letters import DeadLetter, Source
from streamserve.kafka.codecs.redrives import (
    RedriveMark,
    decode_mark,
    encode_mark,
    redriven_from,
    redriven_record,
    times_redriven,
)
from streamserve.kafka.ports import At

REQUESTS = "digits.requests.v1"
TOPICS = st.sampled_from([REQUESTS, "digits.feedback.v1"])
NUMBERS = st.integers(0, 2**31 - 1)
SOURCES = st.builds(Source, TOPICS, NUMBERS, st.integers(0, 2**63 - 1))
MARKS = st.builds(
    RedriveMark,
    is_done=st.booleans(),
    sources=st.lists(SOURCES, max_size=5).map(tuple),
    since=st.dictionaries(st.builds(At, TOPICS, NUMBERS), st.integers(0, 2**63 - 1), max_size=3),
)


@given(MARKS)
def test_a_mark_is_read_as_it_was_written(mark: RedriveMark) -> None:
    record = encode_mark(mark)
    assert decode_mark(record.value, tuple(record.headers)) == mark


def test_what_is_no_mark_and_what_cannot_be_read() -> None:
    begun = ("ss-redrive", b"begun")
    assert decode_mark(b"{}", ()) is None
    assert decode_mark(b"{}", (("ss-redrive", b"soon"),)) is None
    assert decode_mark(b"{}", (begun, ("__connect.errors.topic", b"x"))) is None  # a request that has such a header
    for value in (None, b"", b"{}", b"[1]", b'{"v":1,"records":[["a","b","c"]]}'):
        with pytest.raises(MalformedRecord, match="a mark of a redrive"):
            decode_mark(value, (begun,))
    with pytest.raises(ContractError, match="its version is 2"):
        decode_mark(b'{"v":2,"records":[]}', (begun,))


def letter(*headers: tuple[str, bytes | None]) -> DeadLetter:
    return DeadLetter(source=Source(REQUESTS, 1, 17), stage="", reason="", message="", headers=headers)


def test_a_record_is_put_back_with_its_own_headers_and_two_of_ours() -> None:
    original = (("a", b"1"), ("a", None), ("ss-route", b"r"))
    record = redriven_record(letter(*original), key=b"k", value=b"v", earlier=0, id=None)
    assert (record.key, record.value) == (b"k", b"v")
    assert record.headers == [*original, ("ss-redriven", b"1"), ("ss-redriven-from", b"1-17")]
    assert redriven_from(tuple(record.headers), REQUESTS) == Source(REQUESTS, 1, 17)


def test_redrives_are_counted_over_all_its_dead_letters() -> None:
    headers = (("ss-redriven", b"2"), ("x", b"y"), ("ss-redriven-from", b"0-3"))
    record = redriven_record(letter(*headers), key=None, value=None, earlier=1, id="1-17")
    assert record.headers == [
        ("x", b"y"),
        ("ce_id", b"1-17"),
        ("ss-redriven", b"4"),
        ("ss-redriven-from", b"1-17"),
    ]
    assert times_redriven((("ss-redriven", b"many"),)) == times_redriven(()) == 0
    assert redriven_from((("ss-redriven-from", b"x"),), REQUESTS) is None
    assert redriven_from((), REQUESTS) is None
