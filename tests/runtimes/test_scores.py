"""Raw scores as labels and probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec
from streamserve.runtimes.scores import class_array, outputs_from_scores

SPEC = ModelSpec(name="m", version="1", source="net.onnx")


def test_logits_become_probabilities_without_overflow() -> None:
    outputs = outputs_from_scores(np.array([[1e4, 0, -1e4], [0, 0, 0]], dtype=np.float32), "logits", None, SPEC)
    np.testing.assert_allclose(outputs.probabilities, [[1, 0, 0], [1 / 3] * 3], atol=1e-12)
    assert outputs.labels.tolist() == [0, 0]
    assert outputs.labels.dtype == np.int64


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_column_is_the_second_class(shape: tuple[int, ...]) -> None:
    logits = np.array([-1e4, 0.5, 1e4]).reshape(shape)
    outputs = outputs_from_scores(logits, "logits", class_array(["no", "yes"]), SPEC)
    assert outputs.labels.tolist() == ["no", "yes", "yes"]
    np.testing.assert_allclose(outputs.probabilities[:, 1], [0, 1 / (1 + np.exp(-0.5)), 1], atol=1e-12)
    given = outputs_from_scores(np.array([0.2, 0.7, 0.9]).reshape(shape), "probabilities", None, SPEC)
    assert given.labels.tolist() == [0, 1, 1]
    np.testing.assert_allclose(given.probabilities.sum(axis=1), 1.0)


def test_values_stay_as_they_are() -> None:
    assert outputs_from_scores(np.ones((4, 1)), "value", None, SPEC).labels.shape == (4,)
    assert outputs_from_scores(np.ones((4, 2)), "value", None, SPEC).labels.shape == (4, 2)
    assert outputs_from_scores(np.ones(4), "value", None, SPEC).probabilities is None


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match=r"its output has the shape \(2, 3, 4\); logits are \[rows, classes\]"):
        outputs_from_scores(np.ones((2, 3, 4)), "logits", None, SPEC)
    with pytest.raises(ModelError, match=r"options.classes names 2 classes, its output has 3"):
        outputs_from_scores(np.ones((2, 3)), "logits", class_array([1, 2]), SPEC)
