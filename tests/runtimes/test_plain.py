"""What a runtime may answer: it is made plain, or fails its own call in words."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from streamserve.errors import ModelError
from streamserve.runtimes import Outputs
from streamserve.runtimes.plain import plain_outputs


def plain(labels: Any, **more: Any) -> Outputs:
    return plain_outputs(Outputs(labels=labels, **more))


def test_what_is_plain_goes_through_as_it_is() -> None:
    outputs = Outputs(labels=np.zeros(3), probabilities=np.zeros((3, 2)), classes=np.array([0, 1]))
    assert plain_outputs(outputs) is outputs


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([1, 2], [1, 2]),
        ((1.5, 2.5), [1.5, 2.5]),
        (np.array([1, 2], ">i4"), [1, 2]),
        (np.array([1, 2], np.longdouble), [1.0, 2.0]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([b"a", b"\xff"]), ["a", "\ufffd"]),
        (np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"), ["2020-01-01", "2020-01-02"]),
        (np.array(["2020-01-01"], "datetime64[ns]"), ["2020-01-01T00:00:00.000000000"]),
        (np.array([1, 2], "timedelta64[s]"), ["1 seconds", "2 seconds"]),
        ([10**30, 1], [str(10**30), 1]),
        ([Decimal("1.5"), Decimal("sNaN")], ["1.5", "sNaN"]),
        (np.array([np.int64(3), np.float32(0.5)], object), [3, 0.5]),
        (np.array([{"a": 1}, None, True], object), ["{'a': 1}", None, True]),
    ],
)
def test_labels_become_numbers_or_plain_objects(labels: Any, expected: list[Any]) -> None:
    assert plain(labels).labels.tolist() == expected
    assert plain(labels).labels.dtype.kind in "biufO"


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (None, "the runtime answered NoneType"),
        ([1, 2], "the runtime answered list"),
        (Outputs(labels=None), "NoneType for labels"),  # type: ignore[arg-type]
        (Outputs(labels="ab"), "str for labels"),  # type: ignore[arg-type]
        (Outputs(labels=np.zeros(2, [("a", int)])), "labels of dtype"),
        (Outputs(labels=np.zeros(2, complex)), "labels of dtype complex128"),
        (Outputs(labels=np.array(1)), "one value instead of one a row"),
        (Outputs(labels=[[1], [2, 3]]), "different shapes"),  # type: ignore[arg-type]
        (Outputs(labels=np.zeros(1), probabilities=[["x"]]), "no matrix of numbers"),  # type: ignore[arg-type]
        (Outputs(labels=np.zeros(1), classes=np.zeros((1, 2))), r"classes of shape \[1, 2\]"),
        (Outputs(labels=np.zeros(1), row_errors={"0": "x"}), "row_errors names row '0'"),  # type: ignore[dict-item]
    ],
)
def test_what_cannot_be_used_is_refused_in_words(outputs: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        plain_outputs(outputs)


def test_rows_without_a_usable_label_are_refused_alone() -> None:
    masked = np.ma.array([1, 2, 3], mask=[False, True, False])
    assert plain(masked).row_errors == {1: "the model masked its answer"}
    mixed = plain(np.array(["a", float("nan"), 1.0, float("inf")], object))
    assert sorted(mixed.row_errors) == [1, 3]
    assert mixed.labels.tolist() == ["a", 0.0, 1.0, 0.0]


def test_classes_can_always_be_compared_and_hashed() -> None:
    classes = np.empty(2, object)
    classes[:] = [[1], Decimal("sNaN")]
    found = plain(np.zeros(1), probabilities=np.zeros((1, 2)), classes=classes).classes
    assert found is not None
    assert hash(tuple(found.tolist()))
    assert plain(np.zeros(1), probabilities=[[0.5, 0.5]], classes=["a", "b"]).classes is not None


def test_a_label_whose_words_cannot_be_read_fails_its_call() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with pytest.raises(RuntimeError, match="no words"):
        plain(np.array([Mute()], object))
    with pytest.raises(ValueError, match="digits"):
        plain([10**5000])
