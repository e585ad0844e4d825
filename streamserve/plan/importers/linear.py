"""Linear models: LogisticRegression, LinearSVC, SGD*, Ridge*, LinearRegression, Lasso, GLMs with a logarithmic link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.plan.importers.context import Importing, NotWhite, PredictorImporter, class_params


def _scores(importing: Importing, estimator: Any, source: int, origin: str, *, ravel: bool) -> int:
    coef = np.asarray(estimator.coef_)
    intercept = np.asarray(estimator.intercept_, dtype=np.float64)
    if coef.dtype != np.float64:
        raise NotWhite(f"its weights are {coef.dtype}: they are multiplied in that precision")
    source = importing.checked(source, origin)
    constants = {"coef": coef, "intercept": intercept}
    return importing.add("linear", source, origin=origin, constants=constants, ravel=ravel)


def _classifier(importing: Importing, estimator: Any, source: int, origin: str) -> dict[str, int]:
    if len(estimator.classes_) < 2 or getattr(estimator, "sparse_coef_", False):
        raise NotWhite("it has one class, or sparse weights")
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    scores = _scores(importing, estimator, source, origin, ravel=True)
    labels = importing.builder.add("choose", [scores], params=params, constants=constants, origin=origin)
    return {"predict": labels, "decision_function": scores}


def _logistic(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    nodes = _classifier(importing, estimator, source, origin)
    link = "logistic" if len(estimator.classes_) <= 2 else "softmax"
    return nodes | {"predict_proba": importing.add(link, nodes["decision_function"], origin=origin)}


def _sgd(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    nodes = _classifier(importing, estimator, source, origin)
    link = {"log_loss": "logistic", "modified_huber": "huber"}.get(estimator.loss)
    if link is None:
        return nodes
    return nodes | {"predict_proba": importing.add(link, nodes["decision_function"], origin=origin)}


def _ridge_classifier(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    if estimator._label_binarizer.y_type_.startswith("multilabel"):
        raise NotWhite("it answers several labels a row")
    return _classifier(importing, estimator, source, origin)


def _regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    return {"predict": _scores(importing, estimator, source, origin, ravel=False)}


def _sgd_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    return {"predict": _scores(importing, estimator, source, origin, ravel=True)}


def _log_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    scores = _scores(importing, estimator, source, origin, ravel=True)
    return {"predict": importing.add("power", scores, origin=origin)}


PREDICTORS: dict[str, PredictorImporter] = {
    "LogisticRegression": _logistic,
    "LogisticRegressionCV": _logistic,
    "LinearSVC": _classifier,
    "SGDClassifier": _sgd,
    "PassiveAggressiveClassifier": _classifier,
    "PassiveAggressiveRegressor": _sgd_regressor,
    "Perceptron": _classifier,
    "RidgeClassifier": _ridge_classifier,
    "RidgeClassifierCV": _ridge_classifier,
    "Ridge": _regressor,
    "RidgeCV": _regressor,
    "LinearRegression": _regressor,
    "Lasso": _regressor,
    "LassoCV": _regressor,
    "ElasticNet": _regressor,
    "ElasticNetCV": _regressor,
    "LinearSVR": _sgd_regressor,
    "PoissonRegressor": _log_regressor,
    "GammaRegressor": _log_regressor,
    "SGDRegressor": _sgd_regressor,
}
