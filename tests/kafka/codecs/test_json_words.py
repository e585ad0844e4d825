"""What a sender is told of a value is in the words of what was sent, not in Python's."""

from __future__ import annotations

import json

import pytest

from streamserve.kafka.codecs.inputs import INPUT_CODECS

_OIP = {"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [1.0]}


@pytest.mark.parametrize("odd", [None, True, False])
@pytest.mark.parametrize("field", ["inputs", "shape", "datatype", "data", "value", "tensor", "whole"])
def test_oip(field: str, odd: object) -> None:
    tensor = _OIP | ({field: odd} if field in _OIP else {}) | ({"data": [odd]} if field == "value" else {})
    body: object = {"inputs": odd if field == "inputs" else [odd if field == "tensor" else tensor]}
    _is_told("oip", odd if field == "whole" else body, odd)


@pytest.mark.parametrize("odd", [None, True, False])
@pytest.mark.parametrize("wrap", ["{}", "[{}]", "[[{}]]", '{{"rows": {}}}'])
def test_rows(wrap: str, odd: object) -> None:
    _is_told("rows", json.loads(wrap.format(json.dumps(odd))), odd)


@pytest.mark.parametrize(("codec", "field"), [("oip", "inputs"), ("rows", "rows")])
def test_a_field_that_is_not_there_is_named(codec: str, field: str) -> None:
    assert _words(codec, {"id": "a"}).startswith(f"the value has no `{field}`")


def _is_told(codec: str, body: object, odd: object) -> None:
    words = _words(codec, body).split("; ")[0]
    assert json.dumps(odd) in words and str(odd) not in words


def _words(codec: str, body: object) -> str:
    decoded = INPUT_CODECS[codec].decode([json.dumps(body).encode()], [()])
    return decoded.errors[0][1]
