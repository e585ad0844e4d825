"""Terminal records as our own encoder writes them, read by the client."""

from __future__ import annotations

import json

import numpy as np
import pytest

from streamserve.client import Prediction, PredictionFailed
from streamserve.client.prediction import TerminalRecord, decode_prediction
from streamserve.core.messages import PROBABILITY_ONE, Choice, MemberOutput, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from streamserve.errors import ContractError, StreamserveError
from streamserve.kafka.codecs import encode_predictions

MODELS = ("linear@1", "forest@2", "mlp@1")


def encoded(**more: object) -> Prediction:
    """One request of two rows, written by the server's encoder and read by the client."""
    n = 1
    columns: dict[str, object] = {
        "partition": np.full(n, 3, np.int64),
        "route": "digits",
        "models": MODELS,
        "offsets": np.array([41], np.int64),
        "append_ms": np.array([1_000], np.int64),
        "keys": [b"k"],
        "ids": ["mine"],
        "traces": [None],
        "outcome": np.array([Outcome.PARTIAL], np.uint8),
        "reason": np.array([Reason.MEMBERS_MISSING], np.uint8),
        "row_starts": np.array([0, 2], np.int64),
        "labels": np.array([7, 9]),
        "probabilities": np.array([[0.25, 0.75], [0.5, 0.5]]),
        "classes": np.array([7, 9]),
        "confidence": np.array([0.75]),
        "choice": Choice(
            chosen=np.array([7], np.uint64),
            probability=np.array([PROBABILITY_ONE // 4], np.int64),
            epoch=np.array([12], np.int64),
            stale=np.array([True]),
        ),
        "answered": np.array([3], np.uint64),
        "missing": np.array([[0, 0, Missing.LATE]], np.uint8),
        "members": (MemberOutput(model="forest@2", labels=np.array([7, 8]), differs=np.array([True])),),
        "late": np.zeros(n, np.bool_),
        "off_epoch": np.zeros(n, np.bool_),
        "queue_ms": np.array([2], np.int32),
        "inference_ms": np.array([3], np.int32),
        "total_ms": np.array([9], np.int32),
        "details": {},
    }
    records = encode_predictions(Predictions(**{**columns, **more}))  # type: ignore[arg-type]
    return decode_prediction(TerminalRecord(3, 41, 1_009, records.keys[0], records.values[0]))


def test_everything_of_a_terminal_record_is_read() -> None:
    found = encoded()
    assert (found.id, found.ref, found.route, found.key) == ("mine", "3-41", "digits", b"k")
    assert (found.outcome, found.reason, found.detail) == ("partial", "members_missing", "")
    assert found.labels is not None
    assert (found.labels.tolist(), found.labels.dtype) == ([7, 9], np.int64)
    assert found.probabilities is not None
    assert found.probabilities.tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert found.classes == ("7", "9")
    assert {model: labels.tolist() for model, labels in found.members.items()} == {
        "linear@1": [7, 9],
        "forest@2": [7, 8],
    }
    assert found.missing == {"mlp@1": "late"}
    assert found.chosen == MODELS
    assert (found.confidence, found.probability, found.epoch) == (0.75, 0.25, 12)
    assert (found.late, found.stale, found.off_epoch) == (False, True, False)
    assert (found.queue_ms, found.inference_ms, found.total_ms, found.append_ms) == (2, 3, 9, 1_009)
    assert json.loads(found.raw)["id"] == "mine"
    assert found.raise_for_outcome() is found
    with pytest.raises(StreamserveError, match="prediction 3-41 has 2 rows: use `labels`"):
        _ = found.label


@pytest.mark.parametrize(
    ("labels", "label"),
    [
        (np.array([7]), 7),
        (np.array([0.5], np.float32), 0.5),
        (np.array([True]), True),
        (np.array(["gut"], object), "gut"),
    ],
)
def test_the_label_of_one_row_is_a_python_value(labels: np.ndarray, label: object) -> None:
    one = {"row_starts": np.array([0, 1]), "labels": labels, "probabilities": None, "classes": None, "members": ()}
    found = encoded(**one).label
    assert found == label
    assert type(found) is type(label)


def test_vectors_and_what_json_lacks() -> None:
    labels = np.array([[1.0, np.nan], [2.0, 3.0]])
    found = encoded(labels=labels, probabilities=None, classes=None, members=())
    assert found.labels is not None
    np.testing.assert_array_equal(found.labels, labels)


def test_no_answer_is_raised_in_the_records_words() -> None:
    found = encoded(
        outcome=np.array([Outcome.ERROR], np.uint8),
        reason=np.array([Reason.WRONG_SHAPE], np.uint8),
        row_starts=np.array([0, 0]),
        labels=None,
        probabilities=None,
        classes=None,
        members=(),
        confidence=np.array([np.nan]),
        missing=np.zeros((1, 3), np.uint8),
        details={0: "shape is [2] and data has 3 values"},
    )
    assert (found.labels, found.members, found.confidence) == (None, {}, None)
    words = r"request 3-41 ended as error: wrong shape \(shape is \[2\] and data has 3 values\)"
    with pytest.raises(PredictionFailed, match=words):
        found.raise_for_outcome()
    with pytest.raises(PredictionFailed, match=words):
        _ = found.label
    assert found.raise_for_outcome(accept={"error"}) is found


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"model_name":"r","id":"a","outputs":[{"name":"label","shape":[2],"datatype":"INT64","data":[1]}],'
        b'"parameters":{"outcome":"ok","reason":"x","probability":1,"epoch":-1,"chosen":"","queue_ms":0,'
        b'"inference_ms":0,"total_ms":0}}',
    ],
)
def test_what_is_no_terminal_record_is_a_contract_error(value: bytes | None) -> None:
    with pytest.raises(ContractError, match="the prediction of request 0-1 cannot be read"):
        decode_prediction(TerminalRecord(0, 1, 0, None, value))


def test_an_outcome_of_a_newer_server_is_read() -> None:
    value = json.loads(encoded().raw)
    value["parameters"]["outcome"] = "deferred"
    value["parameters"]["new"] = 1
    found = decode_prediction(TerminalRecord(3, 41, 0, None, json.dumps(value).encode()))
    assert found.outcome == "deferred"
