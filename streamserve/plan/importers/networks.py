"""Multi-layer perceptrons, and nearest neighbours by brute force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.importers.context import Importing, NotWhite, PredictorImporter, class_params
from streamserve.plan.operators.dense import ACTIVATIONS
from streamserve.plan.shapes import shapes_of

_HALF = 0.5


def _layers(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    source = importing.checked(source, origin)
    last = len(estimator.coefs_) - 1
    for i, (weights, plus) in enumerate(zip(estimator.coefs_, estimator.intercepts_, strict=True)):
        name = estimator.out_activation_ if i == last else estimator.activation
        if name not in ACTIVATIONS:
            raise NotWhite(f"its activation is {name}")
        constants: dict[str, AnyArray] = {"weights": weights, "intercept": plus}
        source = importing.add("layer", source, origin=origin, constants=constants, activation=name)
    return source


def _mlp_classifier(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    if estimator._label_binarizer.y_type_.startswith("multilabel"):
        raise NotWhite("it answers several labels a row")
    node = _layers(importing, estimator, source, origin)
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    if estimator.n_outputs_ > 1:
        labels = importing.builder.add("choose", [node], params=params, constants=constants, origin=origin)
        return {"predict": labels, "predict_proba": node}
    alone = importing.add("first_column", node, origin=origin)
    params["above"] = _HALF
    labels = importing.builder.add("choose", [alone], params=params, constants=constants, origin=origin)
    return {"predict": labels, "predict_proba": importing.add("both", alone, origin=origin)}


def _mlp_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    node = _layers(importing, estimator, source, origin)
    return {"predict": importing.add("first_column", node, origin=origin)}


def _nearest(importing: Importing, estimator: Any, source: int, origin: str, answers: AnyArray) -> int:
    if estimator._fit_method != "brute":
        raise NotWhite(f'it searches by {estimator._fit_method}; algorithm="brute" is opened')
    if estimator.effective_metric_ != "euclidean" or estimator.weights != "uniform":
        raise NotWhite("its metric is not Euclidean, or its weights are not uniform")
    known: Any = estimator._fit_X
    if not isinstance(known, np.ndarray) or known.dtype != np.float64:
        raise NotWhite("its known rows are no float64 array")
    if shapes_of(importing.builder.nodes)[source] in {"sparse", "unknown"}:
        raise NotWhite("it reads a sparse matrix")
    constants = {"centres": known, "squares": np.einsum("ij,ij->i", known, known), "answers": answers}
    source = importing.checked(source, origin)
    return importing.add("neighbours", source, origin=origin, constants=constants, count=int(estimator.n_neighbors))


def _nearest_classifier(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    if estimator.outputs_2d_:
        raise NotWhite("it answers several labels a row")
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    shares = _nearest(importing, estimator, source, origin, np.eye(len(estimator.classes_))[estimator._y])
    labels = importing.builder.add("choose", [shares], params=params, constants=constants, origin=origin)
    return {"predict": labels, "predict_proba": shares}


def _nearest_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    answers: AnyArray = np.asarray(estimator._y, dtype=np.float64)
    means = _nearest(importing, estimator, source, origin, answers.reshape(len(answers), -1))
    return {"predict": means if answers.ndim > 1 else importing.add("first_column", means, origin=origin)}


PREDICTORS: dict[str, PredictorImporter] = {
    "KNeighborsClassifier": _nearest_classifier,
    "KNeighborsRegressor": _nearest_regressor,
    "MLPClassifier": _mlp_classifier,
    "MLPRegressor": _mlp_regressor,
}
