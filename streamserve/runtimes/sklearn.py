"""Runtime `sklearn`: fitted scikit-learn estimators and pipelines, and what follows their interface.

Labels and probabilities come from one pass where that is certain to give the labels of `predict`: for classifiers of
scikit-learn itself whose `predict` is the arg max of their `predict_proba`, or of scores of which the probabilities
are a monotone function. The second kind can tie after rounding where the scores did not; such rows, and only they, go
through `predict` too. Every other classifier is asked twice (SVC's probabilities, for one, may disagree with it).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any

import numpy as np

from streamserve.core.messages import F64, AnyArray, Outputs
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.conversion import plain_strings
from streamserve.runtimes.frameworks import is_instance_of, require
from streamserve.runtimes.metrics import collect_metrics, with_metrics
from streamserve.runtimes.options import Options
from streamserve.runtimes.threads import ThreadLimit

#: `predict` is the arg max of `predict_proba` by its own source.
_ARG_MAX = frozenset(
    {
        "BaggingClassifier",
        "CalibratedClassifierCV",
        "DecisionTreeClassifier",
        "ExtraTreeClassifier",
        "ExtraTreesClassifier",
        "RandomForestClassifier",
    }
)
#: `predict` is the arg max (or sign) of scores; `predict_proba` is a monotone function of the same scores.
_MONOTONE = frozenset(
    {
        "AdaBoostClassifier",
        "BernoulliNB",
        "CategoricalNB",
        "ComplementNB",
        "GaussianNB",
        "GradientBoostingClassifier",
        "HistGradientBoostingClassifier",
        "KNeighborsClassifier",
        "LinearDiscriminantAnalysis",
        "LogisticRegression",
        "LogisticRegressionCV",
        "MLPClassifier",
        "MultinomialNB",
        "QuadraticDiscriminantAnalysis",
        "SGDClassifier",
    }
)
_SEARCHES = frozenset({"GridSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV", "RandomizedSearchCV"})
#: Two probabilities closer than this many units of rounding count as tied.
_TIE_ROUNDINGS = 1024


class _Way(Enum):
    """How labels and probabilities are got."""

    LABELS = auto()
    ARG_MAX = auto()
    ARG_MAX_BUT_TIES = auto()
    BOTH = auto()


class SklearnRuntime:
    """Runs an estimator's `predict` and, for classifiers that have it, `predict_proba`.

    Options: `threads` (1) for BLAS and OpenMP; `probabilities` (true): false asks for labels only.
    """

    def __init__(self, obj: Any, spec: ModelSpec) -> None:
        options = Options(spec)
        threads = options.integer("threads", default=1)
        wanted = options.boolean("probabilities", default=True)
        options.finish()
        _check_fitted(obj, spec)
        self._model = obj
        self._spec = spec
        self._limit = ThreadLimit(threads, spec)
        self._way = _way(obj) if wanted else _Way.LABELS
        classes = None if self._way is _Way.LABELS else plain_strings(np.asarray(obj.classes_))
        self._classes: AnyArray | None = classes
        self._features, self._last = _halves(obj)
        self._prepare = _preparation(obj, spec)

    @classmethod
    def accepts(cls, obj: object) -> bool:
        """An instance of `sklearn.base.BaseEstimator` that can predict."""
        return is_instance_of(obj, "sklearn.base", "BaseEstimator") and hasattr(obj, "predict")

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch `[n, features]` (or `[n]` texts). Raises what the estimator raises, e.g. for NaN."""
        self._limit.apply()
        with collect_metrics() as reported:
            outputs = self._outputs(self._prepare(batch))
        return with_metrics(outputs, reported)

    def sample(self) -> AnyArray | None:
        """Zeros for as many columns as it was fitted on, a text for a text vectoriser, else None."""
        columns = getattr(self._model, "n_features_in_", None)
        if columns is not None:
            return np.zeros((1, int(columns)))
        first = self._model.steps[0][1] if hasattr(self._model, "steps") else self._model
        return np.array(["a few words"], dtype=object) if hasattr(first, "build_analyzer") else None

    def close(self) -> None:
        """Nothing is held beyond memory."""

    def _outputs(self, batch: Any) -> Outputs:
        if self._way is _Way.LABELS or self._classes is None:
            return Outputs(labels=_dense(self._model.predict(batch)))
        if self._way is _Way.BOTH:
            features = self._features(batch)
            labels = _dense(self._last.predict(features))
            probabilities: F64 = np.asarray(self._last.predict_proba(features), dtype=np.float64)
            return Outputs(labels=labels, probabilities=probabilities, classes=self._classes)
        raw: F64 = self._model.predict_proba(batch)
        best = raw[:, 1] > raw[:, 0] if raw.shape[1] == 2 else raw.argmax(axis=1)  # the first is ten times faster
        labels = self._classes.take(best, axis=0)
        if self._way is _Way.ARG_MAX_BUT_TIES:
            tied = _tied_rows(raw)
            if len(tied):
                labels[tied] = self._model.predict(_rows(batch, tied))
        return Outputs(labels=labels, probabilities=np.asarray(raw, dtype=np.float64), classes=self._classes)


def _tied_rows(probabilities: F64) -> AnyArray:
    """Rows whose best two probabilities are too close to tell which score was higher (or are NaN)."""
    too_close = _TIE_ROUNDINGS * np.finfo(probabilities.dtype).eps
    if probabilities.shape[1] == 2:
        pairs: AnyArray = np.flatnonzero(~(np.abs(probabilities[:, 1] - probabilities[:, 0]) > too_close))
        return pairs
    near = probabilities >= probabilities.max(axis=1, keepdims=True) - too_close
    if np.count_nonzero(near) == len(near):
        return np.empty(0, dtype=np.intp)
    rows: AnyArray = np.flatnonzero(near.sum(axis=1) != 1)
    return rows


def _rows(batch: Any, rows: AnyArray) -> Any:
    return batch.iloc[rows] if hasattr(batch, "iloc") else batch[rows]


def _dense(labels: Any) -> AnyArray:
    return plain_strings(np.asarray(labels.toarray() if hasattr(labels, "toarray") else labels))


def _way(obj: Any) -> _Way:
    classes = getattr(obj, "classes_", None)
    # several outputs give a list of classes, and a list of probabilities: no one matrix to pass on
    if not hasattr(obj, "predict_proba") or not isinstance(classes, np.ndarray) or classes.ndim != 1:
        return _Way.LABELS
    last = _deciding(obj)
    name = type(last).__name__
    if _multilabel(last):
        return _Way.LABELS
    if not type(last).__module__.startswith("sklearn.") or "predict" in vars(last):
        return _Way.BOTH
    if name in _ARG_MAX or (name == "VotingClassifier" and last.voting == "soft"):
        return _Way.ARG_MAX
    return _Way.ARG_MAX_BUT_TIES if name in _MONOTONE else _Way.BOTH


def _multilabel(estimator: Any) -> bool:
    """Columns that are independent yes-or-no labels: `classes_` does not say what one answer is."""
    multilabel = getattr(estimator, "multilabel_", False) or (
        type(estimator).__name__ == "MLPClassifier"
        and estimator.out_activation_ == "logistic"
        and estimator.n_outputs_ > 1
    )
    return bool(multilabel)


def _deciding(obj: Any) -> Any:
    """The estimator whose `predict` decides: the last step of pipelines, the best one of searches."""
    while True:
        if _is_sklearn(obj, "Pipeline"):
            obj = obj.steps[-1][1]
        elif type(obj).__name__ in _SEARCHES and _is_sklearn(obj):
            obj = obj.best_estimator_
        else:
            return obj


def _is_sklearn(obj: Any, name: str | None = None) -> bool:
    """Exactly a class of scikit-learn (a subclass may predict otherwise)."""
    return type(obj).__module__.startswith("sklearn.") and (name is None or type(obj).__name__ == name)


def _halves(obj: Any) -> tuple[Callable[[Any], Any], Any]:
    """A pipeline's transformers as one function, and its last step: transform once, ask the last step twice."""
    if _is_sklearn(obj, "Pipeline") and len(obj.steps) > 1:
        return obj[:-1].transform, obj.steps[-1][1]
    return _unchanged, obj


def _unchanged(batch: Any) -> Any:
    return batch


def _check_fitted(obj: Any, spec: ModelSpec) -> None:
    validation = require("sklearn.utils.validation", spec)
    not_fitted = require("sklearn.exceptions", spec).NotFittedError
    try:
        validation.check_is_fitted(obj)
    except not_fitted as unfitted:
        raise spec.error(f"{spec.source}: this {type(obj).__name__} is not fitted; fit it first") from unfitted


def _preparation(obj: Any, spec: ModelSpec) -> Callable[[AnyArray], Any]:
    """What is done to a batch before the estimator sees it: mostly nothing."""
    names = getattr(obj, "feature_names_in_", None)
    if names is not None and any(_is_sklearn(part, "ColumnTransformer") for part in _parts(obj)):
        pandas = require("pandas", spec)  # columns chosen by name exist in a frame only

        def frame(batch: AnyArray) -> Any:
            table = pandas.DataFrame(batch, columns=names)
            return table.infer_objects() if batch.dtype == object else table

        return frame
    if names is not None:
        # fitted on a frame, served columns in the same order: the warning would be one a batch
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
    if any(value is False for name, value in obj.get_params().items() if name.split("__")[-1] == "copy"):
        return np.array  # it works in place, and the batch is not its own
    return _unchanged


def _parts(obj: Any) -> Iterator[Any]:
    yield obj
    yield from obj.get_params().values()
