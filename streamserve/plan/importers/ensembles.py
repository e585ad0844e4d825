"""VotingClassifier and -Regressor, StackingClassifier and -Regressor, CalibratedClassifierCV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.importers.context import Importing, NotWhite, PredictorImporter, class_params, joined
from streamserve.plan.shapes import shapes_of


def _members(estimator: Any) -> list[tuple[str, Any]]:
    """The fitted members with their names."""
    names = [name for name, part in estimator.estimators if not (isinstance(part, str) and part == "drop")]
    return list(zip(names, estimator.estimators_, strict=True))


def _asked(importing: Importing, estimator: Any, source: int, origin: str, method: str) -> list[int]:
    nodes = []
    for name, part in _members(estimator):
        found = importing.predict(part, source, joined(origin, name))
        if method not in found:
            raise NotWhite(f"{name} has no {method}")
        nodes.append(found[method])
    return nodes


def _weights(estimator: Any) -> tuple[float, ...]:
    weights = estimator._weights_not_none
    return () if weights is None else tuple(float(weight) for weight in weights)


def _labels(importing: Importing, scores: int, classes: Any, origin: str) -> int:
    params, constants = class_params(np.asarray(classes), origin)
    return importing.builder.add("choose", [scores], params=params, constants=constants, origin=origin)


def _voting(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    weights = _weights(estimator)
    if estimator.voting == "soft":
        nodes = _asked(importing, estimator, source, origin, "predict_proba")
        mean = importing.add("average", *nodes, origin=origin, weights=weights)
        return {"predict": _labels(importing, mean, estimator.classes_, origin), "predict_proba": mean}
    nodes = _asked(importing, estimator, source, origin, "predict")
    votes = importing.add("votes", *nodes, origin=origin, weights=weights, count=len(estimator.classes_))
    return {"predict": _labels(importing, votes, estimator.classes_, origin)}


def _voting_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    nodes = _asked(importing, estimator, source, origin, "predict")
    return {"predict": importing.add("average", *nodes, origin=origin, weights=_weights(estimator))}


def _stacked(importing: Importing, estimator: Any, source: int, origin: str, classes: Sequence[Any] | None) -> int:
    """The node of what the final estimator reads."""
    if estimator.passthrough and shapes_of(importing.builder.nodes)[source] in {"sparse", "unknown", "text"}:
        raise NotWhite("passthrough of what is no array of columns")
    blocks = []
    for (name, part), method in zip(_members(estimator), estimator.stack_method_, strict=True):
        found = importing.predict(part, source, joined(origin, name))
        if method not in found:
            raise NotWhite(f"{name} has no {method}")
        block = found[method]
        if method == "predict_proba" and classes is not None and len(classes) == 2:
            second: dict[str, AnyArray] = {"places": np.array([1])}
            block = importing.add("select", block, origin=joined(origin, name), constants=second, features=1)
        blocks.append(importing.add("as_column", block, origin=joined(origin, name)))
    if estimator.passthrough:
        if importing.builder.form.kind == "text":
            raise NotWhite("passthrough of texts")
        blocks.append(source)
    return importing.add("concat", *blocks, origin=origin, keeps="dense")


def _stacking(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    if isinstance(estimator._label_encoder, list):
        raise NotWhite("it answers several labels a row")
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    whole = _stacked(importing, estimator, source, origin, estimator.classes_)
    nodes = dict(importing.predict(estimator.final_estimator_, whole, joined(origin, "final")))
    nodes["predict"] = importing.builder.add(
        "relabel", [nodes["predict"]], params=params, constants=constants, origin=origin
    )
    return nodes


def _stacking_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    whole = _stacked(importing, estimator, source, origin, None)
    return {"predict": importing.predict(estimator.final_estimator_, whole, joined(origin, "final"))["predict"]}


def _calibration(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    nodes = [
        _calibrated(importing, part, source, joined(origin, str(i)))
        for i, part in enumerate(estimator.calibrated_classifiers_)
    ]
    mean = importing.add("mean", *nodes, origin=origin)
    return {"predict": _labels(importing, mean, estimator.classes_, origin), "predict_proba": mean}


def _calibrated(importing: Importing, part: Any, source: int, origin: str) -> int:
    if part.method not in {"sigmoid", "isotonic"}:
        raise NotWhite(f"{part.method} calibration looks at the whole batch")
    found = importing.predict(part.estimator, source, origin)
    scores = found.get("decision_function", found.get("predict_proba"))
    if scores is None:
        raise NotWhite("its estimator gives no scores")
    known = np.asarray(part.classes)
    own = np.asarray(part.estimator.classes_)
    constants: dict[str, AnyArray] = {"places": np.searchsorted(known, own)[: len(part.calibrators)]}
    if part.method == "sigmoid":
        constants["lines"] = np.array([(float(one.a_), float(one.b_)) for one in part.calibrators])
    else:
        curves = [(np.asarray(one.X_thresholds_), np.asarray(one.y_thresholds_)) for one in part.calibrators]
        if any(curve[0].dtype != np.float64 for curve in curves):
            raise NotWhite("its curves are not float64")
        constants["scores"] = np.concatenate([curve[0] for curve in curves])
        constants["chances"] = np.concatenate([curve[1] for curve in curves]).astype(np.float64)
        constants["starts"] = np.cumsum([0, *(len(curve[0]) for curve in curves)])
    return importing.add(
        "calibrated", scores, origin=origin, constants=constants, method=part.method, count=len(known)
    )  # fmt: skip


PREDICTORS: dict[str, PredictorImporter] = {
    "CalibratedClassifierCV": _calibration,
    "StackingClassifier": _stacking,
    "StackingRegressor": _stacking_regressor,
    "VotingClassifier": _voting,
    "VotingRegressor": _voting_regressor,
}
