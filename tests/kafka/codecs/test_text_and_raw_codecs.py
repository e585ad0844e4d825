"""Text values, and tensors as bytes with headers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamserve.core.codec import Decoded
from streamserve.core.messages import Headers
from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.inputs import input_codec
from streamserve.kafka.codecs.raw import DTYPES

TEXT = input_codec("text", 1 << 20)
RAW = input_codec("raw", 1 << 20)


def headers(dtype: bytes | None, shape: bytes | None) -> Headers:
    return (("other", b"\xff"), ("ss-dtype", dtype), ("ss-shape", shape))


def raw(value: bytes, dtype: bytes | None, shape: bytes | None) -> Decoded:
    return RAW.decode([value], [headers(dtype, shape)])


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5))
def test_every_text_arrives_unchanged(texts: list[str]) -> None:
    decoded = TEXT.decode([text.encode() for text in texts], [()] * len(texts))
    (rows,) = decoded.groups
    assert rows.array.dtype == object
    assert rows.array.tolist() == texts
    assert decoded.first_row.tolist() == list(range(len(texts)))


def test_what_is_not_utf_8_says_where() -> None:
    decoded = TEXT.decode([b"ab\xff", b"good"], [()] * 2)
    assert decoded.errors == {0: (Reason.WRONG_FORM, "the value is not UTF-8: bad byte at 2")}
    assert decoded.groups[0].array.tolist() == ["good"]


@pytest.mark.parametrize("name", sorted(DTYPES))
@given(data=st.data())
def test_every_tensor_arrives_bit_for_bit(name: str, data: st.DataObject) -> None:
    shape = data.draw(npst.array_shapes(min_dims=1, max_dims=4, max_side=4))
    sent = data.draw(npst.arrays(DTYPES[name].newbyteorder("<"), shape))  # NaN and infinity too
    text = ",".join(map(str, shape)).encode()
    decoded = RAW.decode([sent.tobytes()] * 2, [headers(name.encode(), text)] * 2)
    assert decoded.errors == {}
    (rows,) = decoded.groups
    assert rows.array.dtype == DTYPES[name]
    assert rows.array.shape == (2 * shape[0], *shape[1:])
    assert rows.array.tobytes() == 2 * sent.tobytes()


@pytest.mark.parametrize(
    ("value", "dtype", "shape", "reason"),
    [
        (b"\x00" * 8, None, b"1,1", Reason.WRONG_DATATYPE),
        (b"\x00" * 8, b"float128", b"1,1", Reason.WRONG_DATATYPE),
        (b"\x00" * 8, b"object", b"1,1", Reason.WRONG_DATATYPE),
        (b"\x00" * 8, b"<f8", b"1,1", Reason.WRONG_DATATYPE),
        (b"\x00\x02", b"bool", b"1,2", Reason.WRONG_DATATYPE),
        (b"\x00" * 8, b"\xff", b"1,1", Reason.BAD_HEADER),
        (b"\x00" * 8, b"float64", b"\xff", Reason.BAD_HEADER),
        (b"\x00" * 8, b"float64", b"(1,1)", Reason.BAD_HEADER),
        (b"\x00" * 8, b"float64", b"1,,1", Reason.BAD_HEADER),
        (b"\x00" * 8, b"float64", b"1x1", Reason.BAD_HEADER),
        (b"\x00" * 8, b"float64", b"1" * 5_000, Reason.BAD_HEADER),
        (b"\x00" * 8, b"float64", "\N{ARABIC-INDIC DIGIT ONE}".encode(), Reason.BAD_HEADER),
        (b"\x00" * 8, b"float64", b"1,2", Reason.WRONG_SHAPE),
        (b"\x00" * 7, b"float64", b"1,1", Reason.WRONG_SHAPE),
        (b"\x00" * 8, b"float64", b"-1,1", Reason.WRONG_SHAPE),
        (b"\x00" * 8, b"float64", b"1000000000,0", Reason.WRONG_SHAPE),
        (b"\x00" * 8, b"float64", b",".join([b"1"] * 30), Reason.WRONG_SHAPE),
        (b"\x00" * 8, b"float64", None, Reason.NO_ROWS),
        (b"\x00" * 8, b"float64", b"0,1", Reason.NO_ROWS),
    ],
)
def test_what_cannot_be_read_has_its_reason(
    value: bytes, dtype: bytes | None, shape: bytes | None, reason: Reason
) -> None:
    assert raw(value, dtype, shape).errors[0][0] == reason


def test_a_dimension_beyond_the_limit_is_told_with_the_limit() -> None:
    assert raw(b"\x00" * 8, b"float64", b"1,9999999999").errors[0][1].endswith("from 0 to 2147483648")


@pytest.mark.parametrize("given_headers", [(), (("ss-dtype", b"float64"),), (("ss-shape", b"1,1"),)])
def test_a_missing_header_is_named(given_headers: Any) -> None:
    reason, words = RAW.decode([b"\x00" * 8], [given_headers]).errors[0]
    assert reason == Reason.BAD_HEADER
    assert "needs ss-dtype and ss-shape" in words


def test_spaces_and_repeated_headers() -> None:
    given_headers = (("ss-shape", b"9"), ("ss-dtype", b" float64 "), ("ss-shape", b"1, 2"))
    decoded = RAW.decode([np.array([1.0, np.nan], "<f8").tobytes()], [given_headers])
    assert np.array_equal(decoded.groups[0].array, [[1.0, np.nan]], equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "shape", "named"), [(b"\xff", b"1,1", "ss-dtype"), (b"float64", b"\xff", "ss-shape")]
)
def test_the_header_that_is_not_utf8_is_named(dtype: bytes, shape: bytes, named: str) -> None:
    _, words = RAW.decode([bytes(8)], [headers(dtype, shape)]).errors[0]
    assert words == f"header {named} is b'\\xff': not UTF-8"
