"""Several plans as one: each answers as alone, and what they share runs once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler

from streamserve.plan import Plan
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.operators import evaluate
from streamserve.plan.sharing import Group, _united
from tests.effort import examples
from tests.plan.tables import NUMBERS, THREE, TWO, VALUES
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, batches, fitted

pytestmark = pytest.mark.filterwarnings("ignore")


def planned(model: Any) -> Plan:
    return laid_out(import_fitted(model).graph)


def text_plans(count: int) -> dict[str, Plan]:
    plans = {}
    for i in range(count):
        labels = np.roll(LABELS, i)
        plans[f"m{i}"] = planned(fitted(clone(VECTORISERS["union"]), LogisticRegression(C=1 + i), labels))
    plans["three"] = planned(fitted(clone(VECTORISERS["union"]), SGDClassifier(random_state=0), list("abcabcab")))
    plans["value"] = planned(fitted(clone(VECTORISERS["word"]), Ridge(), LABELS))
    return plans


def column_plans() -> dict[str, Plan]:
    plans = {}
    for i in range(5):
        rows = NUMBERS[i * 20 :]
        plans[f"m{i}"] = planned(make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, TWO[i * 20 :]))
    plans["three"] = planned(make_pipeline(StandardScaler(), LogisticRegression()).fit(NUMBERS, THREE))
    plans["value"] = planned(make_pipeline(StandardScaler(), Ridge()).fit(NUMBERS, VALUES))
    plans["forest"] = planned(RandomForestClassifier(4, random_state=0).fit(NUMBERS, TWO))
    plans["bayes"] = planned(GaussianNB().fit(NUMBERS, TWO))
    return plans


@pytest.fixture(scope="module")
def texts() -> Group:
    return Group(text_plans(6))


@pytest.fixture(scope="module")
def columns() -> Group:
    return Group(column_plans())


def asked(group: Group) -> dict[str, tuple[str, ...]]:
    return {model: plan.outputs for model, plan in group.plans.items()}


@given(rows=batches)
@settings(max_examples=examples(25))
def test_texts_to_the_bit(texts: Group, rows: list[str]) -> None:
    found = texts.run(rows, asked(texts))
    for model, plan in texts.plans.items():
        for output in plan.outputs:
            expected = plan.run(rows, (output,)).values[output]
            assert found[model].values[output].tolist() == expected.tolist()
            assert found[model].values[output].shape == expected.shape


def test_columns_to_their_contract(columns: Group) -> None:
    for rows in (NUMBERS, NUMBERS[:1], NUMBERS.astype(np.float32), NUMBERS[:0]):
        found = columns.run(rows, asked(columns))
        for model, plan in columns.plans.items():
            assert found[model].values["predict"].tolist() == plan.predict(rows).tolist()
            if "predict_proba" in plan.outputs:
                assert np.abs(found[model].values["predict_proba"] - plan.predict_proba(rows)).max(initial=0) <= 1e-12


def test_heads_over_one_vocabulary_are_one_pass(texts: Group) -> None:
    scores = [node for node in texts.graph.nodes if node.op == "score"]
    assert [node.array("weights").shape[1] for node in scores].count(9) == 3  # 6 models, and one of three classes
    assert len(scores) == 4
    assert sum(node.op == "logistics" for node in texts.graph.nodes) <= 1


def test_heads_behind_scalers_of_their_own_are_one_pass(columns: Group) -> None:
    assert [len(node.array("weights")) for node in columns.graph.nodes if node.op == "chained_heads"] == [5]


@pytest.mark.parametrize("kind", ["texts", "columns"])
def test_the_rules_keep_the_meaning(kind: str, texts: Group, columns: Group) -> None:
    group, rows = (texts, DOCUMENTS) if kind == "texts" else (columns, NUMBERS)
    before, after = evaluate(_united(group.plans), rows), evaluate(group.graph, rows)
    for name, expected in before.items():
        if expected.dtype.kind == "f":
            assert np.abs(after[name] - expected).max() <= (0 if kind == "texts" else 1e-12)
        else:
            assert after[name].tolist() == expected.tolist()


def test_a_row_that_one_refuses_is_answered_by_the_others(columns: Group) -> None:
    rows = NUMBERS[:3].copy()
    rows[1, 0] = np.nan
    found = columns.run(rows, {"forest": ("predict",), "m0": ("predict",)})
    assert found["forest"].refused == {}
    assert list(found["m0"].refused) == [1]


def test_only_those_asked_run(texts: Group) -> None:
    assert set(texts.run(DOCUMENTS, {"m1": ("predict",), "value": ("predict",)})) == {"m1", "value"}


def test_heads_whose_last_block_is_too_large_to_be_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    features = FeatureUnion(
        [("few", CountVectorizer(vocabulary=["a", "good"])), ("many", CountVectorizer(ngram_range=(1, 2)))]
    )
    model = make_pipeline(features, LogisticRegression()).fit(DOCUMENTS, LABELS)
    plans = {}
    for i in range(3):
        model[-1].coef_ = np.random.default_rng(i).normal(size=model[-1].coef_.shape)
        plans[f"m{i}"] = planned(model)
    monkeypatch.setattr("streamserve.plan.rules.merge._MOST_BLOCK_BYTES", 3 * 2 * 8)
    group = Group(plans)
    widths = [node.array("weights").shape[1] for node in group.graph.nodes if node.op == "score"]
    assert sorted(widths) == [1, 1, 1, 3]
    found = group.run(DOCUMENTS, asked(group))
    for name, plan in plans.items():
        alone = plan.run(DOCUMENTS, plan.outputs)
        for output in plan.outputs:
            assert found[name].values[output].tolist() == alone.values[output].tolist()
