"""Heads in float32: what is narrowed, what it is off by, what float64 keeps, and where it has no meaning."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from streamserve.errors import PlanDamaged, PlanError
from streamserve.plan import Plan, compile_plan
from streamserve.plan.compile import laid_out
from streamserve.plan.costs import chosen
from streamserve.plan.importers import import_fitted
from streamserve.plan.materialised import SubResults, shared_keys
from streamserve.plan.operators import evaluate
from streamserve.plan.packing import load, pack, read_manifest
from streamserve.plan.precision import differing, narrowed, precision_of
from streamserve.plan.sharing import Group
from streamserve.plan.store import Store
from tests.effort import examples
from tests.plan.tables import NUMBERS, TWO
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, batches, fitted

pytestmark = pytest.mark.filterwarnings("ignore")


def planned(name: str, head: Any, labels: Any = LABELS, **more: Any) -> Plan:
    return laid_out(import_fitted(fitted(clone(VECTORISERS[name]), head, labels)).graph, **more)


def narrow(plan: Plan) -> Plan:
    return narrowed(plan)[0]


# Made where a test asks for them: every process of tests imports this module.


@cache
def wide() -> Plan:
    return planned("union", LogisticRegression())


@cache
def narrow_ones() -> dict[str, Plan]:
    three = planned("union", SGDClassifier(random_state=0), list("abcabcab"))
    return {"two": narrow(wide()), "three": narrow(three), "value": narrow(planned("word", Ridge()))}


@cache
def unfused() -> Plan:
    return narrow(planned("union", LogisticRegression(), disabled=["fuse-score"]))


@cache
def group() -> Group:
    return Group({**narrow_ones(), "wide": wide(), "more": narrow(planned("union", LogisticRegression(C=3)))})


@given(rows=batches)
@settings(max_examples=examples(25))
def test_kernels_round_as_they_are_meant_to(rows: list[str]) -> None:
    for plan in (*narrow_ones().values(), unfused()):
        meant = evaluate(plan.graph, rows)
        for output in plan.outputs:
            assert plan.run(rows, (output,)).values[output].tolist() == meant[output].tolist()


def test_every_variant_has_the_same_bits() -> None:
    for names in (("fused",) * 3, ("matrix-then-dot",) * 3):
        plan = narrow_ones()["three"]
        scores = {i: names for i, node in enumerate(plan.graph.nodes) if node.op == "score"}
        layout = type(plan.layout)(plan.graph, {**plan.layout.choice, **scores})
        found = layout.run(DOCUMENTS, plan.outputs).values
        assert all(found[name].tolist() == plan.run(DOCUMENTS, (name,)).values[name].tolist() for name in found)


def test_a_score_is_a_chain_of_float32_additions() -> None:
    model = fitted(clone(VECTORISERS["union"]), LogisticRegression(), LABELS)
    features, weights = model[:-1].transform(DOCUMENTS), model[-1].coef_[0].astype(np.float32)
    expected = []
    for row in features:
        total = np.float32(0)
        for place, value in zip(row.indices, row.data, strict=True):
            total += np.float32(value) * weights[place]
        expected.append(float(total) + model[-1].intercept_[0])
    assert narrow_ones()["two"].decision_function(DOCUMENTS).tolist() == expected


@given(rows=batches)
@settings(max_examples=examples(25))
def test_together_as_alone_and_beside_float64(rows: list[str]) -> None:
    found = group().run(rows, {name: plan.outputs for name, plan in group().plans.items()})
    for name, plan in group().plans.items():
        for output in plan.outputs:
            assert found[name].values[output].tolist() == plan.run(rows, (output,)).values[output].tolist()


def test_heads_of_one_precision_are_one_pass() -> None:
    blocks = [node.array("weights") for node in group().graph.nodes if node.op == "score"]
    assert {(block.dtype.str, block.shape[1]) for block in blocks} == {("<f4", 5), ("<f4", 1), ("<f8", 1)}


def test_kept_features_serve_both_precisions() -> None:
    broad, plan = planned("union", LogisticRegression()), narrow(planned("union", LogisticRegression()))
    shared = shared_keys([broad.graph, plan.graph])
    assert shared
    cache = SubResults(1 << 20, looks_per_row=1)
    expected = {one: one.decision_function(DOCUMENTS).tolist() for one in (broad, plan)}
    for one in (broad, plan):
        one.layout.materialise(cache, shared)
    for _ in range(3):
        assert {one: one.decision_function(DOCUMENTS).tolist() for one in (broad, plan)} == expected
    assert cache.figures().hits


def test_what_it_is_off_by_is_measured() -> None:
    plan, error = narrowed(wide(), DOCUMENTS)
    off = np.abs(plan.decision_function(DOCUMENTS) - wide().decision_function(DOCUMENTS))
    assert 0 < error.absolute == off.max() < 1e-5
    assert error.relative == (off / np.abs(wide().decision_function(DOCUMENTS))).max()
    assert (error.rows, error.output, error.labels_changed) == (len(DOCUMENTS), "decision_function", 0)
    assert plan.error is error
    assert (precision_of(plan), precision_of(wide())) == ("f32", "f64")


def test_labels_that_change_are_counted() -> None:
    model = fitted(clone(VECTORISERS["word"]), LogisticRegression(), LABELS)
    scores = model.decision_function(DOCUMENTS)
    model[-1].intercept_ = model[-1].intercept_ - scores[0]  # the first document stands on the border
    plan = laid_out(import_fitted(model).graph)
    other, error = narrowed(plan, DOCUMENTS)
    changed = [a != b for a, b in zip(plan.predict(DOCUMENTS), other.predict(DOCUMENTS), strict=True)]
    assert error.labels_changed == sum(changed) / len(DOCUMENTS)


def test_a_value_has_no_labels() -> None:
    error = narrow_ones()["value"].error
    assert error is not None
    assert error.output == "predict"
    assert "labels" not in error.words()


def test_where_it_has_no_meaning() -> None:
    forest = laid_out(import_fitted(RandomForestClassifier(3, random_state=0).fit(NUMBERS, TWO)).graph)
    with pytest.raises(PlanError, match="is for linear heads over text, and this plan has none"):
        narrowed(forest)
    model = make_pipeline(clone(VECTORISERS["word"]), FunctionTransformer(abs), LogisticRegression())
    boxed = laid_out(import_fitted(model.fit(DOCUMENTS, LABELS)).graph)
    assert boxed.black_boxes
    with pytest.raises(PlanError, match="has no meaning for a black box"):
        narrowed(boxed)
    with pytest.raises(PlanError, match="float32 already"):
        narrowed(narrow_ones()["two"])
    model = fitted(clone(VECTORISERS["word"]), LogisticRegression(), LABELS)
    model[-1].coef_ = model[-1].coef_ * 1e40
    with pytest.raises(PlanError, match="beyond the range of float32"):
        narrowed(laid_out(import_fitted(model).graph))


def test_packed_it_says_so_and_float64_is_packed_as_before(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    plan = chosen(narrow(compile_plan(fitted(clone(VECTORISERS["union"]), LogisticRegression(), LABELS))))
    pack(plan, tmp_path / "narrow.plan", store)
    again = load(tmp_path / "narrow.plan", store)
    assert again.error == plan.error
    assert again.digest == plan.digest
    assert differing(again, plan, DOCUMENTS) == ""
    assert differing(again, narrow_ones()["three"], DOCUMENTS) != ""
    pack(wide(), tmp_path / "wide.plan", store)
    assert [read_manifest(tmp_path / f"{name}.plan")["format"] for name in ("narrow", "wide")] == [2, 1]
    assert load(tmp_path / "wide.plan", store).error is None


def test_code_that_knows_only_float64_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(narrow_ones()["two"], tmp_path / "narrow.plan", Store(tmp_path / "store"))
    monkeypatch.setattr("streamserve.plan.packing.FORMAT", 1)
    with pytest.raises(PlanDamaged, match="has format 2"):
        load(tmp_path / "narrow.plan", Store(tmp_path / "store"))
