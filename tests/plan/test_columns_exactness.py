"""Plans over columns: trees to the bit, dense products to 1e-12, labels always, and the same rows refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from streamserve.errors import PlanError
from streamserve.plan import Plan
from streamserve.plan.compile import compile_plan, laid_out
from streamserve.plan.graph import Node
from streamserve.plan.importers import import_fitted
from streamserve.plan.operators import RowsRefused
from streamserve.plan.physical import SIZES, Layout, variants_of
from streamserve.plan.sampling import sample_rows
from streamserve.plan.verify import compare, is_exact
from tests.effort import examples
from tests.plan.tables import (
    BOOSTED,
    COLUMNS,
    EMPTY,
    FRAME,
    HOLED,
    IMPUTERS,
    LINEAR,
    NUMBERS,
    SCALERS,
    THREE,
    TREES,
    TWO,
    encoded,
    mixed,
    scaled,
)

pytestmark = pytest.mark.filterwarnings("ignore")
#: Any float32 or float64 at all.
numbers = arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.just(COLUMNS)),
    elements=st.one_of(st.floats(width=64), st.floats(width=32), st.sampled_from(np.ravel(NUMBERS).tolist())),
)


def planned(model: Any, **options: Any) -> Plan:
    imported = import_fitted(model)
    assert not imported.black_boxes
    return laid_out(imported.graph, **options)


def agrees(plan: Plan, model: Any, rows: Any = None) -> None:
    found = compare(plan, model, sample_rows(plan.imported or plan.graph, rows=60) if rows is None else rows)
    assert found is None, found.words()


@pytest.mark.slow
@pytest.mark.parametrize("scaler", SCALERS)
def test_every_scaler(scaler: str) -> None:
    for model, labels in (LINEAR["softmax"], TREES["forest"]):
        fitted = scaled(scaler, model, labels)
        agrees(planned(fitted), fitted)


@pytest.mark.parametrize("head", LINEAR)
def test_every_linear_head_over_columns(head: str) -> None:
    fitted = scaled("standard", *LINEAR[head])
    plan = planned(fitted)
    assert not is_exact(plan.graph)
    agrees(plan, fitted)


@pytest.mark.parametrize("imputer", IMPUTERS)
@pytest.mark.parametrize("table", ["holed", "empty"])
def test_every_imputer(imputer: str, table: str) -> None:
    fitted = make_pipeline(clone(IMPUTERS[imputer]), DecisionTreeClassifier(random_state=0))
    fitted.fit(HOLED if table == "holed" else EMPTY, THREE)
    agrees(planned(fitted), fitted)


@pytest.mark.parametrize("data", ["numbers", "holed"])
@pytest.mark.parametrize("name", TREES)
def test_every_tree_and_forest_to_the_bit(name: str, data: str) -> None:
    model, labels = TREES[name]
    fitted = clone(model).fit(NUMBERS if data == "numbers" else HOLED, labels)
    plan = planned(fitted)
    assert is_exact(plan.graph)
    agrees(plan, fitted)


@pytest.mark.parametrize("name", BOOSTED)
def test_boosting_to_the_bit(name: str) -> None:
    model, labels = BOOSTED[name]
    fitted = clone(model).fit(NUMBERS, labels)
    plan = planned(fitted)
    assert is_exact(plan.graph)
    agrees(plan, fitted)


@pytest.fixture(scope="module", params=["tree", "forest", "forest_values"])
def forest(request: pytest.FixtureRequest) -> tuple[Plan, Any]:
    model, labels = TREES[request.param]
    fitted = clone(model).set_params(**({"n_jobs": None} if "forest" in request.param else {})).fit(HOLED, labels)
    return planned(fitted), fitted


@given(rows=numbers)
@settings(max_examples=examples(80))
def test_any_numbers_through_trees(forest: tuple[Plan, Any], rows: Any) -> None:
    agrees(*forest, rows)


@pytest.fixture(scope="module")
def logistic() -> tuple[Plan, Any]:
    fitted = scaled("two", LogisticRegression(), THREE)
    return planned(fitted), fitted


@given(rows=numbers)
@settings(max_examples=examples(60))
def test_any_numbers_through_scalers_and_a_model(logistic: tuple[Plan, Any], rows: Any) -> None:
    agrees(*logistic, rows)


@pytest.mark.parametrize("variant", ["row-by-row", "tree-by-tree"])
def test_both_ways_through_a_forest(forest: tuple[Plan, Any], variant: str) -> None:
    plan, fitted = forest
    stage = next(i for i, node in enumerate(plan.graph.nodes) if node.op == "forest")
    layout = Layout(plan.graph, {stage: (variant,) * len(SIZES)})
    rows = np.tile(HOLED, (6, 1))
    assert layout.run(rows, ("predict",)).values["predict"].tolist() == fitted.predict(rows).tolist()


@given(
    table=arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(1, 3)), elements=st.floats()),
    allow_nan=st.booleans(),
)
def test_both_ways_to_float32_give_the_same_bits_and_refuse_the_same_rows(table: Any, allow_nan: bool) -> None:
    node = Node(op="singles", inputs=(0,), params={"allow_nan": allow_nan})
    said = []
    for variant in variants_of(node):
        try:
            said.append(variant.make(node)(table).tobytes())
        except RowsRefused as refusal:
            said.append((refusal.rows.tolist(), refusal.words))
    assert len(said) == 2
    assert said[0] == said[1]


@pytest.mark.parametrize("single", [True, False])
def test_float32_stays_float32(single: bool) -> None:
    fitted = scaled("two", RandomForestClassifier(5, random_state=0), TWO)
    rows = NUMBERS.astype(np.float32)
    agrees(planned(fitted), fitted, rows[:1] if single else rows)


@pytest.mark.slow
@pytest.mark.parametrize("unknown", ["error", "ignore", "infrequent_if_exist", "warn"])
@pytest.mark.parametrize("drop", [None, "first", "if_binary"])
@pytest.mark.parametrize("least", [None, 0.2])
def test_one_hot_in_every_setting(unknown: str, drop: str | None, least: float | None) -> None:
    fitted = encoded(handle_unknown=unknown, drop=drop, min_frequency=least)
    agrees(planned(fitted), fitted)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.0, 1.0])
@pytest.mark.parametrize("model", [LogisticRegression(), RandomForestClassifier(5, random_state=0)])
def test_text_numbers_and_categories_side_by_side(model: Any, threshold: float) -> None:
    fitted = mixed(clone(model), sparse_threshold=threshold)
    agrees(planned(fitted), fitted)


def test_ordinal_codes_of_missing_values() -> None:
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=-5)
    fitted = make_pipeline(encoder, DecisionTreeClassifier(random_state=0)).fit(np.round(HOLED), THREE)
    agrees(planned(fitted), fitted)


def test_trees_over_text() -> None:
    texts = FRAME["t"].tolist()
    for scaler in (MaxAbsScaler(), StandardScaler(with_mean=False)):
        fitted = make_pipeline(TfidfVectorizer(), scaler, RandomForestClassifier(4, random_state=0)).fit(texts, TWO)
        agrees(planned(fitted), fitted)


def test_a_frame_is_read_by_name_and_wrong_columns_are_told() -> None:
    fitted = encoded(handle_unknown="ignore")
    plan = planned(fitted)
    frame = FRAME.drop(columns="t")
    expected = fitted.predict_proba(frame)
    shuffled = frame[["o", "m", "d", "c", "n"]].assign(more=1)
    assert np.abs(plan.predict_proba(shuffled) - expected).max() < 1e-12
    with pytest.raises(PlanError, match=r"no column m, d in the frame"):
        plan.predict(frame.drop(columns=["m", "d"]))
    with pytest.raises(PlanError, match=r"a batch of shape \(120, 4\): \[rows, 6\] is needed"):
        plan.predict(frame.to_numpy()[:, :4])
    with pytest.raises(PlanError, match="a dense array is needed, this is a sparse matrix"):
        plan.predict(sparse.csr_matrix(NUMBERS))
    unnamed = planned(scaled("standard", LogisticRegression(), TWO))
    with pytest.raises(PlanError, match="was fitted on columns without names"):
        unnamed.predict(frame)


def test_rows_that_cannot_be_used_are_refused_alone() -> None:
    plan = planned(scaled("standard", LogisticRegression(), TWO))
    rows = NUMBERS[:4].copy()
    rows[1, 2], rows[3, 0] = np.nan, np.inf
    answers = plan.run(rows)
    assert answers.refused == dict.fromkeys((1, 3), "a value is infinite, or NaN where none is allowed")
    words = np.array([[1, 2, 3, 4, "five"], [1, 2, 3, 4, 5]], dtype=object)
    assert plan.run(words).refused == {0: "a value is no number"}
    assert plan.run(np.full((2, COLUMNS), np.nan)).values["predict"].shape == (2,)
    assert plan.run(np.empty((0, COLUMNS))).values["predict"].shape == (0,)


def test_a_rule_makes_one_pass_of_scalers_and_keeps_the_meaning() -> None:
    fitted = scaled("two", RandomForestClassifier(3, random_state=0), TWO)
    plan = planned(fitted)
    assert [node.op for node in plan.graph.nodes][:3] == ["source", "chain", "singles"]
    assert "skip-checks" not in {one.rule.name for one in plan.fired}
    agrees(planned(fitted, disabled=["fuse-chain"]), fitted)


def test_what_was_checked_is_not_checked_again() -> None:
    twice = make_pipeline(
        ColumnTransformer([("a", "passthrough", [0, 1])]), StandardScaler(with_std=False, with_mean=False)
    )
    fitted = make_pipeline(twice, MaxAbsScaler(), DecisionTreeClassifier(random_state=0)).fit(NUMBERS, TWO)
    fired = {one.rule.name for one in planned(fitted).fired}
    assert "skip-checks" in fired
    agrees(planned(fitted), fitted)
    agrees(planned(fitted, disabled=["skip-checks"]), fitted)


def test_the_comparison_runs_on_one_thread() -> None:
    """OpenMP's threads wait busily: on a loaded machine histogram-based boosting took a hundred times as long."""
    fitted = DecisionTreeClassifier(random_state=0).fit(NUMBERS, TWO)
    plan, seen, predict = planned(fitted), set[int](), fitted.predict

    def watched(rows: Any) -> Any:
        seen.update(int(library["num_threads"]) for library in threadpoolctl.threadpool_info())
        return predict(rows)

    fitted.predict = watched
    with threadpoolctl.threadpool_limits(2):
        agrees(plan, fitted, NUMBERS[:2])
    assert seen == {1}


def test_registration_compares() -> None:
    assert compile_plan(scaled("min_max", LogisticRegression(), THREE)).outputs


def test_a_text_column_that_holds_no_text_is_refused_alone() -> None:
    plan = planned(mixed(LogisticRegression()))
    frame = FRAME.drop(columns="m").astype(object)
    frame.loc[3, "t"] = None
    rows = frame.to_numpy(dtype=object)
    rows[3, 4] = None
    assert plan.run(rows).refused == {3: "a text is needed, this is NoneType"}


@pytest.mark.slow
def test_one_hot_that_becomes_dense_is_made_dense() -> None:
    fitted = encoded(handle_unknown="ignore")
    plan, without = planned(fitted), planned(fitted, disabled=["dense-encode"])
    assert "dense_one_hot" in {node.op for node in plan.graph.nodes}
    assert "one_hot" in {node.op for node in without.graph.nodes}
    agrees(plan, fitted)
    agrees(without, fitted)
