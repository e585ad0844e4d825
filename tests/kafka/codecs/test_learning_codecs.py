"""Feedback, terminal records as the join reads them, outcomes, learnt states, refs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.reasons import Reason
from streamserve.core.records import Decision, FeedbackForward, FeedbackRecord, OutcomeRecord, StateRecord
from streamserve.errors import ContractError
from streamserve.kafka.codecs.columns import Refusal
from streamserve.kafka.codecs.decisions import decode_decision, decode_prediction_record
from streamserve.kafka.codecs.feedback import decode_feedback, encode_forward
from streamserve.kafka.codecs.learning import (
    decode_epoch,
    decode_outcome,
    decode_snapshot,
    encode_epoch,
    encode_outcome,
    encode_snapshot,
    state_key,
)
from streamserve.kafka.codecs.refs import format_ref, parse_ref

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
COUNTS = st.integers(0, 2**62)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def feedback(value: bytes | None, headers: Any = ()) -> FeedbackRecord | Refusal:
    return decode_feedback(value, headers, partition=2, offset=9, append_ms=1_000, key=b"k")


def taken(value: bytes, headers: Any = ()) -> FeedbackRecord:
    record = feedback(value, headers)
    assert isinstance(record, FeedbackRecord)
    return record


# Refs


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_refs_there_and_back(partition: int, offset: int) -> None:
    assert parse_ref(format_ref(partition, offset)) == (partition, offset)
    assert parse_ref(format_ref(partition, offset).encode()) == (partition, offset)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "3",
        "3-",
        "-3",
        "3-1-7",
        "3--7",
        "+3-7",
        "03-7",
        "3-07",
        " 3-7",
        "3-7\n",
        "3_0-7",
        "\u0663-7",
        "3-99999999999999999999",
        "3-9223372036854775808",
        "2147483648-0",
        b"\xff-7",
        "1" * 5_000,
    ],
)
def test_what_is_no_ref(text: str | bytes | None) -> None:
    assert parse_ref(text) is None


@given(st.text(max_size=8) | st.binary(max_size=8) | st.from_regex(r"\d{1,12}-\d{1,22}", fullmatch=True))
def test_a_ref_has_one_spelling(text: str | bytes) -> None:
    ref = parse_ref(text)
    if ref is not None:
        assert format_ref(*ref) == (text if isinstance(text, str) else text.decode())


# Feedback


def test_a_label_placed_by_its_header() -> None:
    headers = (("ss-ref", b"3-17"), ("x", None))
    record = taken(b'{"id":"a","label":[1,2]}', headers)
    assert record == FeedbackRecord(
        partition=2,
        offset=9,
        append_ms=1_000,
        ref=(3, 17),
        id="a",
        label=[1, 2],
        has_label=True,
        key=b"k",
        value=b'{"id":"a","label":[1,2]}',
        headers=record.headers,
    )
    assert record.headers[0] == ("ss-ref", b"3-17")


def test_an_id_that_is_a_ref_places_and_the_header_counts_more() -> None:
    assert taken(b'{"id":"3-17","label":1}').ref == (3, 17)
    assert taken(b'{"id":"3-17","label":1}', [("ss-ref", b"4-18")]).ref == (4, 18)
    assert taken(b'{"id":"a","label":1}').ref is None
    assert taken(b'{"label":1}', [("ss-ref", b"4-18")]).id is None
    assert taken(b'{"id":17,"label":1}').id == "17"


def test_rewards_models_and_null_labels() -> None:
    record = taken(b'{"id":"a","reward":1,"model":"linear@1"}')
    assert (record.reward, record.model, record.has_label) == (1.0, "linear@1", False)
    record = taken(b'{"id":"a","label":null}')
    assert (record.label, record.has_label, record.reward) == (None, True, None)


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (None, (), Reason.EMPTY_VALUE),
        (b"", (), Reason.EMPTY_VALUE),
        (b'"' + b"x" * (1 << 20) + b'"', (), Reason.TOO_LARGE),
        (b"{", (), Reason.NOT_JSON),
        (b'{"id":"a","label":NaN}', (), Reason.NOT_JSON),
        (b"[" * 100_000, (), Reason.WRONG_FORM),
        (b"[]", (), Reason.WRONG_FORM),
        (b'{"id":"a"}', (), Reason.WRONG_FORM),
        (b'{"id":"a","reward":null}', (), Reason.WRONG_FORM),
        (b'{"label":1}', (), Reason.WRONG_FORM),
        (b'{"id":{},"label":1}', (), Reason.WRONG_FORM),
        (b'{"id":"a","reward":"1"}', (), Reason.WRONG_DATATYPE),
        (b'{"id":"a","reward":true}', (), Reason.WRONG_DATATYPE),
        (b'{"id":"a","reward":1.1}', (), Reason.WRONG_DATATYPE),
        (b'{"id":"a","reward":-1}', (), Reason.WRONG_DATATYPE),
        (b'{"id":"a","reward":1e999}', (), Reason.WRONG_DATATYPE),
        (b'{"id":"a","label":1,"model":7}', (), Reason.WRONG_DATATYPE),
        (b'{"id":"a","label":1' + b"0" * 30 + b"}", (), Reason.WRONG_DATATYPE),
        (b'{"id":"a","label":1}', [("ss-ref", b"x")], Reason.BAD_HEADER),
        (b'{"id":"a","label":1}', [("ss-ref", b"\xff")], Reason.BAD_HEADER),
        (b'{"id":"a","label":1}', [("ss-ref", None)], Reason.BAD_HEADER),
        (b'{"id":"a","label":1}', [("ss-origin", b"1")], Reason.BAD_HEADER),
    ],
)
def test_feedback_that_cannot_be_used_has_its_reason(value: bytes | None, headers: Any, reason: Reason) -> None:
    refusal = feedback(value, headers)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert refusal.words.isprintable()


@given(
    st.binary(max_size=40)
    | JSON.map(orjson.dumps)
    | st.dictionaries(st.sampled_from(["id", "label", "reward", "model"]), JSON, min_size=2).map(orjson.dumps)
)
def test_any_feedback_is_a_record_or_a_refusal(value: bytes) -> None:
    record = feedback(value)
    if isinstance(record, FeedbackRecord):
        assert record.has_label or record.reward is not None


def test_forwarded_feedback_keeps_bytes_and_its_first_place() -> None:
    first = taken(b'{"id":"a","label":1}', [("ss-ref", b"3-17"), ("traceparent", b"t")])
    records = encode_forward(FeedbackForward(to_partition=3, record=first))
    assert (records.keys, records.values) == ([b"k"], [b'{"id":"a","label":1}'])
    assert records.headers == [
        [("ss-ref", b"3-17"), ("traceparent", b"t"), ("ss-origin", b"2-9"), ("ss-origin-ms", b"1000")]
    ]
    again = decode_feedback(records.values[0], tuple(records.headers[0]), partition=3, offset=50, append_ms=2_000)
    assert isinstance(again, FeedbackRecord)
    assert again.origin == (2, 9)
    assert encode_forward(FeedbackForward(to_partition=3, record=again)).headers[0][-2:] == [
        ("ss-origin", b"2-9"),
        ("ss-origin-ms", b"1000"),
    ]
    assert again.landed_ms == 1_000  # however late it was forwarded
    assert BatchBuilder(1 << 20, 0).append(timestamp=None, key=b"k", value=b"v", headers=records.headers[0])


# Terminal records


def test_a_prediction_record_needs_a_ref_of_its_partition() -> None:
    def record(value: bytes | None, *headers: tuple[str, bytes | None], partition: int = 3) -> Any:
        return decode_prediction_record(value, headers, partition=partition, append_ms=5)

    kept = record(b"{}", ("ss-id", b"a\xff"), ("ss-ref", b"3-17"))
    assert (kept.request_offset, kept.append_ms, kept.id, kept.raw) == (17, 5, "a\ufffd", b"{}")
    assert record(b"{}", ("ss-ref", b"3-17")).id is None
    assert record(b"{}", ("ss-ref", b"3-17"), partition=4) is None
    assert record(b"{}", ("ss-ref", b"x")) is None
    assert record(b"{}", ("ss-ref", None)) is None
    assert record(b"{}") is None
    assert record(None, ("ss-ref", b"3-17")) is None


PREDICTION: dict[str, Any] = {
    "model_name": "digits",
    "id": "a",
    "outputs": [{"name": "label", "shape": [2], "datatype": "INT64", "data": [1, 2]}],
    "parameters": {
        "outcome": "ok",
        "reason": "all_answered",
        "probability": 0.5,
        "epoch": 4,
        "chosen": "linear@1",
        "queue_ms": 1,
        "inference_ms": 1,
        "total_ms": 1,
    },
}


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [3], "data": [1, 2]},
        {"shape": [-2], "data": [1, 2]},
        {"shape": [], "data": [1]},
        {"shape": [1 << 40, 0], "data": []},
        {"shape": [2, 2], "data": [1, 2]},
    ],
)
def test_a_record_whose_shape_and_data_differ_is_not_read(tensor: dict[str, Any]) -> None:
    assert decode_decision(orjson.dumps(PREDICTION)) is not None
    value = PREDICTION | {"outputs": [{"name": "label", "datatype": "INT64", **tensor}]}
    assert decode_decision(orjson.dumps(value)) is None


@given(st.binary(max_size=30) | JSON.map(orjson.dumps))
def test_what_is_no_prediction_is_none(value: bytes) -> None:
    assert decode_decision(value) is None
    assert decode_decision(b"[" * 90_000) is None


# Outcomes and states


@st.composite
def outcomes(draw: st.DrawFn) -> OutcomeRecord:
    has_label = draw(st.booleans())
    place = st.tuples(COUNTS, COUNTS)
    partition = draw(st.integers(0, 9))
    return OutcomeRecord(
        to_partition=partition,
        route=draw(TEXTS),
        context=draw(TEXTS),
        ref=draw(place),
        decision=Decision(
            id=draw(TEXTS),
            route=draw(TEXTS),
            outcome=draw(TEXTS),
            epoch=draw(st.integers(-1, 2**62)),
            probability=draw(st.integers(0, 2**32)) / 2**32,
            off_epoch=draw(st.booleans()),
            chosen=tuple(draw(st.lists(TEXTS, max_size=2))),
            label=draw(JSON),
            members=draw(st.dictionaries(TEXTS, JSON, max_size=2)),
            rows=draw(COUNTS),
            state_age_ms=draw(st.integers(-1, 2**62)),
        ),
        feedback=draw(place),
        feedback_ms=draw(COUNTS),
        label=draw(JSON) if has_label else None,
        has_label=has_label,
        reward=draw(st.none() | NUMBERS),
        losses=draw(st.dictionaries(TEXTS, NUMBERS, max_size=2)),
        open_offset=draw(COUNTS),
        primary=draw(st.booleans()),
        prediction_ms=draw(st.integers(-1, 2**62)),
        partition=partition,
        offset=draw(COUNTS),
        append_ms=draw(COUNTS),
    )


@given(outcomes())
def test_outcomes_there_and_back(outcome: OutcomeRecord) -> None:
    value = encode_outcome(outcome)
    place = {"partition": outcome.partition, "offset": outcome.offset, "append_ms": outcome.append_ms}
    assert decode_outcome(value, **place) == outcome


@given(outcomes())
def test_an_outcome_of_a_release_before_ages_of_states_is_read(outcome: OutcomeRecord) -> None:
    value = orjson.loads(encode_outcome(outcome))
    value["decision"].pop("state_age_ms", None)
    place = {"partition": outcome.partition, "offset": outcome.offset, "append_ms": outcome.append_ms}
    untold = replace(outcome, decision=replace(outcome.decision, state_age_ms=-1))
    assert decode_outcome(orjson.dumps(value), **place) == untold


@given(
    st.builds(
        StateRecord,
        route=TEXTS,
        context=TEXTS,
        policy=TEXTS,
        data=st.dictionaries(TEXTS, JSON, max_size=3),
        includes=st.dictionaries(st.integers(0, 99), COUNTS, max_size=3),
        partition=st.integers(0, 9),
        epoch=COUNTS,
        append_ms=COUNTS,
        previous=st.integers(-1, 2**62),
        covers=COUNTS,
    )
)
def test_states_there_and_back(state: StateRecord) -> None:
    assert decode_snapshot(encode_snapshot(state), partition=0, offset=5) == state
    place = {"partition": state.partition, "offset": state.epoch, "append_ms": state.append_ms}
    read = decode_epoch(encode_epoch(state), **place)
    assert read == StateRecord(**{name: getattr(state, name) for name in state.__slots__} | {"covers": 0})


def test_keys_of_states() -> None:
    assert state_key("digits", "") == b"digits"
    assert state_key("digits", "films") == b"digits/films"


STATE = StateRecord(route="r", context="", policy="hedge", data={}, includes={0: 1}, partition=0, epoch=3, append_ms=4)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "the epochs record 1-2 has no value"),
        (b"{", "the epochs record 1-2 cannot be read"),
        (b"[" * 90_000, "cannot be read"),
        (b'{"v":2}', "its version is 2, this code reads 1"),
        (encode_epoch(STATE).replace(b'"v":1', b'"v":9'), "its version is 9, this code reads 1"),
        (encode_epoch(STATE).replace(b'"route":"r"', b'"route":1'), r"Expected `str`, got `int` - at `\$.route`"),
        (encode_epoch(STATE).replace(b'{"0":1}', b'{"x":1}'), "partition that is not a number"),
        (encode_epoch(STATE).replace(b'{"0":1}', b'{"0":-1}'), "cannot be read"),
    ],
)
def test_a_state_that_cannot_be_read_stops_its_reader(value: bytes | None, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        decode_epoch(value, partition=1, offset=2, append_ms=3)


@given(st.binary(max_size=40) | JSON.map(orjson.dumps))
def test_anything_else_is_a_contract_error(value: bytes) -> None:
    for decode in (
        lambda: decode_outcome(value, partition=0, offset=0, append_ms=0),
        lambda: decode_snapshot(value, partition=0, offset=0),
        lambda: decode_epoch(value, partition=0, offset=0, append_ms=0),
    ):
        with pytest.raises(ContractError):
            decode()
