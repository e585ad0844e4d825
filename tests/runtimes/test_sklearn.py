"""Labels are those of `predict`, probabilities those of `predict_proba`, in one pass where that is certain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier
from threadpoolctl import ThreadpoolController

from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec, report_metric
from streamserve.runtimes.sklearn import SklearnRuntime, _Way

CLASSIFIERS = [
    AdaBoostClassifier(n_estimators=5, random_state=0),
    BaggingClassifier(n_estimators=4, random_state=0),
    BernoulliNB(),
    CalibratedClassifierCV(GaussianNB(), cv=2),
    ComplementNB(),
    DecisionTreeClassifier(max_depth=3, random_state=0),
    DummyClassifier(strategy="prior"),
    ExtraTreeClassifier(max_depth=3, random_state=0),
    ExtraTreesClassifier(n_estimators=4, max_depth=3, random_state=0),
    GaussianNB(),
    GradientBoostingClassifier(n_estimators=5, random_state=0),
    HistGradientBoostingClassifier(max_iter=5),
    KNeighborsClassifier(n_neighbors=4),
    KNeighborsClassifier(n_neighbors=4, algorithm="brute"),
    KNeighborsClassifier(n_neighbors=4, weights="distance"),
    LinearDiscriminantAnalysis(),
    LogisticRegression(),
    LogisticRegression(C=1e6, max_iter=1000),
    LogisticRegressionCV(Cs=2, cv=2, l1_ratios=(0,), use_legacy_attributes=False, scoring="accuracy"),
    MLPClassifier(hidden_layer_sizes=(4,), solver="lbfgs", max_iter=200, random_state=0),
    MultinomialNB(),
    OneVsRestClassifier(LogisticRegression()),
    QuadraticDiscriminantAnalysis(reg_param=0.1),
    RandomForestClassifier(n_estimators=4, max_depth=3, random_state=0),
    SGDClassifier(loss="log_loss", random_state=0),
    SGDClassifier(loss="modified_huber", random_state=0),
    VotingClassifier([("a", GaussianNB()), ("b", LogisticRegression())], voting="soft"),
    VotingClassifier([("a", GaussianNB()), ("b", LogisticRegression())], voting="hard"),
    LinearSVC(),
    make_pipeline(StandardScaler(), LogisticRegression()),
    GridSearchCV(make_pipeline(MinMaxScaler(), GaussianNB()), {"gaussiannb__var_smoothing": [1e-9, 1e-3]}, cv=2),
]


def spec(**options: Any) -> ModelSpec:
    return ModelSpec(name="m", version="1", source="app:model", options=options)


def blobs(n_classes: int, n_rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes on a coarse grid, so that ties and equal rows are common."""
    random = np.random.default_rng(7)
    labels = np.arange(n_rows) % n_classes
    rows = np.abs(np.round(random.normal(size=(n_rows, 3)) + 1.2 * labels[:, None], 1))
    return rows, labels + 3


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda each: type(each).__name__)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_labels_and_probabilities_are_those_of_the_estimator(classifier: Any, n_classes: int) -> None:
    rows, labels = blobs(n_classes)
    model = classifier.fit(rows, labels)
    # far away rows saturate the probabilities: ties that `predict` does not see
    batch = np.vstack([rows, 1e3 * rows, np.zeros((1, 3)), 1e6 * rows[:20]])
    outputs = SklearnRuntime(model, spec()).predict(batch)
    assert outputs.labels.tolist() == model.predict(batch).tolist()
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(outputs.probabilities, model.predict_proba(batch))
        assert outputs.classes.tolist() == model.classes_.tolist()
    else:
        assert outputs.probabilities is None


class Contrary(LogisticRegression):
    """Predicts the less probable class: no subclass of ours to guess at."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmin(axis=1)]


#: Somebody else's class that has the name of one of scikit-learn's.
Namesake = type("LogisticRegression", (Contrary,), {"__module__": __name__})


@pytest.mark.filterwarnings("ignore:The `probability` parameter:FutureWarning")
@pytest.mark.parametrize(
    "model",
    [
        SVC(probability=True, random_state=0),
        FixedThresholdClassifier(LogisticRegression(), threshold=0.9),
        Contrary(),
        Namesake(),
        make_pipeline(StandardScaler(), Contrary()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_estimators_whose_predict_differs_are_asked_twice(model: Any) -> None:
    rows, labels = blobs(2)
    model.fit(rows, labels)
    runtime = SklearnRuntime(model, spec())
    assert runtime._way is _Way.BOTH
    outputs = runtime.predict(rows)
    assert outputs.labels.tolist() == model.predict(rows).tolist()
    np.testing.assert_array_equal(outputs.probabilities, model.predict_proba(rows))


def test_a_plain_pipeline_is_run_once() -> None:
    rows, labels = blobs(3)
    scaler = CountingScaler()
    runtime = SklearnRuntime(make_pipeline(scaler, LogisticRegression()).fit(rows, labels), spec())
    scaler.calls = 0
    runtime.predict(rows[:40])
    assert scaler.calls == 1
    twice = SklearnRuntime(make_pipeline(scaler, Contrary()).fit(rows, labels), spec())
    scaler.calls = 0
    twice.predict(rows[:40])
    assert scaler.calls == 1  # features once, even where the last step is asked twice


class CountingScaler(StandardScaler):
    calls = 0

    def transform(self, X: np.ndarray, copy: bool | None = None) -> np.ndarray:
        self.calls += 1
        report_metric("rows_scaled", len(X))
        return super().transform(X, copy)


def test_regressors_give_labels_only() -> None:
    rows, labels = blobs(2)
    outputs = SklearnRuntime(LinearRegression().fit(rows, labels / 2), spec()).predict(rows)
    assert outputs.labels.dtype == np.float64
    assert outputs.probabilities is None
    vectors = SklearnRuntime(LinearRegression().fit(rows, rows[:, :2]), spec()).predict(rows)
    assert vectors.labels.shape == (150, 2)


def test_several_outputs_and_multilabels_give_labels_only() -> None:
    rows, labels = blobs(2)
    several = np.column_stack([labels, labels - 3])
    forest = RandomForestClassifier(n_estimators=3, random_state=0).fit(rows, several)
    assert SklearnRuntime(forest, spec()).predict(rows).labels.tolist() == forest.predict(rows).tolist()
    network = MLPClassifier((3,), solver="lbfgs", max_iter=300, random_state=0).fit(rows, several - several.min(axis=0))
    outputs = SklearnRuntime(network, spec()).predict(rows)
    assert outputs.labels.tolist() == network.predict(rows).tolist()
    assert outputs.probabilities is None


def test_text_goes_through_a_vectoriser() -> None:
    texts = np.array(["good film", "bad film", "good", "bad"], dtype=object)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["+", "-", "+", "-"])
    outputs = SklearnRuntime(model, spec()).predict(texts)
    assert outputs.labels.tolist() == ["+", "-", "+", "-"]
    assert outputs.labels.dtype == outputs.classes.dtype == object


def test_columns_by_name_and_models_fitted_on_frames() -> None:
    frame = pd.DataFrame({"age": [20.0, 30, 40, 50], "town": ["A", "B", "A", "B"]})
    chosen = ColumnTransformer([("number", StandardScaler(), ["age"]), ("town", OneHotEncoder(), ["town"])])
    model = make_pipeline(chosen, LogisticRegression()).fit(frame, [0, 0, 1, 1])
    batch = frame.to_numpy(dtype=object)
    assert SklearnRuntime(model, spec()).predict(batch).labels.tolist() == model.predict(frame).tolist()
    plain = LogisticRegression().fit(frame[["age"]], [0, 0, 1, 1])
    assert SklearnRuntime(plain, spec()).predict(frame[["age"]].to_numpy()).labels.tolist() == [0, 0, 1, 1]


def test_nan_is_refused_by_models_that_refuse_it() -> None:
    rows, labels = blobs(2)
    batch = rows.copy()
    batch[0, 0] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        SklearnRuntime(LogisticRegression().fit(rows, labels), spec()).predict(batch)
    SklearnRuntime(HistGradientBoostingClassifier(max_iter=2).fit(rows, labels), spec()).predict(batch)


def test_a_batch_stays_as_it_is() -> None:
    rows, labels = blobs(2)
    runtime = SklearnRuntime(make_pipeline(StandardScaler(copy=False), GaussianNB()).fit(rows.copy(), labels), spec())
    batch = rows[:5].copy()
    runtime.predict(batch)
    assert batch.tolist() == rows[:5].tolist()


def test_an_unfitted_estimator_is_refused() -> None:
    with pytest.raises(ModelError, match="this LogisticRegression is not fitted") as refused:
        SklearnRuntime(LogisticRegression(), spec())
    assert isinstance(refused.value.__cause__, NotFittedError)


def test_options() -> None:
    rows, labels = blobs(2)
    model = GaussianNB().fit(rows, labels)
    assert SklearnRuntime(model, spec(probabilities=False)).predict(rows).probabilities is None
    for wrong, words in (
        ({"threads": 0}, "options.threads = 0: must be a whole number of at least 1"),
        ({"threads": True}, "must be a whole number"),
        ({"probabilities": "no"}, "options.probabilities = 'no': must be true or false"),
        ({"thread": 1}, "unknown option thread; known here: probabilities, threads"),
    ):
        with pytest.raises(ModelError, match=words):
            SklearnRuntime(model, spec(**wrong))


def test_threads_are_limited_where_the_model_runs() -> None:
    rows, labels = blobs(2)
    runtime = SklearnRuntime(GaussianNB().fit(rows, labels), spec())
    with ThreadpoolController().limit(limits=2):
        runtime.predict(rows)
        assert {library["num_threads"] for library in ThreadpoolController().info()} == {1}


def test_own_metrics_of_transformers() -> None:
    rows, labels = blobs(2)
    runtime = SklearnRuntime(make_pipeline(CountingScaler(), GaussianNB()).fit(rows, labels), spec())
    assert runtime.predict(rows[:5]).metrics == {"rows_scaled": 5.0}


def test_accepts_what_predicts() -> None:
    assert SklearnRuntime.accepts(GaussianNB())
    assert not SklearnRuntime.accepts(StandardScaler())
    assert not SklearnRuntime.accepts(len)


def test_a_sample_row_has_the_columns_that_the_model_was_fitted_on() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    numbers = make_pipeline(LogisticRegression()).fit(np.eye(4), [0, 1, 0, 1])
    texts = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good day", "bad day"], [0, 1])
    for model, shape in ((numbers, (1, 4)), (texts, (1,))):
        runtime = SklearnRuntime(model, ModelSpec(name="m", version="1", source="x"))
        sample = runtime.sample()
        assert sample is not None
        assert sample.shape == shape
        assert len(runtime.predict(sample).labels) == 1
