"""What a callable may answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec, Outputs, RowError, report_metric
from streamserve.runtimes.callable import CallableRuntime

BATCH = np.arange(6, dtype=float).reshape(3, 2)
SPEC = ModelSpec(name="m", version="1", source="app:predict")
MATRIX = [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]


def answer(value: Any) -> Outputs:
    return CallableRuntime(lambda batch: value, SPEC).predict(BATCH)


def test_labels_alone() -> None:
    outputs = answer(np.array([1, 0, 1]))
    assert outputs.labels.tolist() == [1, 0, 1]
    assert outputs.labels.dtype == np.int64
    assert outputs.probabilities is None
    assert answer([1.5, 2.5, 3.5]).labels.dtype == np.float64
    assert answer([[1, 2], [3, 4], [5, 6]]).labels.shape == (3, 2)


def test_text_labels_are_python_strings() -> None:
    for value in (["no", "yes", "no"], np.array(["no", "yes", "no"])):
        labels = answer(value).labels
        assert labels.dtype == object
        assert labels.tolist() == ["no", "yes", "no"]
    assert answer([1, "a", 2.5]).labels.tolist() == [1, "a", 2.5]


def test_labels_with_probabilities() -> None:
    outputs = answer(([0, 1, 0], MATRIX))
    assert outputs.probabilities.tolist() == MATRIX
    assert outputs.classes is None
    assert outputs.probabilities.dtype == np.float64


def test_a_dictionary() -> None:
    outputs = answer({"labels": ["a", "b", "a"], "probabilities": MATRIX, "classes": ["a", "b"]})
    assert (outputs.labels.tolist(), outputs.classes.tolist()) == (["a", "b", "a"], ["a", "b"])
    from_probabilities = answer({"probabilities": MATRIX, "classes": ["a", "b"]})
    assert from_probabilities.labels.tolist() == ["a", "b", "a"]
    assert answer({"probabilities": MATRIX}).labels.tolist() == [0, 1, 0]


def test_outputs_pass_through() -> None:
    outputs = Outputs(labels=np.array([1, 2, 3]), metrics={"own": 1.0})
    assert answer(outputs) is outputs


def test_array_likes_of_frames_are_taken() -> None:
    import pandas as pd

    assert answer(pd.Series([3, 4, 5])).labels.tolist() == [3, 4, 5]
    assert answer(pd.Series(["a", "b", "c"])).labels.tolist() == ["a", "b", "c"]


def test_single_rows_can_be_refused() -> None:
    outputs = answer([7, RowError("no pixels"), 9])
    assert outputs.row_errors == {1: "no pixels"}
    assert outputs.labels[[0, 2]].tolist() == [7, 9]
    assert outputs.labels.dtype == np.int64
    assert answer([ValueError(), 1, 2]).row_errors == {0: "ValueError"}
    assert answer(np.array([1, KeyError("x"), 2], dtype=object)).row_errors == {1: "'x'"}


def test_refused_rows_with_probabilities_and_vectors() -> None:
    outputs = answer(([0, RowError("bad"), 1], [MATRIX[0], None, MATRIX[1]]))
    assert outputs.probabilities[[0, 2]].tolist() == MATRIX[:2]
    assert np.isfinite(outputs.probabilities).all()
    nan = answer(([0, RowError("bad"), 1], [MATRIX[0], [np.nan, np.nan], MATRIX[1]]))
    assert np.isfinite(nan.probabilities).all()
    assert answer([[1, 2], RowError("bad"), [3, 4]]).labels.shape == (3, 2)


def test_all_rows_refused() -> None:
    outputs = answer([RowError("a"), RowError("b"), RowError("c")])
    assert outputs.row_errors == {0: "a", 1: "b", 2: "c"}
    assert len(outputs.labels) == 3
    both = answer(([RowError("a")] * 3, [None] * 3))
    assert len(both.probabilities) == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "predict answered NoneType; predict.batch. answers labels"),
        ("yes", "predict answered str;"),
        (5, "predict answered int;"),
        (np.float64(5), "one value instead of one a row"),
        (([1], [2], [3]), "a tuple of 3"),
        ({"label": [1]}, "a dict with the keys label;"),
        ({}, "a dict with the keys none;"),
        (([0, 1], MATRIX), "2 labels but 3 rows of probabilities"),
        (([0, 1, 0], [0.1, 0.2, 0.3]), r"probabilities of shape \(3,\); they are \[rows, classes\]"),
        (([0, 1, 0], [["a"], ["b"], ["c"]]), "not a matrix of numbers"),
        (([0, 1, 0], [[1], [1, 2], [3]]), "not a matrix of numbers"),
        ([[1], [1, 2], [3]], "labels of different shapes"),
        ({"labels": [0, 1, 0], "classes": [0, 1]}, r"classes of shape \(2,\) for no probabilities"),
        ({"labels": [0, 1, 0], "probabilities": MATRIX, "classes": [0]}, r"\(1,\) for 2 columns of probabilities"),
    ],
)
def test_other_answers_are_explained(value: Any, words: str) -> None:
    with pytest.raises(ModelError, match=f"model m@1: .*{words}"):
        answer(value)


def test_what_the_callable_raises_is_raised() -> None:
    def predict(batch: np.ndarray) -> None:
        raise RowError("whole batch")

    with pytest.raises(RowError, match="whole batch"):
        CallableRuntime(predict, SPEC).predict(BATCH)


def test_the_batch_cannot_be_changed_by_a_model() -> None:
    def predict(batch: np.ndarray) -> np.ndarray:
        batch /= 255
        return batch[:, 0]

    with pytest.raises(ValueError, match="read-only"):
        CallableRuntime(predict, SPEC).predict(BATCH)
    assert BATCH.flags.writeable


def test_own_metrics_belong_to_their_call() -> None:
    def predict(batch: np.ndarray) -> np.ndarray:
        if len(batch) > 1:
            report_metric("unknown_words", 3)
            report_metric("unknown_words", len(batch))
        return batch[:, 0]

    runtime = CallableRuntime(predict, SPEC)
    assert runtime.predict(BATCH).metrics == {"unknown_words": 3.0}
    assert runtime.predict(BATCH[:1]).metrics == {}
    report_metric("unknown_words", 1)  # outside of a call: nobody listens


def test_metrics_of_outputs_and_reported_ones_are_joined() -> None:
    def predict(batch: np.ndarray) -> Outputs:
        report_metric("b", 2)
        return Outputs(labels=batch[:, 0], metrics={"a": 1.0})

    assert CallableRuntime(predict, SPEC).predict(BATCH).metrics == {"a": 1.0, "b": 2.0}


def test_a_model_inside_a_model_keeps_its_metrics_apart() -> None:
    def inside(batch: np.ndarray) -> np.ndarray:
        report_metric("inner", 1)
        return batch[:, 0]

    inner = CallableRuntime(inside, SPEC)

    def predict(batch: np.ndarray) -> np.ndarray:
        report_metric("before", 1)
        assert inner.predict(batch).metrics == {"inner": 1.0}
        report_metric("after", 1)
        return batch[:, 0]

    assert CallableRuntime(predict, SPEC).predict(BATCH).metrics == {"before": 1.0, "after": 1.0}


@pytest.mark.parametrize(("name", "value"), [("Bad Name", 1), ("ok", float("nan")), ("", 1)])
def test_bad_metrics_are_refused(name: str, value: float) -> None:
    with pytest.raises(ModelError, match="metric"):
        report_metric(name, value)


def test_close_reaches_the_callable() -> None:
    closed = []

    class Model:
        def __call__(self, batch: np.ndarray) -> np.ndarray:
            return batch[:, 0]

        def close(self) -> None:
            closed.append(True)

    CallableRuntime(Model(), SPEC).close()
    CallableRuntime(lambda batch: batch, SPEC).close()
    assert closed == [True]


def test_accepts_callables_but_no_classes() -> None:
    assert CallableRuntime.accepts(len)
    assert not CallableRuntime.accepts(dict)
    assert CallableRuntime.accepts(SimpleNamespace(predict=len))
    assert not CallableRuntime.accepts(SimpleNamespace(predict=3))


def test_a_callable_that_has_no_sample_says_so() -> None:
    class Quiet:
        def __call__(self, batch: np.ndarray) -> np.ndarray:
            return batch[:, 0]

        def sample(self) -> None:
            return None

    runtime = CallableRuntime(Quiet(), ModelSpec(name="m", version="1", source="x"))
    assert runtime.sample() is None


def test_an_object_with_predict_is_a_model() -> None:
    """As `source = "app:Model()"` makes one; so are its sample row and its end its own."""

    class Model:
        closed = False

        def predict(self, batch: Any) -> Any:
            return batch.sum(axis=1)

        def sample(self) -> list[list[float]]:
            return [[1.0, 2.0]]

        def close(self) -> None:
            self.closed = True

    model = Model()
    assert CallableRuntime.accepts(model)
    assert not CallableRuntime.accepts(Model)
    runtime = CallableRuntime(model, SPEC)
    assert runtime.predict(BATCH).labels.tolist() == [1.0, 5.0, 9.0]
    assert runtime.sample().tolist() == [[1.0, 2.0]]
    runtime.close()
    assert model.closed


def test_an_object_that_can_be_called_is_called() -> None:
    class Both:
        def __call__(self, batch: Any) -> Any:
            return np.zeros(len(batch))

        def predict(self, batch: Any) -> Any:
            raise AssertionError

    assert CallableRuntime(Both(), SPEC).predict(BATCH).labels.tolist() == [0.0, 0.0, 0.0]
