"""Runtime `plan`: a fitted pipeline compiled when the config asks for it, with the same answers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge

from streamserve.errors import ImportRefused, ModelError, PlanDamaged, PlanError
from streamserve.plan import compile_plan
from streamserve.plan.packing import pack
from streamserve.plan.store import Store
from streamserve.runtimes import ModelSpec, load
from streamserve.runtimes.plan import PlanRuntime
from streamserve.runtimes.sklearn import SklearnRuntime
from streamserve.skops_io import skops_io
from tests.plan.texts import DOCUMENTS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = np.array(DOCUMENTS, dtype=object)
WORDS = ["good", "bad"] * 4


def spec(source: str, **more: Any) -> ModelSpec:
    return ModelSpec(name="m", version="2", source=source, **more)


@pytest.fixture
def model() -> Any:
    return fitted(clone(VECTORISERS["union"]), labels=WORDS)


@pytest.fixture(params=["skops", "joblib"])
def file(request: pytest.FixtureRequest, model: Any, tmp_path: Path) -> Path:
    path = tmp_path / f"model.{request.param}"
    (skops_io().dump if request.param == "skops" else joblib.dump)(model, path)
    return path


@pytest.mark.slow
def test_the_same_answers_as_without(file: Path) -> None:
    trust = file.suffix == ".joblib"
    plan = load(spec(str(file), runtime="plan", trust_pickle=trust))
    plain = load(spec(str(file), trust_pickle=trust))
    assert isinstance(plan, PlanRuntime)
    assert isinstance(plain, SklearnRuntime)
    ours, theirs = plan.predict(ROWS), plain.predict(ROWS)
    assert ours.labels.tolist() == theirs.labels.tolist()
    assert ours.labels.dtype == theirs.labels.dtype == object
    assert ours.probabilities is not None
    assert theirs.probabilities is not None
    assert ours.probabilities.tolist() == theirs.probabilities.tolist()
    assert ours.classes is not None
    assert ours.classes.tolist() == ["bad", "good"]


def test_nothing_is_compiled_unasked(model: Any) -> None:
    assert isinstance(load(spec("tests.runtimes.test_plan:IMPORTED")), SklearnRuntime)
    assert isinstance(load(spec("tests.runtimes.test_plan:IMPORTED", runtime="plan")), PlanRuntime)


IMPORTED = fitted(clone(VECTORISERS["word"]))


@pytest.mark.slow
def test_a_row_that_is_no_text_is_refused_alone(model: Any) -> None:
    outputs = PlanRuntime(model, spec("m")).predict(np.array(["good", None, "bad"], dtype=object))
    assert outputs.row_errors == {1: "a text is needed, this is NoneType"}
    assert outputs.labels[[0, 2]].tolist() == model.predict(["good", "bad"]).tolist()


def test_options(model: Any) -> None:
    labels_only = PlanRuntime(model, spec("m", options={"probabilities": False, "disable": ["push-linear"]}))
    assert labels_only.predict(ROWS).probabilities is None
    with pytest.raises(ModelError, match="unknown option fast"):
        PlanRuntime(model, spec("m", options={"fast": True}))
    with pytest.raises(ModelError, match="model m@2: here: no rule nothing"):
        PlanRuntime(model, spec("here", options={"disable": ["nothing"]}))


def test_a_regressor_answers_values() -> None:
    model = fitted(clone(VECTORISERS["word"]), Ridge(), [0.5, 1, -1, 2, 0, 3, 1, 2])
    outputs = PlanRuntime(model, spec("m")).predict(ROWS)
    assert outputs.labels.tolist() == model.predict(DOCUMENTS).tolist()
    assert outputs.probabilities is None


def test_what_cannot_be_compiled_names_the_model() -> None:
    with pytest.raises(ImportRefused, match="model m@2: here: this LogisticRegression is not fitted"):
        PlanRuntime(LogisticRegression(), spec("here"))


@pytest.mark.slow
def test_its_sample_is_a_text(model: Any) -> None:
    runtime = PlanRuntime(model, spec("m"))
    sample = runtime.sample()
    assert sample is not None
    assert runtime.predict(sample).labels.shape == (1,)
    runtime.close()


def test_a_packed_plan_is_served_from_the_store(model: Any, tmp_path: Path) -> None:
    pack(compile_plan(model), tmp_path / "x.plan", Store(tmp_path / "store"))
    runtime = load(spec("x.plan", options={"store": str(tmp_path / "other")}), base_dir=tmp_path)
    assert isinstance(runtime, PlanRuntime)
    outputs = runtime.predict(ROWS)
    assert outputs.probabilities is not None
    assert outputs.probabilities.tolist() == model.predict_proba(DOCUMENTS).tolist()
    with pytest.raises(ModelError, match="unknown option disable"):
        load(spec("x.plan", options={"store": str(tmp_path / "other"), "disable": ["flatten"]}), base_dir=tmp_path)
    (tmp_path / "x.plan").write_bytes(b"nothing")
    with pytest.raises(PlanDamaged, match=r"model m@2: .*x\.plan is truncated or no packed plan"):
        load(spec("x.plan"), base_dir=tmp_path)


def test_heads_in_float32_are_told_of(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "streamserve"):
        runtime = load(spec("tests.runtimes.test_plan:IMPORTED", runtime="plan", precision="f32"))
    assert isinstance(runtime, PlanRuntime)
    assert runtime.plan.error is not None
    assert f"model m@2: {runtime.plan.error.words()}" in caplog.text
    exact = load(spec("tests.runtimes.test_plan:IMPORTED", runtime="plan")).predict(ROWS).probabilities
    found = runtime.predict(ROWS).probabilities
    assert exact is not None
    assert found is not None
    assert 0 < np.abs(found - exact).max() < 1e-5


def test_float32_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(ModelError, match=r'precision = "f32" is for the runtime plan.* runs as SklearnRuntime'):
        load(spec("tests.runtimes.test_plan:IMPORTED", precision="f32"))
    with pytest.raises(PlanError, match=r"model m@2: here: .*for linear heads over text, and this plan has none"):
        PlanRuntime(LogisticRegression().fit([[0.0], [1.0]], [0, 1]), spec("here", precision="f32"))
