"""What no plan can be made of is refused in words that say what to do; what differs is refused with both values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from streamserve.errors import ImportRefused, ModelError, PlanDiffers, PlanError
from streamserve.plan import compile_plan
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.kernels.stage import TextStage
from streamserve.plan.verify import compare, verify
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (LogisticRegression(), "this LogisticRegression is not fitted; fit it first"),
        (make_pipeline(TfidfVectorizer(), LogisticRegression()), "Pipeline.*is not fitted"),
        (LogisticRegression, "LogisticRegression is a class"),
        (len, "no estimator of scikit-learn"),
        (TfidfVectorizer().fit(DOCUMENTS), "cannot predict"),
    ],
)
def test_what_no_plan_can_be_made_of(estimator: Any, words: str) -> None:
    with pytest.raises(ImportRefused, match=words):
        compile_plan(estimator)


def test_a_step_that_is_not_fitted_is_named() -> None:
    model = fitted(TfidfVectorizer())
    model.steps[0] = ("words", TfidfVectorizer())
    with pytest.raises(ImportRefused, match="step words: this TfidfVectorizer is not fitted"):
        compile_plan(model)


def test_an_untested_version_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(TfidfVectorizer())
    monkeypatch.setattr(sklearn, "__version__", "0.24.2")
    with pytest.raises(ImportRefused, match=r"scikit-learn 0\.24\.2 is installed; plans were tested with 1\.9"):
        compile_plan(model)
    assert compile_plan(model, allow_untested=True).outputs


def test_classes_of_mixed_types_are_refused() -> None:
    model = fitted(TfidfVectorizer())
    model.steps[-1][1].classes_ = np.array([1, "one"], dtype=object)
    with pytest.raises(ImportRefused, match=r"logisticregression: its classes are of mixed types \(int, str\)"):
        compile_plan(model)


def test_all_of_it_is_an_error_of_a_model() -> None:
    assert issubclass(ImportRefused, PlanError)
    assert issubclass(PlanError, ModelError)


def upper(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(
    ("vectoriser", "why"),
    [
        (CountVectorizer(preprocessor=upper), "preprocessor is a function"),
        (CountVectorizer(tokenizer=str.split, token_pattern=None), "tokenizer is a function"),
        (CountVectorizer(analyzer=str.split), "analyzer is a function"),
        (CountVectorizer(strip_accents=upper), "strip_accents is a function"),
        (TfidfVectorizer(dtype=np.float32), "dtype = float32"),
    ],
)
def test_what_has_no_operators_stays_a_black_box_and_is_named(vectoriser: Any, why: str) -> None:
    model = fitted(vectoriser)
    plan = compile_plan(model)
    assert next(iter(plan.black_boxes)) == type(vectoriser).__name__.lower()
    assert why in next(iter(plan.black_boxes.values()))
    assert np.abs(plan.predict_proba(DOCUMENTS) - model.predict_proba(DOCUMENTS)).max() < 1e-12


def test_a_subclass_is_not_taken_for_its_parent() -> None:
    class Other(TfidfVectorizer):
        pass

    assert "Other" in next(iter(compile_plan(fitted(Other())).black_boxes.values()))


def test_an_unknown_model_is_a_black_box_behind_opened_text() -> None:
    model = fitted(TfidfVectorizer(), BaggingClassifier(LogisticRegression(), n_estimators=2, random_state=0))
    plan = compile_plan(model)
    assert plan.black_boxes == {"baggingclassifier": "no importer for BaggingClassifier"}
    assert "features" in {node.op for node in plan.graph.nodes}
    assert plan.predict(DOCUMENTS).tolist() == model.predict(DOCUMENTS).tolist()


def test_a_plan_that_differs_is_refused_with_row_operator_and_both_values() -> None:
    model = fitted(clone(VECTORISERS["word"]))
    plan = laid_out(import_fitted(model).graph)
    model.steps[-1][1].intercept_ = model.steps[-1][1].intercept_ + 1e-3
    found = compare(plan, model, DOCUMENTS)
    assert found is not None
    assert (found.row, found.output) == (0, "decision_function")
    assert found.operator == "choose (logisticregression)"
    assert found.original == repr(model.decision_function(DOCUMENTS)[0])
    assert found.plan == repr(plan.decision_function(DOCUMENTS)[0])
    with pytest.raises(PlanDiffers, match=r"row 0, decision_function: the original says .*, the plan .*; first"):
        verify(plan, model)


def test_the_step_that_differs_is_named() -> None:
    model = fitted(clone(VECTORISERS["word"]))
    plan = laid_out(import_fitted(model).graph)
    model.steps[0][1].idf_ = model.steps[0][1].idf_ * 2
    model.steps[0][1]._tfidf.norm = None
    found = compare(plan, model, DOCUMENTS)
    assert found is not None
    assert found.operator == "vectorise (tfidfvectorizer)"


def test_a_kernel_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(clone(VECTORISERS["char"]))
    plan = laid_out(import_fitted(model).graph)
    add = TextStage.add_scores

    def off(self: TextStage, texts: Any, scores: Any) -> None:
        add(self, texts, scores)
        scores += 1e-15 * (np.arange(len(scores)) == 3)[:, None] + 1e-12 * (np.arange(len(scores)) == 3)[:, None]

    plan = laid_out(import_fitted(model).graph)
    monkeypatch.setattr(TextStage, "add_scores", off)
    found = compare(plan, model, DOCUMENTS)
    assert found is not None
    assert found.row == 3
    assert LABELS
