"""LightGBM's and XGBoost's estimators: black boxes in their own format, with labels that come from their
probabilities in the same pass.

Source: lightgbm's `sklearn.py` (labels are the arg max of the probabilities), xgboost's `sklearn.py` (the same; of two
classes, the second where its probability is above 0.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.plan.foreign import ForeignModel, lightgbm_model, xgboost_model
from streamserve.plan.importers.context import Importing, NotWhite, PredictorImporter, class_params

#: What XGBoost's classifier makes probabilities of without a step of its own.
_XGBOOST_OBJECTIVES = frozenset({"binary:logistic", "multi:softprob"})


def _kept(importing: Importing, model: ForeignModel, method: str, source: int, origin: str) -> int:
    why = f"{model.kind} runs in its own library, kept as {model.form}"
    importing.black_boxes[origin] = why
    return importing.builder.black_box(model, method, [source], origin=origin, why=why)


def _classifier(importing: Importing, model: ForeignModel, classes: Any, source: int, origin: str) -> Mapping[str, int]:
    params, constants = class_params(np.asarray(classes), origin)
    chances = _kept(importing, model, "predict_proba", source, origin)
    labels = importing.builder.add("choose", [chances], params=params, constants=constants, origin=origin)
    return {"predict": labels, "predict_proba": chances}


def _lightgbm_classifier(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    if callable(estimator.objective_):
        raise NotWhite("its objective is a function")
    model = lightgbm_model(estimator.booster_, cls="LGBMClassifier", classes=int(estimator.n_classes_))
    return _classifier(importing, model, estimator.classes_, source, origin)


def _lightgbm_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    if callable(estimator.objective_):
        raise NotWhite("its objective is a function")
    model = lightgbm_model(estimator.booster_, cls="LGBMRegressor")
    return {"predict": _kept(importing, model, "predict", source, origin)}


def _xgboost(estimator: Any, classes: int) -> ForeignModel:
    if callable(estimator.objective):
        raise NotWhite("its objective is a function")
    if estimator.feature_types is not None:
        raise NotWhite("its columns have types of their own (feature_types)")
    return xgboost_model(
        estimator.get_booster(),
        cls=type(estimator).__name__,
        classes=classes,
        missing=float(estimator.missing),
        trees=estimator.booster != "gblinear",
    )


def _xgboost_classifier(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    model = _xgboost(estimator, int(estimator.n_classes_))
    if estimator.objective not in _XGBOOST_OBJECTIVES:
        raise NotWhite(f"objective {estimator.objective!r}: its probabilities are made outside of the model")
    return _classifier(importing, model, estimator.classes_, source, origin)


def _xgboost_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    return {"predict": _kept(importing, _xgboost(estimator, 0), "predict", source, origin)}


PREDICTORS: dict[str, PredictorImporter] = {
    "lightgbm.LGBMClassifier": _lightgbm_classifier,
    "lightgbm.LGBMRegressor": _lightgbm_regressor,
    "xgboost.XGBClassifier": _xgboost_classifier,
    "xgboost.XGBRFClassifier": _xgboost_classifier,
    "xgboost.XGBRFRegressor": _xgboost_regressor,
    "xgboost.XGBRegressor": _xgboost_regressor,
}
