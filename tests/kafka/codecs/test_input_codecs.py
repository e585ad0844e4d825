"""Laws of every input codec: exactly one result a value, whatever is in it, and neighbours never matter."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.codec import Decoded
from streamserve.core.messages import Headers
from streamserve.core.reasons import Reason
from streamserve.errors import ConfigError
from streamserve.kafka.codecs.inputs import INPUT_CODECS, input_codec

RAW_HEADERS: Headers = (("ss-dtype", b"float32"), ("ss-shape", b"1,2"))
GOOD = {
    "oip": b'{"id":"a","inputs":[{"name":"x","shape":[1,2],"datatype":"FP64","data":[1.5,2]}]}',
    "rows": b"[[1.5,2]]",
    "text": "zwei Wörter".encode(),
    "raw": np.array([1.5, 2], "<f4").tobytes(),
}
NAMES = sorted(INPUT_CODECS)


def check_form(decoded: Decoded, n: int) -> None:
    """Every value has rows or an error, and rows lie inside their group without overlap or gap."""
    assert len(decoded.group) == len(decoded.first_row) == len(decoded.n_rows) == len(decoded.ids) == n
    taken = [0] * len(decoded.groups)
    for index in range(n):
        group = int(decoded.group[index])
        if group < 0:
            assert decoded.n_rows[index] == 0
            reason, words = decoded.errors[index]
            assert isinstance(reason, Reason)
            assert words
            assert len(words) < 1_000
            assert words.isprintable()
        else:
            assert index not in decoded.errors
            assert decoded.first_row[index] == taken[group]
            assert decoded.n_rows[index] > 0
            taken[group] += int(decoded.n_rows[index])
    assert taken == [len(rows.array) for rows in decoded.groups]
    assert len({(rows.array.dtype, rows.array.shape[1:]) for rows in decoded.groups}) == len(decoded.groups)


def rows_of(decoded: Decoded, index: int) -> object:
    if decoded.group[index] < 0:
        return decoded.errors[index]
    start, count = int(decoded.first_row[index]), int(decoded.n_rows[index])
    rows = decoded.groups[int(decoded.group[index])].array[start : start + count]
    return rows.dtype, rows.shape, rows.tobytes() if rows.dtype != object else rows.tolist()


def decode(name: str, values: Sequence[bytes | None], headers: Headers = RAW_HEADERS) -> Decoded:
    decoded = INPUT_CODECS[name].decode(values, [headers] * len(values))
    check_form(decoded, len(values))
    return decoded


def same_alone_and_together(name: str, values: Sequence[bytes | None]) -> None:
    together = decode(name, values)
    for index, value in enumerate(values):
        alone = decode(name, [value])
        # NaN in a raw tensor is not equal to itself, so bytes are compared.
        assert str(rows_of(together, index)) == str(rows_of(alone, 0))
        assert together.ids[index] == alone.ids[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, b""])
def test_nothing_is_an_empty_value(name: str, value: bytes | None) -> None:
    decoded = decode(name, [GOOD[name], value, GOOD[name]])
    assert decoded.errors[1][0] == Reason.EMPTY_VALUE
    assert decoded.n_rows.tolist() == [1, 0, 1]
    assert decoded.first_row[2] == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_value_above_the_limit_is_refused_unparsed(name: str) -> None:
    codec = input_codec(name, 100)
    decoded = codec.decode([b"\xff" * 101, GOOD[name]], [RAW_HEADERS] * 2)
    assert decoded.errors[0][0] == Reason.TOO_LARGE
    assert "101" in decoded.errors[0][1]
    assert decoded.n_rows.tolist() == [0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_no_values_give_no_groups(name: str) -> None:
    assert decode(name, []).groups == ()


@pytest.mark.parametrize("name", NAMES)
def test_arrays_can_be_written_to(name: str) -> None:
    """Frameworks warn about, or refuse, arrays that are read-only."""
    (rows,) = decode(name, [GOOD[name]]).groups
    assert rows.array.flags.writeable


def test_crafted_neighbours_shift_no_rows() -> None:
    good = GOOD["oip"]
    values = [b'{"x":"}', b'{"}', b"{},{}", good, b"[", b"]", good, b'"', b'{"inputs":[', good, b"]}"]
    decoded = decode("oip", values)
    assert [index for index in range(len(values)) if decoded.group[index] >= 0] == [3, 6, 9]
    for index in (3, 6, 9):
        assert decoded.ids[index] == "a"
        assert decoded.groups[0].array[decoded.first_row[index]].tolist() == [1.5, 2.0]
    same_alone_and_together("oip", values)


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.none() | st.binary(max_size=40), max_size=6))
def test_any_bytes_give_one_result_each(name: str, values: list[bytes | None]) -> None:
    same_alone_and_together(name, values)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "name": JSON,
        "shape": st.lists(st.integers(-2, 4), max_size=4) | JSON,
        "datatype": st.sampled_from(["FP64", "FP32", "FP16", "INT8", "UINT64", "BOOL", "BYTES", "INT64"]) | JSON,
        "data": st.lists(st.integers(-5, 300) | st.floats(-9, 9) | st.booleans() | st.text(max_size=3), max_size=9)
        | JSON,
        "parameters": JSON,
    },
)
BODIES = st.fixed_dictionaries(
    {"inputs": st.lists(PARTS, min_size=0, max_size=2) | JSON}, optional={"id": JSON, "outputs": JSON}
)


def dump(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):  # integers beyond 64 bits
        return b'{"inputs":[{"shape":[1],"datatype":"INT64","data":[%d]}]}' % (1 << 70)


@pytest.mark.parametrize("name", ["oip", "rows"])
@given(st.lists(BODIES.map(dump) | JSON.map(dump), max_size=4))
def test_any_json_gives_one_result_each(name: str, values: list[bytes]) -> None:
    same_alone_and_together(name, values)


def mutations(value: bytes, count: int, seed: int) -> list[bytes]:
    """Copies with bytes changed, removed, repeated or swapped in from a list of troublemakers."""
    source = random.Random(seed)
    troublemakers = [b'"', b"\\", b"[", b"]", b"{", b"}", b",", b"1e999", b"NaN", b"-", b"\\ud800", b"\xff", b"\x00"]
    changed = []
    for _ in range(count):
        mutant = bytearray(value)
        for _ in range(source.randint(1, 4)):
            start = source.randrange(len(mutant) + 1)
            end = min(len(mutant), start + source.choice([0, 0, 1, 1, 2, 8]))
            mutant[start:end] = source.choice([*troublemakers, bytes([source.randrange(256)]), b"", value[:9]])
        changed.append(bytes(mutant))
    return changed


@pytest.mark.parametrize("name", NAMES)
def test_mutated_values_raise_nothing_and_disturb_nobody(name: str) -> None:
    mutants = mutations(GOOD[name], 600, seed=3)
    values: list[bytes | None] = []
    for mutant in mutants:
        values += [mutant, GOOD[name]]
    decoded = decode(name, values)
    expected = rows_of(decode(name, [GOOD[name]]), 0)
    assert all(rows_of(decoded, index) == expected for index in range(1, len(values), 2))


@pytest.mark.parametrize("name", NAMES)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ss-dtype", "ss-shape", "other"]), st.none() | st.binary(max_size=12)), max_size=4
    )
)
def test_any_headers_give_one_result(name: str, headers: list[tuple[str, bytes | None]]) -> None:
    decode(name, [GOOD[name], b"\x00" * 8], tuple(headers))


def test_a_name_that_is_no_codec_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match=r"'xml'.*oip, rows, text, raw"):
        input_codec("xml", 100)


def test_codecs_know_their_names() -> None:
    assert {name: codec.name for name, codec in INPUT_CODECS.items()} == {name: name for name in NAMES}
