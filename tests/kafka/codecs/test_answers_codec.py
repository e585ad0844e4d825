"""Blocks of answers: the same on both sides, never above the limit, and never believed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamserve.core.messages import PROBABILITY_ONE, Answers, Choice
from streamserve.core.reasons import Missing, Reason
from streamserve.errors import ContractError, MalformedRecord
from streamserve.kafka.codecs.answers import decode_answers, encode_answers

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
DTYPES = ["int64", "int8", "uint64", "float64", "float32", "float16", "bool", "U3", "S3", "object"]


@st.composite
def blocks(draw: st.DrawFn) -> Answers:
    n = draw(st.integers(1, 6))
    missing = draw(npst.arrays(np.uint8, n, elements=st.sampled_from([0, 0, 0, *map(int, Missing)])))
    counts = [draw(st.integers(1, 3)) if code == Missing.PRESENT else 0 for code in missing]
    rows = sum(counts)
    dtype, trailing = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([(), (2,), (2, 2)]))
    elements = TEXTS | st.none() | st.integers(-9, 9) | st.floats(-1, 1) if dtype == "object" else None
    classes = draw(st.none() | st.integers(1, 3))

    def column(dtype: Any, elements: st.SearchStrategy[Any]) -> Any:
        return np.array(draw(st.lists(elements, min_size=n, max_size=n)), dtype)

    return Answers(
        partition=np.full(n, draw(st.integers(0, 9))),
        route=draw(TEXTS),
        model=draw(TEXTS),
        models=draw(st.sampled_from([(), tuple(f"m{i}@1" for i in range(64))])),
        offsets=np.cumsum(column(np.int64, st.integers(1, 2**40))),
        row_starts=np.cumsum([0, *counts]),
        labels=draw(npst.arrays(np.dtype(dtype), (rows, *trailing), elements=elements)) if rows else None,
        probabilities=draw(npst.arrays(np.float64, (rows, classes))) if rows and classes else None,
        classes=draw(npst.arrays(np.dtype(dtype), classes, elements=elements)) if rows and classes else None,
        missing=missing,
        ids=draw(st.lists(st.none() | TEXTS, min_size=n, max_size=n)),
        choice=Choice(
            chosen=column(np.uint64, st.integers(0, 2**64 - 1)),
            probability=column(np.int64, st.integers(0, PROBABILITY_ONE)),
            epoch=column(np.int64, st.integers(-1, 2**40)),
            stale=column(np.bool_, st.booleans()),
        ),
        queue_ms=column(np.int32, st.integers(-(2**31), 2**31 - 1)),
        inference_ms=column(np.int32, st.integers(0, 99)),
        errors=draw(
            st.dictionaries(
                st.integers(0, n - 1), st.tuples(st.sampled_from(list(map(int, Reason))), TEXTS), max_size=2
            )
        ),
        details=draw(st.dictionaries(st.integers(0, n - 1), TEXTS, max_size=2)),
    )


def same(one: Any, other: Any) -> None:
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
    elif isinstance(one, Answers | Choice):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other


def joined(parts: list[Answers]) -> dict[int, tuple[Any, ...]]:
    """Offset -> all that is said about that request."""
    found = {}
    for part in parts:
        for i, offset in enumerate(part.offsets.tolist()):
            rows = slice(int(part.row_starts[i]), int(part.row_starts[i + 1]))
            assert offset not in found
            found[offset] = (
                None if part.labels is None or rows.start == rows.stop else part.labels[rows].tolist(),
                None if part.probabilities is None or rows.start == rows.stop else part.probabilities[rows].tobytes(),
                part.missing[i],
                part.ids[i],
                part.choice.chosen[i],
                part.choice.probability[i],
                part.choice.epoch[i],
                part.choice.stale[i],
                part.queue_ms[i],
                part.inference_ms[i],
                part.errors.get(i),
                part.details.get(i),
            )
    return found


@given(blocks())
def test_there_and_back(block: Answers) -> None:
    (value,) = encode_answers(block)
    same(block, decode_answers(value, int(block.partition[0])))


@given(blocks(), st.integers(1, 2_000))
def test_split_blocks_say_the_same_in_order(block: Answers, max_block_bytes: int) -> None:
    values = encode_answers(block, max_block_bytes)
    parts = [decode_answers(value, int(block.partition[0])) for value in values]
    for value, part in zip(values, parts, strict=True):
        assert len(value) <= max_block_bytes or len(part) == 1
    assert [offset for part in parts for offset in part.offsets.tolist()] == block.offsets.tolist()
    assert repr(joined(parts)) == repr(joined([block]))


def answers(n: int = 3, **changes: Any) -> Answers:
    block = Answers(
        partition=np.full(n, 3),
        route="digits",
        model="linear@1",
        offsets=np.arange(n) + 10,
        row_starts=np.arange(n + 1),
        labels=np.arange(n),
        probabilities=None,
        classes=None,
        missing=np.zeros(n, np.uint8),
        ids=[None] * n,
        choice=Choice(
            chosen=np.ones(n, np.uint64),
            probability=np.full(n, PROBABILITY_ONE),
            epoch=np.full(n, -1),
            stale=np.zeros(n, np.bool_),
        ),
        queue_ms=np.zeros(n, np.int32),
        inference_ms=np.zeros(n, np.int32),
    )
    return replace(block, **changes)


def test_a_choice_among_models_that_are_not_there_is_malformed() -> None:
    (value,) = encode_answers(answers(models=("a@1",)))
    assert decode_answers(value, 3).models == ("a@1",)
    choice = replace(answers().choice, chosen=np.array([1, 2, 1], np.uint64))
    (value,) = encode_answers(answers(models=("a@1",), choice=choice))
    with pytest.raises(MalformedRecord, match="none of the 1 of its route"):
        decode_answers(value, 3)


def test_no_answers_are_no_record() -> None:
    assert encode_answers(answers(0)) == []


def test_one_answer_may_be_above_the_block_limit_but_not_above_the_hard_one() -> None:
    block = answers(3, labels=np.zeros((3, 400)))
    assert [len(decode_answers(value, 3)) for value in encode_answers(block, 2_000)] == [1, 1, 1]
    parts = [decode_answers(value, 3) for value in encode_answers(block, 2_000, max_record_bytes=3_000)]
    assert [part.missing.tolist() for part in parts] == [[Missing.OUTPUT_TOO_LARGE]] * 3
    assert [part.labels for part in parts] == [None] * 3
    assert parts[0].offsets.tolist() == [10]
    assert "a record may have 3000" in parts[0].details[0]


def test_a_long_label_does_not_widen_the_others() -> None:
    labels = np.array(["a", "b", "x" * 5_000])
    (value,) = encode_answers(answers(3, labels=labels))
    assert len(value) < 7_000
    decoded = decode_answers(value, 3).labels
    assert decoded is not None
    assert decoded.tolist() == labels.tolist()


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "datetime64[D]"),
        np.array([1 + 2j, 3, 4]),
        np.array([1, 2, 3], np.longdouble),
        np.array([1, 2, 3], ">i4"),
        np.array(["", "", ""]),
        np.array([b"\xff", object(), 1 << 80], object),
        np.array(["\ud800", "b", "c"], object),
        np.array(["\ud800", "b", "c"]),
        np.zeros((3, 0)),
        np.arange(12).reshape(3, 4)[:, ::2],
    ],
    ids=lambda labels: f"{labels.dtype}-{labels.shape}",
)
def test_odd_labels_of_a_model_can_be_read_back(labels: Any) -> None:
    """A record of ours that cannot be read stops its readers, so nothing that a model returns may lead to one."""
    (value,) = encode_answers(answers(3, labels=labels))
    decoded = decode_answers(value, 3).labels
    assert decoded is not None
    assert decoded.shape == labels.shape


def test_lone_surrogates_in_words_and_ids_are_replaced() -> None:
    block = answers(3, ids=["\ud800", None, "b"], details={0: "\ud800"}, errors={1: (11, "\ud800")})
    decoded = decode_answers(encode_answers(block)[0], 3)
    assert decoded.ids == ["?", None, "b"]
    assert decoded.details == {0: "?"}
    assert decoded.errors == {1: (11, "?")}


def test_columns_of_another_dtype_are_converted() -> None:
    block = answers(3, queue_ms=np.zeros(3, np.int64), row_starts=np.arange(4, dtype=np.int32))
    decoded = decode_answers(encode_answers(block)[0], 3)
    assert (decoded.queue_ms.dtype, decoded.row_starts.dtype) == (np.int32, np.int64)


def column(*values: int, dtype: str = "<i8") -> list[Any]:
    return [dtype, [len(values)], np.array(values, dtype).tobytes()]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"v": 2}, "its version is 2, this code reads 1"),
        ({"v": "1"}, "cannot be read"),
        ({"offsets": column(10, 12, 11)}, "offsets do not increase"),
        ({"offsets": column(10, 11, 11)}, "offsets do not increase"),
        ({"offsets": column(-1, 11, 12)}, "offsets do not increase"),
        ({"offsets": column(10, 11)}, "a column is"),
        ({"offsets": column(10, 11, 12, dtype="<i4")}, "a column is"),
        ({"row_starts": column(0, 1, 2, 4)}, "row_starts end at 4 and there are 3 labels"),
        ({"row_starts": column(0, 1, 2, 2)}, "row_starts end at 2 and there are 3 labels"),
        ({"row_starts": column(0, 2, 1, 3)}, "go back"),
        ({"row_starts": column(1, 1, 2, 3)}, "do not begin at 0"),
        ({"labels": None}, "row_starts end at 3 and there are 0 labels"),
        ({"labels": ["<i8", [3], b"\x00" * 23]}, "another number of bytes"),
        ({"labels": ["<i8", [3], b"\x00" * 32]}, "another number of bytes"),
        ({"labels": ["<i8", [3], [1, 2, 3]]}, "another number of bytes"),
        ({"labels": ["<i8", [1 << 60, 1 << 60], b""]}, "another number of bytes"),
        ({"labels": ["|O", [3], b"\x00" * 24]}, "is unknown"),
        ({"labels": ["|V0", [3], b""]}, "is unknown"),
        ({"labels": ["<U0", [3], b""]}, "is unknown"),
        ({"labels": ["<f8,<f8", [3], b"\x00" * 48]}, "is unknown"),
        ({"labels": ["<U1", [3], b"\xff" * 12]}, "no character"),
        ({"labels": ["|b1", [3], b"\x02" * 3]}, "neither 0 nor 1"),
        ({"labels": ["json", [3], [1, 2]]}, "another number of them"),
        ({"labels": ["json", [3], b"abc"]}, "another number of them"),
        ({"labels": ["json", [1], [[1]]]}, "holds a list"),
        ({"labels": ["<i8", [1] * 50, b"\x00" * 8]}, "50 dimensions"),
        ({"labels": ["<i8", [0, 1 << 62], b""]}, "contradicts"),
        ({"labels": ["<i8", [-3], b"\x00" * 24]}, "cannot be read"),
        ({"probabilities": ["<f8", [2, 1], b"\x00" * 16]}, "probabilities are"),
        ({"probabilities": ["<f4", [3, 1], b"\x00" * 12]}, "probabilities are"),
        ({"probabilities": ["<f8", [3], b"\x00" * 24]}, "probabilities are"),
        ({"probabilities": ["<f8", [3, 1], b"\x00" * 24], "classes": column(1, 2)}, "2.* classes for 1 columns"),
        ({"missing": column(0, 0, 99, dtype="|u1")}, "missing code 99"),
        ({"missing": column(0, 0, 1, dtype="|u1")}, "without an answer has rows"),
        ({"probability": column(0, 0, PROBABILITY_ONE + 1)}, "outside"),
        ({"probability": column(0, 0, -1)}, "outside"),
        ({"ids": ["a"]}, "a column is"),
        ({"ids": ["a", "b", 3]}, "cannot be read"),
        ({"errors": {3: [11, "x"]}}, "words about request 3 of 3"),
        ({"details": {-1: "x"}}, "words about request -1 of 3"),
        ({"errors": {0: [9, "x"]}}, "reason code 9"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    block = msgspec.msgpack.decode(encode_answers(answers(3))[0], strict=False)
    block |= changes
    with pytest.raises(ContractError, match=words):
        decode_answers(msgspec.msgpack.encode(block), 3)


def test_a_block_of_no_requests_is_refused() -> None:
    block = msgspec.msgpack.decode(encode_answers(answers(1))[0])
    for name in ("offsets", "missing", "chosen", "probability", "epoch", "stale", "queue_ms", "inference_ms"):
        block[name] = [block[name][0], [0], b""]
    block |= {"ids": [], "labels": None, "row_starts": column(0)}
    with pytest.raises(ContractError, match="answers no request"):
        decode_answers(msgspec.msgpack.encode(block), 3)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_contract_error_or_nothing(value: bytes) -> None:
    with pytest.raises(ContractError):
        decode_answers(value, 0)


@given(st.data())
def test_a_damaged_record_is_read_or_refused_in_words(data: st.DataObject) -> None:
    value = bytearray(encode_answers(answers(3, ids=["a", "b", None]))[0])
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_answers(bytes(value), 3)
    except ContractError:
        return
    assert len(decoded.ids) == len(decoded.offsets)


def test_deep_nesting_is_a_contract_error() -> None:
    with pytest.raises(ContractError):
        decode_answers(b"\x81\xa1v" + b"\x91" * 200_000 + b"\x00", 0)
