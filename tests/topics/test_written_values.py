"""What the product writes is what the published contract says."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from streamserve.core.messages import PROBABILITY_ONE, AnyArray, Choice, DeadLetters, MemberOutput, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from streamserve.core.records import Decision, OutcomeRecord, StateRecord
from streamserve.kafka.codecs import raw, redrives, refs
from streamserve.kafka.codecs.dead_letters import encode_dead_letters
from streamserve.kafka.codecs.learning import encode_epoch, encode_outcome, encode_snapshot
from streamserve.kafka.codecs.predictions import encode_predictions
from streamserve.topics import Kind, spec_of
from streamserve.topics.schemas import schema
from streamserve.topics.values import PredictionValue

MODELS = ("linear@1", "forest@2")


def predictions(labels: AnyArray | None, *, probabilities: bool = False) -> Predictions:
    """Three requests: two rows answered, one row answered in part and late, none answered."""
    rows = 0 if labels is None else len(labels)
    n_rows = [2, 1, 0] if rows else [0, 0, 0]
    missing = np.zeros((3, 2), np.uint8)
    missing[1, 1] = Missing.LATE
    missing[2] = Missing.SHED
    return Predictions(
        partition=np.full(3, 3),
        route="fraud",
        models=MODELS,
        offsets=np.array([7, 8, 10]),
        append_ms=np.array([1_000, 1_000, 1_004]),
        keys=[b"k", None, None],
        ids=["a", None, 'quote " and \u00e9'],
        traces=[None, b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None],
        outcome=np.array([Outcome.OK, Outcome.PARTIAL, Outcome.EXPIRED], np.uint8),
        reason=np.array([Reason.ALL_ANSWERED, Reason.MEMBERS_MISSING, Reason.SHED], np.uint8),
        row_starts=np.concatenate([[0], np.cumsum(n_rows)]),
        labels=labels,
        probabilities=np.full((rows, 2), 0.5) if probabilities else None,
        classes=np.array([0, 1]) if probabilities else None,
        confidence=np.array([1.0, 0.6, np.nan]),
        choice=Choice(
            chosen=np.array([3, 3, 3], np.uint64),
            probability=np.array([PROBABILITY_ONE, PROBABILITY_ONE // 4, 1]),
            epoch=np.array([-1, 12, 12]),
            stale=np.array([False, True, False]),
        ),
        answered=np.array([3, 1, 0], np.uint64),
        missing=missing,
        members=()
        if labels is None
        else (MemberOutput(model="linear@1", labels=labels, differs=np.array([True, False, False])),),
        queue_ms=np.array([1, 2, 0], np.int32),
        inference_ms=np.array([3, 4, 0], np.int32),
        total_ms=np.array([5, 90, 101], np.int32),
        late=np.array([False, True, False]),
        off_epoch=np.array([False, True, False]),
        details={2: "the queue was too long"},
    )


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1, 1]),
        np.array([0.5, 1.5, -2.0]),
        np.array([True, False, True]),
        np.array(["yes", "no", 'a "b"'], object),
        np.arange(6, dtype=np.float32).reshape(3, 2),
        None,
    ],
    ids=["int", "float", "bool", "text", "vector", "none"],
)
@pytest.mark.parametrize("probabilities", [False, True])
def test_a_written_prediction_is_as_published(labels: AnyArray | None, probabilities: bool) -> None:
    always = {header.name for header in spec_of(Kind.PREDICTIONS).headers if header.always}
    declared = {header.name for header in spec_of(Kind.PREDICTIONS).headers}
    records = encode_predictions(predictions(labels, probabilities=probabilities and labels is not None))
    for value, headers in zip(records.values, records.headers, strict=True):
        strictly(Kind.PREDICTIONS, value)
        decoded = msgspec.json.decode(value, type=PredictionValue)
        assert decoded.model_name == "fraud"
        names = {name for name, _ in headers}
        assert always <= names <= declared


STATE = StateRecord(
    route="fraud", context="", policy="hedge", data={"w": [0.5]}, includes={0: 7, 3: 0}, partition=3, previous=-1
)
OUTCOME = OutcomeRecord(
    to_partition=1,
    route="fraud",
    context="",
    ref=(3, 7),
    decision=Decision(
        id="a",
        route="fraud",
        outcome="ok",
        epoch=-1,
        probability=0.25,
        off_epoch=False,
        chosen=MODELS,
        label=[0, 1],
        members={"linear@1": [0, 1]},
        rows=2,
    ),
    feedback=(2, 9),
    feedback_ms=1_000,
    label=None,
    has_label=True,
    losses={"linear@1": 0.5},
)


def strictly(kind: Kind, value: bytes) -> None:
    """Hold a written value against the schema; a field that we write is a field that we declare."""
    strict = schema(kind)
    for definition in strict["$defs"].values():
        definition["additionalProperties"] = False
    Draft202012Validator(strict).validate(json.loads(value))


@pytest.mark.parametrize("outcome", [OUTCOME, replace(OUTCOME, has_label=False, reward=0.5, losses={}, primary=False)])
def test_a_written_outcome_is_as_published(outcome: OutcomeRecord) -> None:
    strictly(Kind.OUTCOMES, encode_outcome(outcome))


def test_a_written_state_is_as_published() -> None:
    strictly(Kind.EPOCHS, encode_epoch(STATE))
    strictly(Kind.POLICY, encode_snapshot(replace(STATE, epoch=4, append_ms=1_000, covers=4)))


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_dead_letter_has_the_published_headers(size: int) -> None:
    letters = DeadLetters(
        source="requests",
        partition=0,
        offsets=np.array([5]),
        append_ms=np.array([1_000]),
        keys=[None],
        values=[b"x" * size],
        headers=[[("mine", b"kept")]],
        reasons=["not_json"],
        details=["it is no JSON"],
        stage="worker",
    )
    (headers,) = encode_dead_letters(letters, "fraud.requests.v1").headers
    names = {name for name, _ in headers} - {"mine"}
    declared = {header.name: header.always for header in spec_of(Kind.DLQ).headers}
    assert {name for name, always in declared.items() if always} <= names <= set(declared)


def test_request_headers_that_are_read_are_declared() -> None:
    declared = {header.name for header in spec_of(Kind.REQUESTS).headers}
    assert {"ss-route", "ss-deadline-ms", "mlserver-model", "ce_id", refs.TRACE_HEADER} <= declared
    assert {raw.DTYPE_HEADER, raw.SHAPE_HEADER} <= declared
    put_back = {redrives.REDRIVEN_HEADER, redrives.REDRIVEN_FROM_HEADER}
    assert put_back <= declared
    assert {refs.REF_HEADER, refs.ORIGIN_HEADER, refs.ORIGIN_MS_HEADER} | put_back == {
        h.name for h in spec_of(Kind.FEEDBACK).headers
    }
