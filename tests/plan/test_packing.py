"""Packed plans: what comes out is what went in, or a refusal that says what is wrong with the file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import FunctionTransformer

from streamserve.errors import ImportRefused, PlanDamaged, StoreError
from streamserve.plan import Plan, compile_plan
from streamserve.plan.packing import FORMAT, keep, load, pack, read_manifest
from streamserve.plan.store import Store
from tests.plan.test_store import is_mapped
from tests.plan.texts import DOCUMENTS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model() -> Any:
    return fitted(clone(VECTORISERS["union"]), labels=["good", "bad"] * 4)


@pytest.fixture(scope="module")
def plan(model: Any) -> Plan:
    return compile_plan(model)


@pytest.fixture
def packed(plan: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "model.plan"
    pack(plan, path, Store(tmp_path / "one"))
    return path


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_a_packed_plan_is_the_plan(packed: Path, model: Any, plan: Plan, tmp_path: Path) -> None:
    elsewhere = Store(tmp_path / "two")
    found = load(packed, elsewhere)
    assert found.digest == plan.digest
    assert found.graph.keys == plan.graph.keys
    assert found.classes is not None
    assert found.classes.tolist() == ["bad", "good"]
    for output in found.outputs:
        assert getattr(found, output)(DOCUMENTS).tolist() == getattr(model, output)(DOCUMENTS).tolist()
    assert [holding.name for holding in elsewhere.holdings()] == ["model"]
    assert elsewhere.collect().objects == 0


def test_loading_maps_what_the_store_has(packed: Path, tmp_path: Path) -> None:
    found = load(packed, Store(tmp_path / "one"))
    assert all(is_mapped(constant.array) for constant in found.graph.constants())


def test_a_thin_plan_needs_the_store(plan: Plan, model: Any, tmp_path: Path) -> None:
    path = tmp_path / "thin.plan"
    pack(plan, path, Store(tmp_path / "one"), thin=True)
    assert path.stat().st_size < 20_000
    assert load(path, Store(tmp_path / "one")).predict(DOCUMENTS).tolist() == model.predict(DOCUMENTS).tolist()
    with pytest.raises(PlanDamaged, match="is thin, and this machine's store lacks its object"):
        load(path, Store(tmp_path / "two"))


def test_models_that_share_a_vocabulary_hold_it_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for strength in (0.5, 1.0, 2.0):
        keep(compile_plan(fitted(clone(VECTORISERS["word"]), LogisticRegression(C=strength))), store)
    holdings = store.holdings()
    assert len(holdings) == 3
    assert all(holding.unique_bytes < holding.bytes / 4 for holding in holdings)


def _set(name: str, value: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest[name] = value
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def _flip(members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.startswith("objects/"))
    members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])


def _cut_object(members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.startswith("objects/"))
    members[name] = members[name][:50]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("format", FORMAT + 1), rf"has format {FORMAT + 1}, this version of streamserve reads up to {FORMAT}"),
        (_set("versions", {}), "does not have the hash that it says: it was altered"),
        (_set("kind", "something"), "is no manifest of a plan"),
        (lambda members: members.update({"manifest.json": b"{"}), "its manifest is no JSON"),
        (lambda members: members.pop("manifest.json"), "it is no packed plan"),
        (_flip, "has another hash"),
        (_cut_object, "is no array"),
    ],
)
def test_what_is_wrong_with_a_file(packed: Path, tmp_path: Path, change: Any, words: str) -> None:
    store = Store(tmp_path / "two")
    with pytest.raises(PlanDamaged, match=words):
        load(rewritten(packed, change), store)
    assert store.object_bytes() == {}


@pytest.mark.parametrize("size", [0, 10, 1000, -30])
def test_a_truncated_file(packed: Path, tmp_path: Path, size: int) -> None:
    packed.write_bytes(packed.read_bytes()[:size])
    with pytest.raises(PlanDamaged, match="is truncated or no packed plan"):
        load(packed, Store(tmp_path / "two"))


def test_no_file(tmp_path: Path) -> None:
    for read in (lambda: load(tmp_path / "no.plan", Store(tmp_path)), lambda: read_manifest(tmp_path / "no.plan")):
        with pytest.raises(PlanDamaged, match=r"no file .*no\.plan"):
            read()


def test_a_place_that_cannot_be_written(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
        pack(plan, tmp_path / "none" / "x.plan", Store(tmp_path / "one"))
    assert not list(tmp_path.glob("*.part"))


def test_a_black_box_is_kept_as_skops(tmp_path: Path) -> None:
    model = fitted(clone(VECTORISERS["word"]), DummyClassifier(strategy="prior"))
    path = tmp_path / "box.plan"
    manifest = pack(compile_plan(model), path, Store(tmp_path / "one"))
    assert {about["form"] for about in manifest["opaque"].values()} == {"skops"}
    found = load(path, Store(tmp_path / "two"))
    assert found.predict_proba(DOCUMENTS).tolist() == model.predict_proba(DOCUMENTS).tolist()


def doubled(rows: Any) -> Any:
    return rows * 2


def test_a_pickled_black_box_is_kept_and_loaded_only_if_trusted(tmp_path: Path) -> None:
    model = fitted(clone(VECTORISERS["word"]))
    model.steps.insert(1, ("twice", FunctionTransformer(doubled, accept_sparse=True).fit(np.ones((1, 1)))))
    plan = compile_plan(model)
    path, store = tmp_path / "box.plan", Store(tmp_path / "one")
    with pytest.raises(ImportRefused, match=r"twice: this black box cannot be kept as \.skops .*doubled"):
        pack(plan, path, store)
    assert not path.exists()
    manifest = pack(plan, path, store, trust_pickle=True)
    assert {about["form"] for about in manifest["opaque"].values()} == {"joblib"}
    with pytest.raises(ImportRefused, match=r"twice: this black box is a pickle.*trust_pickle = true"):
        load(path, store)
    found = load(path, store, trust_pickle=True)
    assert found.predict(DOCUMENTS).tolist() == model.predict(DOCUMENTS).tolist()


def test_a_black_box_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(clone(VECTORISERS["word"]), DummyClassifier(strategy="prior"))
    path, store = tmp_path / "box.plan", Store(tmp_path / "one")
    pack(compile_plan(model), path, store)
    monkeypatch.setattr("sklearn.__version__", "2.3.0")
    with pytest.raises(ImportRefused, match=r"this black box was made by scikit-learn 1\.9\.\d+, here is 2\.3\.0"):
        load(path, store)
