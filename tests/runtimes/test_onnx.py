"""Converted classifiers in both of their forms, and graphs that answer one tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression, LogisticRegression

from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec, Outputs, Runtime, load

ROWS = np.random.default_rng(3).normal(size=(60, 3))


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """Saves a model as a file and loads it with some options."""

    def serve(model: onnx.ModelProto, **options: Any) -> Runtime:
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        return load(ModelSpec(name="m", version="1", source="model.onnx", options=options), base_dir=tmp_path)

    return serve


def classifier(names: list[Any]) -> LogisticRegression:
    labels = np.array(names)[(ROWS[:, 0] > 0).astype(int) + (ROWS[:, 0] > 1)]
    return LogisticRegression().fit(ROWS, labels)


def converted(model: Any, zipmap: bool) -> onnx.ModelProto:
    return to_onnx(model, ROWS[:1].astype(np.float32), options={"zipmap": zipmap}, target_opset=18)


def graph(n_inputs: int = 1, columns: int = 3) -> onnx.ModelProto:
    """Answers its (first) input."""
    inputs = [helper.make_tensor_value_info(f"in{i}", TensorProto.FLOAT, [None, columns]) for i in range(n_inputs)]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, columns])
    nodes = [helper.make_node("Identity", ["in0"], ["out"])]
    made = helper.make_graph(nodes, "identity", inputs, [output])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def assert_agree(outputs: Outputs, model: LogisticRegression) -> None:
    assert outputs.labels.tolist() == model.predict(ROWS).tolist()
    np.testing.assert_allclose(outputs.probabilities, model.predict_proba(ROWS), atol=1e-6)


@pytest.mark.parametrize("names", [[0, 1, 2], [3, 7, 9], ["a", "b", "c"]])
def test_a_zipmap_names_its_classes(served: Any, names: list[Any]) -> None:
    model = classifier(names)
    outputs = served(converted(model, zipmap=True)).predict(ROWS)
    assert_agree(outputs, model)
    assert outputs.classes.tolist() == names


def test_a_probability_tensor_of_plain_classes(served: Any) -> None:
    model = classifier([0, 1, 2])
    outputs = served(converted(model, zipmap=False)).predict(ROWS)
    assert_agree(outputs, model)
    assert outputs.classes is None


@pytest.mark.parametrize("names", [[3, 7, 9], ["a", "b", "c"]])
def test_a_probability_tensor_of_other_classes_needs_their_names(served: Any, names: list[Any]) -> None:
    model = classifier(names)
    with pytest.raises(ModelError, match=r"what the 3 columns of its probabilities stand for.* options.classes = \["):
        served(converted(model, zipmap=False)).predict(ROWS)
    outputs = served(converted(model, zipmap=False), classes=names).predict(ROWS)
    assert_agree(outputs, model)
    assert outputs.classes.tolist() == names
    with pytest.raises(ModelError, match=r"options.classes names 2 classes, its output 3"):
        served(converted(model, zipmap=False), classes=names[:2]).predict(ROWS)


def test_a_regressor_gives_one_value_a_row(served: Any) -> None:
    model = LinearRegression().fit(ROWS, ROWS.sum(axis=1))
    outputs = served(to_onnx(model, ROWS[:1].astype(np.float32), target_opset=18)).predict(ROWS)
    assert outputs.labels.shape == (60,)
    np.testing.assert_allclose(outputs.labels, ROWS.sum(axis=1), atol=1e-5)


def test_text_goes_in_as_one_column(served: Any) -> None:
    text = helper.make_tensor_value_info("text", TensorProto.STRING, [None, 1])
    number = helper.make_tensor_value_info("number", TensorProto.INT64, [None, 1])
    encode = {"keys_strings": ["bad", "good"], "values_int64s": [0, 1], "domain": "ai.onnx.ml"}
    made = helper.make_graph([helper.make_node("LabelEncoder", ["text"], ["number"], **encode)], "t", [text], [number])
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("ai.onnx.ml", 2)], ir_version=9)
    assert served(proto).predict(np.array(["good", "bad"], dtype=object)).labels.tolist() == [1, 0]


def test_one_matrix_needs_its_meaning(served: Any) -> None:
    with pytest.raises(ModelError, match=r"has 3 columns; options.output must say .* logits \| probabilities \| value"):
        served(graph()).predict(ROWS)
    assert served(graph(), output="value").predict(ROWS).labels.shape == (60, 3)
    logits = served(graph(), output="logits", classes=["x", "y", "z"]).predict(ROWS)
    assert logits.labels.tolist() == [["x", "y", "z"][i] for i in ROWS.argmax(axis=1)]
    np.testing.assert_allclose(logits.probabilities.sum(axis=1), 1.0)
    with pytest.raises(ModelError, match=r"options.output = 'logit': must be .logits. \| "):
        served(graph(), output="logit")


def test_one_thread_unless_told_otherwise(served: Any) -> None:
    assert served(graph(), output="value")._session.get_session_options().intra_op_num_threads == 1
    assert served(graph(), output="value", threads=2)._session.get_session_options().intra_op_num_threads == 2


def test_a_graph_has_one_input(served: Any) -> None:
    with pytest.raises(ModelError, match=r"has 2 inputs \(in0, in1\); a model here has one"):
        served(graph(n_inputs=2))


def test_a_wrong_column_count_is_raised_as_onnx_runtime_says_it(served: Any) -> None:
    with pytest.raises(Exception, match="Got: 2 Expected: 3"):
        served(graph(), output="value").predict(ROWS[:, :2])
