"""LightGBM, XGBoost and ONNX inside of plans: the originals' answers, packed without any pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from streamserve.errors import ImportRefused, PlanDamaged
from streamserve.plan import Plan, compile_plan
from streamserve.plan.compile import laid_out
from streamserve.plan.foreign import ForeignModel, onnx_model
from streamserve.plan.graph import Builder, InputForm
from streamserve.plan.packing import load, pack, read_manifest
from streamserve.plan.sharing import together
from streamserve.plan.store import Store
from streamserve.plan.verify import verify
from tests.plan.tables import HOLED, NUMBERS, THREE, TWO, VALUES
from tests.plan.texts import DOCUMENTS, LABELS

pytestmark = pytest.mark.filterwarnings("ignore")
NUMBERED = np.unique(THREE, return_inverse=True)[1]
QUIET: dict[str, Any] = {"n_estimators": 6, "n_jobs": 1}
LIGHT: dict[str, Any] = {**QUIET, "verbose": -1, "min_child_samples": 3}

MODELS: dict[str, tuple[Any, Any, Any]] = {
    "lightgbm_two": (make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(**LIGHT)), NUMBERS, TWO),
    "lightgbm_words": (lightgbm.LGBMClassifier(**LIGHT), HOLED, THREE),
    "lightgbm_values": (lightgbm.LGBMRegressor(**LIGHT), HOLED, VALUES),
    "xgboost_two": (make_pipeline(StandardScaler(), xgboost.XGBClassifier(**QUIET)), NUMBERS, TWO),
    "xgboost_three": (xgboost.XGBClassifier(**QUIET), HOLED, NUMBERED),
    "xgboost_forest": (xgboost.XGBRFClassifier(**QUIET), NUMBERS, TWO),
    "xgboost_values": (xgboost.XGBRegressor(missing=0.0, **QUIET), np.round(NUMBERS), VALUES),
    "xgboost_linear": (xgboost.XGBRegressor(booster="gblinear", **QUIET), NUMBERS, VALUES),
    "voting": (
        VotingClassifier(
            [("a", make_pipeline(StandardScaler(), LogisticRegression())), ("b", xgboost.XGBClassifier(**QUIET))],
            voting="soft",
        ), NUMBERS, TWO,
    ),
    "stacking": (
        StackingClassifier(
            [("a", lightgbm.LGBMClassifier(**LIGHT)), ("b", xgboost.XGBClassifier(**QUIET))], LogisticRegression(), cv=2
        ), NUMBERS, TWO,
    ),
    "text": (make_pipeline(TfidfVectorizer(), lightgbm.LGBMClassifier(**LIGHT)), DOCUMENTS, LABELS),
    "text_xgboost": (make_pipeline(TfidfVectorizer(), xgboost.XGBClassifier(**QUIET)), DOCUMENTS, LABELS),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_plan_answers_as_the_original_and_holds_no_pickle(name: str, tmp_path: Path) -> None:
    model, rows, labels = MODELS[name]
    model.fit(rows, labels)
    plan = compile_plan(model, rows=rows)
    assert plan.black_boxes
    manifest = pack(plan, tmp_path / "x.plan", Store(tmp_path / "one"))
    assert {about["form"] for about in manifest["opaque"].values()} <= {"lightgbm", "xgboost"}
    found = load(tmp_path / "x.plan", Store(tmp_path / "two"))
    assert found.digest == plan.digest
    assert verify(found, model, rows) == len(rows)
    for output in plan.outputs:
        assert len(getattr(found, output)(rows[:0])) == 0


def test_probabilities_and_labels_are_one_run() -> None:
    model, rows, labels = MODELS["lightgbm_words"]
    plan = compile_plan(model.fit(rows, labels))
    assert [node.op for node in plan.graph.nodes].count("opaque") == 1
    assert plan.classes is not None
    assert plan.classes.tolist() == ["a", "b", "c"]
    assert "LGBMClassifier runs in its own library, kept as lightgbm" in next(iter(plan.black_boxes.values()))


@pytest.mark.slow
def test_the_best_round_of_early_stopping_is_kept(tmp_path: Path) -> None:
    light = lightgbm.LGBMClassifier(n_estimators=60, verbose=-1, n_jobs=1)
    light.fit(NUMBERS, TWO, eval_set=[(NUMBERS, 1 - TWO)], callbacks=[lightgbm.early_stopping(2, verbose=False)])
    extreme = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=2, n_jobs=1)
    extreme.fit(NUMBERS, TWO, eval_set=[(NUMBERS, 1 - TWO)], verbose=False)
    for model in (light, extreme):
        pack(compile_plan(model, rows=NUMBERS), tmp_path / "x.plan", Store(tmp_path))
        assert verify(load(tmp_path / "x.plan", Store(tmp_path)), model, NUMBERS)


def test_equal_boosters_are_one_stage() -> None:
    model = lightgbm.LGBMClassifier(**LIGHT).fit(NUMBERS, TWO)
    twice = VotingClassifier([("a", model), ("b", model)], voting="soft")
    twice.fit(NUMBERS, TWO)
    assert [node.op for node in compile_plan(twice).graph.nodes].count("opaque") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (xgboost.XGBClassifier(objective="multi:softmax", **QUIET), "multi:softmax"),
        (xgboost.XGBClassifier(objective=lambda true, said: (said - true, said * 0 + 1), **QUIET), "is a function"),
        (lightgbm.LGBMClassifier(objective=lambda true, said: (said - true, said * 0 + 1), **LIGHT), "is a function"),
    ],
)
def test_what_its_own_format_does_not_say_stays_an_object(model: Any, why: str) -> None:
    plan = compile_plan(model.fit(NUMBERS, NUMBERED if "softmax" in why else TWO), rows=NUMBERS)
    assert why in next(iter(plan.black_boxes.values()))
    assert not any(isinstance(node.opaque, ForeignModel) for node in plan.graph.nodes)


@pytest.fixture(scope="module")
def onnx_bytes() -> bytes:
    from skl2onnx import to_onnx

    model = LogisticRegression().fit(NUMBERS, TWO)
    return to_onnx(model, NUMBERS[:1].astype(np.float32), options={"zipmap": False}).SerializeToString()


def built(data: bytes) -> Plan:
    """A scaler and an ONNX classifier, written down without scikit-learn."""
    builder = Builder(InputForm(kind="columns", columns=NUMBERS.shape[1]))
    table = builder.add("floats", [builder.source], params={"allow_nan": False})
    scaled = builder.add("divide", [table], constants={"by": np.full(NUMBERS.shape[1], 2.0)})
    box = onnx_model(data, classes=["no", "yes"])
    chances = builder.black_box(box, "predict_proba", [scaled], origin="onnx")
    labels = builder.add("choose", [chances], params={"classes": ("no", "yes"), "as_objects": False})
    return laid_out(builder.graph({"predict": labels, "predict_proba": chances}))


def test_an_onnx_graph_is_a_stage_of_a_built_plan(onnx_bytes: bytes, tmp_path: Path) -> None:
    import onnxruntime

    plan = built(onnx_bytes)
    session = onnxruntime.InferenceSession(onnx_bytes, providers=["CPUExecutionProvider"])
    labels, chances = session.run(None, {session.get_inputs()[0].name: (NUMBERS / 2.0).astype(np.float32)})
    pack(plan, tmp_path / "x.plan", Store(tmp_path / "one"))
    found = load(tmp_path / "x.plan", Store(tmp_path / "two"))
    for each in (plan, found):
        assert each.predict_proba(NUMBERS).tolist() == chances.tolist()
        assert each.predict(NUMBERS).tolist() == np.array(["no", "yes"])[labels].tolist()
        assert each.black_boxes == {"onnx": "onnx as given"}
    assert {about["form"] for about in read_manifest(tmp_path / "x.plan")["opaque"].values()} == {"onnx"}
    assert together({"a": plan, "b": found}) == []


def test_features_of_an_onnx_graph(onnx_bytes: bytes) -> None:
    assert onnx_model(onnx_bytes).transform(NUMBERS[:3]).shape == (3,)
    assert onnx_model(onnx_bytes).predict(NUMBERS[:3]).shape == (3,)


def test_bytes_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(PlanDamaged, match="onnx: its bytes are no onnx model"):
        onnx_model(b"nothing")
    for form in ("lightgbm", "xgboost"):
        about = {"version": "1.0", "classes_count": 0, "best_iteration": 0, "missing": None, "trees": True, "rounds": 0}
        with pytest.raises(PlanDamaged, match=f"its bytes are no {form} model"):
            ForeignModel(form=form, data=b"nothing", about=about).open()


def test_an_older_library_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Pipeline([("boosted", lightgbm.LGBMClassifier(**LIGHT))]).fit(NUMBERS, TWO)
    pack(compile_plan(model), tmp_path / "x.plan", Store(tmp_path))
    monkeypatch.setattr(lightgbm, "__version__", "4.0.0")
    with pytest.raises(
        ImportRefused, match=r"boosted: LGBMClassifier was made with lightgbm 4\.\d+\.\d+, here is 4\.0\.0"
    ):
        load(tmp_path / "x.plan", Store(tmp_path))
