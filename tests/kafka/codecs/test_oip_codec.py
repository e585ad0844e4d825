"""Open Inference Protocol v2 requests: what is read, and the reason of what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.codec import Decoded
from streamserve.core.messages import AnyArray
from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.inputs import input_codec

CODEC = input_codec("oip", 1 << 20)


def request(data: Any, shape: Any, datatype: Any = "FP64", **more: Any) -> bytes:
    return orjson.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "data": data}], **more})


def decode(*values: bytes) -> Decoded:
    return CODEC.decode(values, [()] * len(values))


def array_of(value: bytes) -> AnyArray:
    decoded = decode(value)
    assert decoded.errors == {}
    (rows,) = decoded.groups
    return rows.array


def reason_of(value: bytes) -> Reason:
    decoded = decode(value)
    assert decoded.group.tolist() == [-1]
    return decoded.errors[0][0]


@pytest.mark.parametrize(
    ("datatype", "dtype", "data"),
    [
        ("BOOL", np.bool_, [True, False]),
        ("UINT8", np.uint8, [0, 255]),
        ("UINT16", np.uint16, [0, 65535]),
        ("UINT32", np.uint32, [0, 2**32 - 1]),
        ("UINT64", np.uint64, [0, 2**64 - 1]),
        ("INT8", np.int8, [-128, 127]),
        ("INT16", np.int16, [-32768, 32767]),
        ("INT32", np.int32, [-(2**31), 2**31 - 1]),
        ("INT64", np.int64, [-(2**63), 2**63 - 1]),
        ("FP16", np.float16, [1.5, -2]),
        ("FP32", np.float32, [1.5, -2]),
        ("FP64", np.float64, [1.5, -2]),
        ("BYTES", object, ["a", "zwölf"]),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_every_datatype_flat_and_nested(datatype: str, dtype: Any, data: list[Any], nested: bool) -> None:
    array = array_of(request([data] if nested else data, [1, 2], datatype))
    assert array.dtype == dtype
    assert array.tolist() == [data]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", Reason.NOT_JSON),
        (b"\xff", Reason.NOT_JSON),
        (b'{"inputs":[{"shape":[1,1],"datatype":"FP64","data":[NaN]}]}', Reason.NOT_JSON),
        (b'{"inputs":[{"shape":[1,1],"datatype":"FP64","data":[Infinity]}]}', Reason.NOT_JSON),
        (b'{"inputs":[],"id":"\\ud800"}', Reason.NOT_JSON),
        (request([1], [1, 1]) + b"x", Reason.NOT_JSON),
        (b"[" * 100_000, Reason.WRONG_FORM),
        (b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Reason.WRONG_FORM),
        (b"1", Reason.WRONG_FORM),
        (b"[]", Reason.WRONG_FORM),
        (b"{}", Reason.WRONG_FORM),
        (b'{"inputs":{}}', Reason.WRONG_FORM),
        (b'{"inputs":[]}', Reason.WRONG_FORM),
        (b'{"inputs":[1]}', Reason.WRONG_FORM),
        (b'{"inputs":[{"datatype":"FP64"}]}', Reason.WRONG_FORM),
        (request({}, [1, 1]), Reason.WRONG_FORM),
        (request("1", [1, 1]), Reason.WRONG_FORM),
        (request([1], [1, 1], "FP8"), Reason.WRONG_DATATYPE),
        (request([1], [1, 1], 7), Reason.WRONG_DATATYPE),
        (request([1], [1, 1], []), Reason.WRONG_DATATYPE),
        (request(["1"], [1, 1]), Reason.WRONG_DATATYPE),
        (request([True], [1, 1]), Reason.WRONG_DATATYPE),
        (request([None], [1, 1]), Reason.WRONG_DATATYPE),
        (request([1.5], [1, 1], "INT64"), Reason.WRONG_DATATYPE),
        (request([1.0], [1, 1], "INT64"), Reason.WRONG_DATATYPE),
        (request([True], [1, 1], "INT64"), Reason.WRONG_DATATYPE),
        (request([256], [1, 1], "UINT8"), Reason.WRONG_DATATYPE),
        (request([-1], [1, 1], "UINT8"), Reason.WRONG_DATATYPE),
        (request([-129], [1, 1], "INT8"), Reason.WRONG_DATATYPE),
        (request([2**63], [1, 1], "INT64"), Reason.WRONG_DATATYPE),
        (request([1], [1, 1], "BOOL"), Reason.WRONG_DATATYPE),
        (request([1], [1, 1], "BYTES"), Reason.WRONG_DATATYPE),
        (request([1e300], [1, 1], "FP32"), Reason.WRONG_DATATYPE),
        (request([70_000], [1, 1], "FP16"), Reason.WRONG_DATATYPE),
        (request([7], [1, 1]).replace(b"7", b"1e400"), Reason.WRONG_DATATYPE),
        (request([7], [1, 1]).replace(b"7", b"1" + b"0" * 400), Reason.WRONG_DATATYPE),
        (request([7], [1, 1]).replace(b"7", b"1" + b"0" * 9_000), Reason.WRONG_DATATYPE),
        (request([7], [1, 1], "INT64").replace(b"7", b"1" + b"0" * 400), Reason.WRONG_DATATYPE),
        (request([1, 2], [1, 3]), Reason.WRONG_SHAPE),
        (request([1, 2, 3], [1, 2]), Reason.WRONG_SHAPE),
        (request([[1, 2, 3, 4]], [2, 2]), Reason.WRONG_SHAPE),
        (request([[1, 2], [3]], [1, 3]), Reason.WRONG_SHAPE),
        (request([[1, 2, 3], [4]], [2, 2]), Reason.WRONG_SHAPE),
        (request([[1, 2], [3]], [2, 2]), Reason.WRONG_SHAPE),
        (request([[1, 2], [3, 4]], [1, 4]), Reason.WRONG_SHAPE),
        (request([[], []], [2, 0]), Reason.WRONG_SHAPE),
        (request([[1, 2], [3, 4]], [-2, 2]), Reason.WRONG_SHAPE),
        (request([[1, 2], 3], [1, 3]), Reason.WRONG_SHAPE),
        (request([1], [-1, -1]), Reason.WRONG_SHAPE),
        (request([1], [1, "1"]), Reason.WRONG_SHAPE),
        (request([1], [1.0]), Reason.WRONG_SHAPE),
        (request([1], [True]), Reason.WRONG_SHAPE),
        (request([1], "1"), Reason.WRONG_SHAPE),
        (request([1], None), Reason.WRONG_SHAPE),
        (request([1], [1] * 40), Reason.WRONG_SHAPE),
        (request([], [1_000_000_000, 0]), Reason.WRONG_SHAPE),
        (request([1], [2**40]), Reason.WRONG_SHAPE),
        (request([1], [2**31, 2**31]), Reason.WRONG_SHAPE),
        (request([1], [1]).replace(b'"shape":[1]', b'"shape":[1' + b"0" * 5_000 + b"]"), Reason.WRONG_DATATYPE),
        (request([1], []), Reason.NO_ROWS),
        (request([], [0, 20]), Reason.NO_ROWS),
        (request([], [0]), Reason.NO_ROWS),
    ],
)
def test_what_cannot_be_read_has_its_reason(value: bytes, reason: Reason) -> None:
    assert reason_of(value) == reason


def test_several_inputs_are_refused_in_words() -> None:
    one = {"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [1]}
    decoded = decode(orjson.dumps({"inputs": [one, one], "id": "a"}))
    assert decoded.errors[0] == (Reason.WRONG_FORM, "`inputs` has 2 entries; a route reads exactly one")


@pytest.mark.parametrize("datatype", ["FP64", "INT64"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"a"', "a"),
        (b'""', ""),
        (b'"\\u0000\\"\\ud83d\\ude00"', '\x00"\N{GRINNING FACE}'),
        (b"17", "17"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"1.5", "1.5"),
        (b"null", None),
        (b"true", None),
        (b"{}", None),
        (b"[1]", None),
    ],
)
def test_an_id_is_a_string_or_a_number(text: bytes, expected: str | None, datatype: str) -> None:
    decoded = decode(request([1], [1, 1], datatype)[:-1] + b',"id":' + text + b"}")
    assert decoded.errors == {}
    assert decoded.ids == [expected]


def test_a_body_that_was_read_gives_its_id_though_the_tensor_is_refused() -> None:
    assert decode(request([1], [1, 2], id="a")).ids == ["a"]
    assert decode(request(["x"], [1, 1], id=5)).ids == ["5"]


def test_of_a_key_given_twice_the_last_counts() -> None:
    value = b'{"inputs":[{"shape":[1,1],"datatype":"FP64","data":[1],"data":[2]}],"id":"a","id":"b"}'
    decoded = decode(value)
    assert decoded.ids == ["b"]
    assert decoded.groups[0].array.tolist() == [[2.0]]


def test_content_types_and_unknown_fields_do_not_matter() -> None:
    value = orjson.dumps(
        {
            "parameters": {"content_type": "np"},
            "inputs": [
                {
                    "name": "x",
                    "shape": [1, 1],
                    "datatype": "FP64",
                    "data": [1],
                    "parameters": {"content_type": "pd"},
                    "more": {"a": [1]},
                }
            ],
            "outputs": [{"name": "label"}],
        }
    )
    assert array_of(value).tolist() == [[1.0]]


def test_rows_of_one_form_share_a_group_in_order_and_others_have_their_own() -> None:
    decoded = decode(
        request([1, 2], [1, 2]),
        request([[3, 4], [5, 6]], [2, 2]),
        request([9, 9, 9], [1, 3]),
        b"{",
        request([7, 8], [1, 2], "INT64"),
        request([7, 8], [1, 2]),
    )
    assert decoded.group.tolist() == [0, 0, 1, -1, 2, 0]
    assert decoded.first_row.tolist() == [0, 1, 0, 0, 0, 3]
    assert decoded.n_rows.tolist() == [1, 2, 1, 0, 1, 1]
    assert decoded.groups[0].array.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
def test_every_double_arrives_unchanged(data: list[float]) -> None:
    """By the fast path (flat) and by the careful one (nested)."""
    expected = np.array([data])
    assert np.array_equal(array_of(request(data, [1, len(data)])), expected)
    assert np.array_equal(array_of(request([data], [1, len(data)])), expected)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_every_whole_number_arrives_unchanged(data: list[int]) -> None:
    assert array_of(request(data, [1, len(data)], "INT64")).tolist() == [data]


def test_shapes_of_many_dimensions() -> None:
    data = np.arange(24.0)
    assert np.array_equal(array_of(request(data.tolist(), [2, 3, 4])), data.reshape(2, 3, 4))
    assert np.array_equal(array_of(request(data.reshape(2, 3, 4).tolist(), [2, 3, 4])), data.reshape(2, 3, 4))
    assert array_of(request(["a", "b"], [2], "BYTES")).shape == (2,)
