"""Text plans answer bit for bit as scikit-learn does, for any text at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.svm import LinearSVC

from streamserve.plan import Plan, compile_plan
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.operators import evaluate
from tests.effort import examples
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, batches, fitted

from hypothesis import settings  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore")
THREE = ["good", "bad", "so-so", "bad", "good", "good", "so-so", "bad"]
HEADS: dict[str, Any] = {
    "logistic": (LogisticRegression(), LABELS),
    "softmax": (LogisticRegression(), THREE),
    "svc": (LinearSVC(), LABELS),
    "svc_many": (LinearSVC(), THREE),
    "huber": (SGDClassifier(loss="modified_huber", random_state=0), LABELS),
    "huber_many": (SGDClassifier(loss="modified_huber", random_state=0), THREE),
    "sgd_log_many": (SGDClassifier(loss="log_loss", random_state=0), THREE),
    "sgd_hinge": (SGDClassifier(random_state=0), LABELS),
    "perceptron": (Perceptron(), THREE),
    "ridge_classifier": (RidgeClassifier(), THREE),
    "ridge": (Ridge(), [0.5, 1, -1, 2, 0, 3, 1, 2]),
    "ridge_two_values": (Ridge(), [[0.5, 1.0]] * 4 + [[2.0, -1.0]] * 4),
    "regression": (LinearRegression(), [0.5, 1, -1, 2, 0, 3, 1, 2]),
    "sgd_regressor": (SGDRegressor(random_state=0), [0.5, 1, -1, 2, 0, 3, 1, 2]),
}


def equal(plan: Plan, model: Any, rows: list[str]) -> None:
    if not rows:
        assert len(plan.predict(rows)) == 0
        return
    for output in plan.outputs:
        expected = np.asarray(getattr(model, output)(rows))
        found = getattr(plan, output)(rows)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tolist() == expected.tolist()


@pytest.fixture(scope="module", params=VECTORISERS)
def vectorised(request: pytest.FixtureRequest) -> tuple[Plan, Any]:
    model = fitted(clone(VECTORISERS[request.param]))
    return compile_plan(model), model


@pytest.mark.slow
@given(rows=batches)
@settings(max_examples=examples(60))
def test_any_text_through_any_vectoriser(vectorised: tuple[Plan, Any], rows: list[str]) -> None:
    plan, model = vectorised
    equal(plan, model, rows)


@given(rows=batches)
@settings(max_examples=examples(30))
def test_the_operators_mean_the_same_before_any_rule(vectorised: tuple[Plan, Any], rows: list[str]) -> None:
    plan, model = vectorised
    assert plan.imported is not None
    if rows:
        assert evaluate(plan.imported, rows)["decision_function"].tolist() == model.decision_function(rows).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_head(head: str) -> None:
    estimator, labels = HEADS[head]
    model = fitted(clone(VECTORISERS["union"]), clone(estimator), labels)
    plan = compile_plan(model)
    assert not plan.black_boxes
    equal(plan, model, DOCUMENTS)
    for row in DOCUMENTS:
        equal(plan, model, [row])


@pytest.mark.slow
def test_a_batch_of_ten_thousand() -> None:
    model = fitted(clone(VECTORISERS["union"]))
    plan = compile_plan(model)
    rows = [f"{DOCUMENTS[i % len(DOCUMENTS)]} {i}" for i in range(10_000)]
    equal(plan, model, rows)


@pytest.fixture(scope="module")
def several() -> list[tuple[Plan, Any]]:
    models = [fitted(clone(VECTORISERS[name])) for name in ("word", "char_wb", "two_steps", "pattern", "char")]
    return [(laid_out(import_fitted(model).graph), model) for model in models]


@pytest.mark.slow
@pytest.mark.parametrize("word", ["x" * 30_000, "ab " * 10_000, "é" * 9_000, " " * 30_000, "a" * 7, "a" * 8])
def test_huge_tokens_and_counts_beyond_any_table(several: list[tuple[Plan, Any]], word: str) -> None:
    for plan, model in several:
        equal(plan, model, [word, "the world", word + word])


def test_an_entry_with_spaces_is_never_split() -> None:
    """The token `hello world` and the two words `hello`, `world` are one entry of the vocabulary, as in a dict."""
    vectoriser = clone(VECTORISERS["pattern_spaces"]).set_params(ngram_range=(1, 3))
    model = fitted(vectoriser)
    equal(compile_plan(model), model, [*DOCUMENTS, "hello world", "hello  world", "hello the world hello"])


@given(st.lists(st.text(st.characters(exclude_categories=()), min_size=1, max_size=6), min_size=1, max_size=30))
@settings(max_examples=examples(60))
def test_any_vocabulary(words: list[str]) -> None:
    """Vocabularies of the user's own, whatever strings are in them."""
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    vectoriser = VECTORISERS["char"].__class__(analyzer="char", ngram_range=(1, 6), vocabulary=vocabulary)
    model = fitted(vectoriser)
    plan = laid_out(import_fitted(model).graph)
    equal(plan, model, ["".join(words), *words])


def test_rows_that_are_no_text_are_refused_alone() -> None:
    model = fitted(clone(VECTORISERS["word"]))
    plan = compile_plan(model)
    answers = plan.run(["hello world", None, "the world", 3.5, float("nan")], ("predict", "predict_proba"))
    assert sorted(answers.refused) == [1, 3, 4]
    assert answers.refused[1] == "a text is needed, this is NoneType"
    good = model.predict_proba(["hello world", "the world"])
    assert answers.values["predict_proba"][[0, 2]].tolist() == good.tolist()
