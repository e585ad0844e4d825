"""What a program holds, as the codecs of the server read it back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from streamserve.client import UnusableInput
from streamserve.client.inputs import MAX_RECORD_BYTES, Codec, request_record
from streamserve.core.codec import Decoded
from streamserve.kafka.codecs import input_codec
from streamserve.kafka.ports import Record

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
          "float64"]  # fmt: skip


def read(codec: Codec, record: Record) -> Decoded:
    return input_codec(codec, MAX_RECORD_BYTES).decode([record.value], [record.headers])


def rows(decoded: Decoded) -> np.ndarray:
    assert decoded.errors == {}
    (group,) = decoded.groups
    return group.array


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda name: arrays.arrays(
            np.dtype(name),
            arrays.array_shapes(min_dims=2, max_dims=4, max_side=4),
            elements=arrays.from_dtype(np.dtype(name), allow_nan=False, allow_infinity=False),
        )
    ),
    st.sampled_from(["oip", "raw"]),
    st.booleans(),
)
def test_an_array_comes_back_as_it_was(x: np.ndarray, codec: Codec, big_endian: bool) -> None:
    sent = x.astype(x.dtype.newbyteorder(">")) if big_endian else x
    found = rows(read(codec, request_record(sent[::-1], codec=codec)))
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x[::-1])


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        ([1, 2, 3], (1, 3), np.int64),
        ([[1, 2], [3, 4]], (2, 2), np.int64),
        ([1.5, 2], (1, 2), np.float64),
        ((True, False), (1, 2), np.bool_),
        (np.float32([1, 2]), (1, 2), np.float32),
        (["a", "b"], (2,), object),
        ([["a", "b"]], (1, 2), object),
        (np.array(["a", "ü"]), (2,), object),
    ],
)
def test_how_many_rows_an_input_has(x: object, shape: tuple[int, ...], dtype: type) -> None:
    found = rows(read("oip", request_record(x)))  # type: ignore[arg-type]
    assert (found.shape, found.dtype) == (shape, np.dtype(dtype))
    assert found.tolist() == np.asarray(x).reshape(shape).tolist()


def test_rows_and_text_and_bytes() -> None:
    decoded = read("rows", request_record([[1, 2], [3, 4]], codec="rows", id="a"))
    assert (rows(decoded).tolist(), decoded.ids) == ([[1.0, 2.0], [3.0, 4.0]], ["a"])
    text = request_record("gut – 好", id="a")
    assert (rows(read("text", text)).tolist(), text.headers) == (["gut – 好"], (("ce_id", b"a"),))
    assert rows(read("oip", request_record("word", codec="oip"))).tolist() == ["word"]
    whole = request_record(
        b"\x00anything", codec="oip", route="r", deadline_ms=5, priority=-2, context="eu", key="k", id="a"
    )
    assert whole == Record(
        value=b"\x00anything",
        key=b"k",
        headers=(
            ("ce_id", b"a"),
            ("ss-route", b"r"),
            ("ss-deadline-ms", b"5"),
            ("ss-priority", b"-2"),
            ("ss-context", b"eu"),
        ),
    )


def test_raw_takes_what_json_lacks() -> None:
    x = np.array([[np.nan, np.inf]])
    np.testing.assert_array_equal(rows(read("raw", request_record(x, codec="raw"))), x)
    with pytest.raises(UnusableInput, match="NaN or infinity, which JSON lacks"):
        request_record(x)


@pytest.mark.parametrize(
    ("x", "more", "words"),
    [
        ([[1], [2, 3]], {}, "give rows of equal length"),
        ([], {}, r"shape \[0\]"),
        ([1], {"priority": 10}, "priority = 10: allowed are whole numbers from -9 to 9"),
        ([1], {"priority": True}, "priority = True"),
        ([1], {"priority": 1.0}, "priority = 1.0"),
        (np.zeros((3, 0)), {}, r"shape \[3, 0\]"),
        (7, {}, r"shape \[\]"),
        (["a", None], {}, "values of different kinds"),
        (np.array([1 + 2j]), {}, "dtype complex128"),
        (np.array(["2020-01-01"], "datetime64[D]"), {}, "dtype datetime64"),
        (np.longdouble([1]), {}, "floats to 64 bits"),
        (["a"], {"codec": "raw"}, "a raw tensor is one of bool"),
        ([1, 2], {"codec": "text"}, "this route reads text: give one str"),
        ("", {}, "empty text"),
        ("\ud800", {}, "x is not Unicode text"),
        ([["\ud800"]], {}, "cannot be written as JSON"),
        ([1], {"deadline_ms": 0}, "deadline_ms = 0: allowed"),
        ([1], {"deadline_ms": True}, "deadline_ms = True: allowed"),
        ([1], {"deadline_ms": "abc"}, "deadline_ms = 'abc': allowed"),
        ([1], {"deadline_ms": 1.5}, "deadline_ms = 1.5: allowed"),
        ([1], {"key": "\ud800"}, "key is not Unicode text"),
        (b"x" * MAX_RECORD_BYTES, {}, "the requests topic takes 4128768: send less"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_words(x: object, more: dict[str, object], words: str) -> None:
    with pytest.raises(UnusableInput, match=words):
        request_record(x, **more)  # type: ignore[arg-type]
