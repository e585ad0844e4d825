"""Terminal records against a slow and obvious encoder, and their sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamserve.core.messages import PROBABILITY_ONE, AnyArray, Choice, MemberOutput, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from streamserve.kafka.codecs.decisions import decode_decision, decode_prediction_record, rows_as_written
from streamserve.kafka.codecs.encoded import EncodedRecords
from streamserve.kafka.codecs.predictions import encode_predictions
from tests.effort import examples

# No comma or '=' in a model id: the config refuses them.
MODELS = ("linear@1", "forest@2", 'odd"\\@3')
DTYPES = ["int64", "int8", "uint64", "float64", "float32", "float16", "bool", "U3", "object"]
DATATYPES = {
    "int64": "INT64",
    "int8": "INT8",
    "uint64": "UINT64",
    "float64": "FP64",
    "float32": "FP32",
    "float16": "FP16",
    "bool": "BOOL",
}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)


def labels_of(rows: int, dtype: str, trailing: tuple[int, ...]) -> st.SearchStrategy[AnyArray]:
    if dtype == "object":
        return npst.arrays(object, (rows, *trailing), elements=TEXTS | st.sampled_from(['"', "\\", "\n", "é", ","]))
    return npst.arrays(np.dtype(dtype), (rows, *trailing))


@st.composite
def blocks(draw: st.DrawFn) -> Predictions:
    n = draw(st.integers(1, 5))
    n_models = draw(st.integers(1, len(MODELS)))
    counts = draw(st.just([1] * n) | st.lists(st.integers(0, 3), min_size=n, max_size=n))
    rows = sum(counts)
    dtype, trailing = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([(), (2,), (1,), (2, 2), (0,)]))
    labelled = draw(st.booleans()) or rows > 0
    probabilities = draw(st.none() | npst.arrays(np.float64, (rows, 2))) if labelled else None

    def column(dtype: Any, elements: st.SearchStrategy[Any]) -> Any:
        return np.array(draw(st.lists(elements, min_size=n, max_size=n)), dtype)

    def texts(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(st.none() | values, min_size=n, max_size=n))

    members = draw(st.lists(st.integers(0, n_models - 1), max_size=2, unique=True)) if labelled else []
    masks = st.integers(0, 2**n_models - 1)
    return Predictions(
        partition=column(np.int64, st.integers(0, 99)),
        route=draw(st.sampled_from(["", "digits", 'a"b\n'])),
        models=MODELS[:n_models],
        offsets=np.cumsum(column(np.int64, st.integers(1, 2**40))),
        append_ms=np.zeros(n, np.int64),
        keys=texts(st.binary(max_size=4)),
        ids=texts(TEXTS | st.sampled_from(['"', "\\", "a\nb", "\x7f", ""])),
        traces=texts(st.binary(max_size=4)),
        outcome=column(np.uint8, st.sampled_from(list(Outcome))),
        reason=column(np.uint8, st.sampled_from(list(Reason))),
        row_starts=np.cumsum([0, *counts]),
        labels=draw(labels_of(rows, dtype, trailing)) if labelled else None,
        probabilities=probabilities,
        classes=draw(st.sampled_from([None, np.array([3, 4]), np.array(["a", 'b"'], object)])),
        confidence=column(np.float64, st.floats(0, 1) | st.just(math.nan)),
        choice=Choice(
            chosen=column(np.uint64, masks),
            probability=column(np.int64, st.integers(0, PROBABILITY_ONE)),
            epoch=column(np.int64, st.integers(-1, 2**40)),
            stale=column(np.bool_, st.booleans()),
        ),
        answered=column(np.uint64, masks),
        missing=draw(npst.arrays(np.uint8, (n, n_models), elements=st.sampled_from([0, 0, 0, *map(int, Missing)]))),
        members=tuple(
            MemberOutput(
                model=MODELS[member],
                labels=draw(labels_of(rows, dtype, trailing)),
                differs=column(np.bool_, st.booleans()),
            )
            for member in members
        ),
        queue_ms=column(np.int32, st.integers(0, 2**31 - 1)),
        inference_ms=column(np.int32, st.integers(0, 99)),
        total_ms=column(np.int32, st.integers(0, 99)),
        late=column(np.bool_, st.booleans()),
        off_epoch=column(np.bool_, st.booleans()),
        details=draw(st.dictionaries(st.integers(0, n - 1), TEXTS, max_size=2)),
    )


def plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):  # a lone surrogate has no UTF-8
        return value.encode("utf-8", "replace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tensor(name: str, rows: AnyArray, datatype: str) -> dict[str, Any]:
    narrow = datatype in ("FP32", "FP16")  # written as its shortest text, which is another double
    data = [plain(float(str(np.float32(value))) if narrow else value) for value in rows.ravel()]
    return {"name": name, "shape": list(rows.shape), "datatype": datatype, "data": data}


def expected_value(block: Predictions, i: int) -> dict[str, Any]:
    rows = slice(int(block.row_starts[i]), int(block.row_starts[i + 1]))
    outputs = []
    if block.labels is not None and rows.start < rows.stop:
        datatype = DATATYPES.get(block.labels.dtype.name, "BYTES")
        outputs.append(tensor("label", block.labels[rows], datatype))
        if block.probabilities is not None:
            outputs.append(tensor("probabilities", block.probabilities[rows], "FP64"))
        for member in block.members:
            if member.differs[i]:
                outputs.append(tensor(f"member.{member.model}", member.labels[rows], datatype))
    return {
        "model_name": block.route,
        "id": f"{block.partition[i]}-{block.offsets[i]}" if block.ids[i] is None else block.ids[i],
        "outputs": outputs,
        "parameters": expected_parameters(block, i, bool(outputs)),
    }


def expected_parameters(block: Predictions, i: int, has_outputs: bool) -> dict[str, Any]:
    bits = [bool(int(block.choice.chosen[i]) >> bit & 1) for bit in range(len(block.models))]
    parameters: dict[str, Any] = {
        "outcome": str(Outcome(block.outcome[i])),
        "reason": str(Reason(block.reason[i])),
        "probability": int(block.choice.probability[i]) / PROBABILITY_ONE,
        "epoch": int(block.choice.epoch[i]),
        "chosen": ",".join(model for model, bit in zip(block.models, bits, strict=True) if bit),
        "queue_ms": int(block.queue_ms[i]),
        "inference_ms": int(block.inference_ms[i]),
        "total_ms": int(block.total_ms[i]),
    }
    absent = []
    for bit, model in enumerate(block.models):
        code = Missing(block.missing[i, bit])
        waited = bits[bit] and not int(block.answered[i]) >> bit & 1
        if code == Missing.PRESENT and waited and block.outcome[i] <= Outcome.DEFAULT:
            code = Missing.LATE
        if code != Missing.PRESENT:
            absent.append(f"{model}={code}")
    if absent:
        parameters["missing"] = ",".join(absent)
    flags = {"late": block.late[i], "stale": block.choice.stale[i], "off_epoch": block.off_epoch[i]}
    parameters |= {name: True for name, flag in flags.items() if flag}
    if i in block.details:
        parameters["detail"] = block.details[i]
    if not math.isnan(block.confidence[i]):
        parameters["confidence"] = float(np.round(block.confidence[i], 6))
    if has_outputs and block.probabilities is not None:
        names = ["0", "1"] if block.classes is None else block.classes.tolist()
        parameters["classes"] = ",".join(map(str, names))
    return parameters


def check_against_reference(block: Predictions, records: EncodedRecords) -> None:
    assert len(records.keys) == len(records.values) == len(records.headers) == len(block)
    for i in range(len(block)):
        expected = expected_value(block, i)
        assert orjson.loads(records.values[i] or b"") == expected
        assert records.keys[i] == (expected["id"].encode() if block.keys[i] is None else block.keys[i])
        headers = [
            ("ss-ref", f"{block.partition[i]}-{block.offsets[i]}".encode()),
            ("ss-id", expected["id"].encode()),
            ("ss-outcome", expected["parameters"]["outcome"].encode()),
        ]
        if block.traces[i] is not None:
            headers.append(("traceparent", block.traces[i]))
        assert records.headers[i] == headers


@given(blocks())
def test_records_are_those_of_the_reference(block: Predictions) -> None:
    check_against_reference(block, encode_predictions(block))


@given(blocks())
@settings(max_examples=examples(20))
def test_a_batch_builder_takes_the_records(block: Predictions) -> None:
    records = encode_predictions(block)
    builder = BatchBuilder(1 << 20, 0)
    for key, value, headers in zip(records.keys, records.values, records.headers, strict=True):
        assert builder.append(timestamp=None, key=key, value=value, headers=headers) is not None


@given(blocks())
@settings(max_examples=examples(50))
def test_the_decision_can_be_read_back(block: Predictions) -> None:
    records = encode_predictions(block)
    for i in range(len(block)):
        value = records.values[i]
        assert value is not None
        expected = expected_value(block, i)
        decision = decode_decision(value)
        assert decision is not None
        assert decision.id == expected["id"]
        assert decision.route == block.route
        assert decision.outcome == str(Outcome(block.outcome[i]))
        assert decision.epoch == block.choice.epoch[i]
        assert decision.probability * PROBABILITY_ONE == block.choice.probability[i]
        assert decision.off_epoch == block.off_epoch[i]
        assert ",".join(decision.chosen) == expected["parameters"]["chosen"]
        record = decode_prediction_record(
            value, tuple(records.headers[i]), partition=int(block.partition[i]), append_ms=5
        )
        assert record is not None
        assert (record.request_offset, record.id, record.raw) == (block.offsets[i], expected["id"], value)


def one(**changes: Any) -> Predictions:
    """One request, answered by both its models."""
    block = Predictions(
        partition=np.array([3]),
        route="digits",
        models=("linear@1", "forest@2"),
        offsets=np.array([17]),
        append_ms=np.array([1_000]),
        keys=[None],
        ids=["a"],
        traces=[None],
        outcome=np.array([Outcome.OK], np.uint8),
        reason=np.array([Reason.ALL_ANSWERED], np.uint8),
        row_starts=np.array([0, 2]),
        labels=np.array([4, 5]),
        probabilities=None,
        classes=None,
        confidence=np.array([0.75]),
        choice=Choice(
            chosen=np.array([3], np.uint64),
            probability=np.array([PROBABILITY_ONE]),
            epoch=np.array([-1]),
            stale=np.array([False]),
        ),
        answered=np.array([3], np.uint64),
        missing=np.zeros((1, 2), np.uint8),
        members=(),
        queue_ms=np.array([1], np.int32),
        inference_ms=np.array([2], np.int32),
        total_ms=np.array([3], np.int32),
        late=np.array([False]),
        off_epoch=np.array([False]),
    )
    return replace(block, **changes)


def test_the_whole_record_as_text() -> None:
    assert encode_predictions(one()).values == [
        b'{"model_name":"digits","id":"a","outputs":[{"name":"label","shape":[2],"datatype":"INT64","data":[4,5]}],'
        b'"parameters":{"outcome":"ok","reason":"all_answered","probability":1.0,"epoch":-1,'
        b'"chosen":"linear@1,forest@2","confidence":0.75,"queue_ms":1,"inference_ms":2,"total_ms":3}}'
    ]


def test_members_of_a_decision() -> None:
    """Who is missing said nothing, who has an output said that, everybody else said what was answered."""
    member = MemberOutput(model="forest@2", labels=np.array([7, 5]), differs=np.array([True]))
    decision = decode_decision(encode_predictions(one(members=(member,))).values[0] or b"")
    assert decision is not None
    assert decision.members == {"linear@1": [4, 5], "forest@2": [7, 5]}
    assert (decision.label, decision.rows) == ([4, 5], 2)

    missing = np.array([[Missing.SHED, 0]], np.uint8)
    decision = decode_decision(
        encode_predictions(one(missing=missing, answered=np.array([2], np.uint64))).values[0] or b""
    )
    assert decision is not None
    assert decision.members == {"forest@2": [4, 5]}


def test_vectors_of_a_decision_are_nested_by_row() -> None:
    decision = decode_decision(encode_predictions(one(labels=np.arange(12).reshape(2, 3, 2))).values[0] or b"")
    assert decision is not None
    assert decision.label == np.arange(12).reshape(2, 3, 2).tolist()


@given(st.sampled_from(("i8", "u1", "f4", "f8", "?", "object")), st.sampled_from(((), (2,), (3, 2), (0,))), st.data())
@settings(max_examples=examples(50))
def test_rows_as_written_are_those_of_a_prediction(dtype: str, trailing: tuple[int, ...], data: st.DataObject) -> None:
    labels = data.draw(labels_of(2, dtype, trailing))
    decision = decode_decision(encode_predictions(one(labels=labels)).values[0] or b"")
    assert decision is not None
    assert rows_as_written(labels) == decision.label


def test_a_lone_surrogate_is_replaced() -> None:
    labels = np.array(["\ud800", "b"], object)
    records = encode_predictions(one(ids=["x\udfff"], labels=labels, details={0: "\ud800"}))
    body = orjson.loads(records.values[0] or b"")
    assert body["id"] == "x?"
    assert body["outputs"][0]["data"] == ["?", "b"]
    assert records.keys == [b"x?"]


def test_odd_labels_are_text() -> None:
    labels = np.array([None, 1.5], object)
    body = orjson.loads(encode_predictions(one(labels=labels)).values[0] or b"")
    assert body["outputs"][0] == {"name": "label", "shape": [2], "datatype": "BYTES", "data": [None, "1.5"]}
    body = orjson.loads(encode_predictions(one(labels=np.array([b"ab", b"\xff"]))).values[0] or b"")
    assert body["outputs"][0]["data"] == ["ab", "\ufffd"]


@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_and_strides_do_not_matter(order: str) -> None:
    labels = np.arange(8, dtype=f"{order}i4").reshape(2, 4)[:, ::2]
    body = orjson.loads(encode_predictions(one(labels=labels)).values[0] or b"")
    assert body["outputs"][0]["data"] == [0, 2, 4, 6]


def size(records: EncodedRecords) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in records.headers[0])
    return len(records.values[0] or b"") + len(records.keys[0] or b"") + headers


def test_a_record_above_the_limit_becomes_an_error_of_the_same_ref() -> None:
    block = one(labels=np.arange(2_000).reshape(2, 1_000))
    records = encode_predictions(block, max_bytes=2_000)
    body = orjson.loads(records.values[0] or b"")
    assert body["id"] == "a"
    assert body["outputs"] == []
    assert body["parameters"]["outcome"] == "error"
    assert body["parameters"]["reason"] == "output_too_large"
    assert "a record may have 2000" in body["parameters"]["detail"]
    assert "confidence" not in body["parameters"]
    assert records.headers == [[("ss-ref", b"3-17"), ("ss-id", b"a"), ("ss-outcome", b"error")]]
    assert size(records) <= 2_000
    assert encode_predictions(block).values == encode_predictions(block, max_bytes=20_000).values


@pytest.mark.parametrize("what", [{"ids": ["x" * 3_000]}, {"keys": [b"x" * 3_000]}, {"traces": [b"x" * 3_000]}])
def test_a_large_id_key_or_trace_is_cut_to_the_ref(what: dict[str, Any]) -> None:
    records = encode_predictions(one(**what), max_bytes=2_000)
    body = orjson.loads(records.values[0] or b"")
    assert body["id"] == "3-17"
    assert records.keys == [b"3-17"]
    assert records.headers == [[("ss-ref", b"3-17"), ("ss-id", b"3-17"), ("ss-outcome", b"error")]]
    assert size(records) <= 2_000


@pytest.mark.parametrize("differs", [None, "outcome", "late", "missing", "epoch"])
def test_a_block_of_one_story_and_one_with_an_exception(differs: str | None) -> None:
    n = 40
    late, epoch = np.zeros(n, np.bool_), np.full(n, 7)
    outcome, missing = np.zeros(n, np.uint8), np.zeros((n, 2), np.uint8)
    late[n - 1], epoch[n - 1] = differs == "late", 8 if differs == "epoch" else 7
    outcome[n - 1], missing[n - 1, 1] = differs == "outcome", 3 * (differs == "missing")
    choice = Choice(
        chosen=np.full(n, 3, np.uint64),
        probability=np.full(n, PROBABILITY_ONE // 4),
        epoch=epoch,
        stale=np.zeros(n, np.bool_),
    )
    block = one(
        partition=np.full(n, 3),
        offsets=np.arange(n),
        keys=[None] * n,
        ids=[None] * n,
        traces=[None] * n,
        outcome=outcome,
        reason=np.zeros(n, np.uint8),
        row_starts=np.arange(n + 1),
        labels=np.arange(n),
        confidence=np.linspace(0, 1, n),
        choice=choice,
        answered=np.full(n, 3, np.uint64),
        missing=missing,
        queue_ms=np.arange(n, dtype=np.int32),
        inference_ms=np.arange(n, dtype=np.int32),
        total_ms=np.arange(n, dtype=np.int32),
        late=late,
        off_epoch=np.zeros(n, np.bool_),
    )
    check_against_reference(block, encode_predictions(block))


def test_long_words_are_cut() -> None:
    body = orjson.loads(encode_predictions(one(details={0: "x" * 50_000})).values[0] or b"")
    assert len(body["parameters"]["detail"]) == 2_000
