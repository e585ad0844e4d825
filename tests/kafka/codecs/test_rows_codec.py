"""Plain JSON rows."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.inputs import input_codec

CODEC = input_codec("rows", 1 << 20)


@pytest.mark.parametrize(
    ("value", "rows", "request_id"),
    [
        (b"[[1,2],[3,4.5]]", [[1, 2], [3, 4.5]], None),
        (b" [ [1,2] ]", [[1, 2]], None),
        (b"[1,2]", [[1, 2]], None),
        (b"[7]", [[7]], None),
        (b'{"rows":[[1,2]],"id":"a"}', [[1, 2]], "a"),
        (b'{"rows":[1,2],"id":5}', [[1, 2]], "5"),
        (b'{"rows":[1,2]}', [[1, 2]], None),
        (b"[[[1,2],[3,4]]]", [[[1, 2], [3, 4]]], None),
    ],
)
def test_what_is_read(value: bytes, rows: list[Any], request_id: str | None) -> None:
    decoded = CODEC.decode([value], [()])
    assert decoded.errors == {}
    assert decoded.ids == [request_id]
    assert decoded.groups[0].array.dtype == float
    assert decoded.groups[0].array.tolist() == rows
    assert decoded.n_rows.tolist() == [len(rows)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[[1,2]", Reason.NOT_JSON),
        (b"[[NaN]]", Reason.NOT_JSON),
        (b"7", Reason.WRONG_FORM),
        (b'"a"', Reason.WRONG_FORM),
        (b"{}", Reason.WRONG_FORM),
        (b'[{"a":1,"b":2}]', Reason.WRONG_FORM),
        (b'{"rows":[{"a":1}]}', Reason.WRONG_FORM),
        (b"[" * 90_000, Reason.WRONG_FORM),
        (b'[["a"]]', Reason.WRONG_DATATYPE),
        (b"[[true]]", Reason.WRONG_DATATYPE),
        (b"[[null]]", Reason.WRONG_DATATYPE),
        (b"[[1e400]]", Reason.WRONG_DATATYPE),
        (b"[1,[2]]", Reason.WRONG_DATATYPE),
        (b"[[1,2],[3]]", Reason.WRONG_SHAPE),
        (b"[[1],2]", Reason.WRONG_SHAPE),
        (b"[[]]", Reason.WRONG_SHAPE),
        (b"[[],[]]", Reason.WRONG_SHAPE),
        (b"[]", Reason.NO_ROWS),
        (b'{"rows":[]}', Reason.NO_ROWS),
    ],
)
def test_what_cannot_be_read_has_its_reason(value: bytes, reason: Reason) -> None:
    decoded = CODEC.decode([b"[[1,2]]", value, b"[[3,4]]"], [()] * 3)
    assert decoded.errors[1][0] == reason
    assert decoded.groups[0].array.tolist() == [[1, 2], [3, 4]]


def test_widths_are_groups() -> None:
    decoded = CODEC.decode([b"[[1,2]]", b"[1,2,3]", orjson.dumps([[1, 2], [3, 4]])], [()] * 3)
    assert decoded.group.tolist() == [0, 1, 0]
    assert decoded.first_row.tolist() == [0, 0, 1]
