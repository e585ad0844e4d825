"""Pipeline and FeatureUnion, nested as they may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamserve.errors import ImportRefused
from streamserve.plan.importers.context import Importing, NotWhite, class_name, joined

_NOTHING = (None, "passthrough")
_MEMBERS = frozenset({"StackingClassifier", "StackingRegressor", "VotingClassifier", "VotingRegressor"})


def pipeline_transform(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    """Every step in turn."""
    for name, step in estimator.steps:
        if step not in _NOTHING:
            source = importing.transform(step, source, joined(origin, name))
    return source


def pipeline_predict(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    """Every step in turn; the last one answers."""
    *steps, (name, last) = estimator.steps
    if last in _NOTHING or not hasattr(last, "predict"):
        raise ImportRefused(f"{joined(origin, name)}: a plan answers by predict, and its last step has none")
    for step_name, step in steps:
        if step not in _NOTHING:
            source = importing.transform(step, source, joined(origin, step_name))
    return importing.predict(last, source, joined(origin, name))


def union(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    """Its transformers side by side, each times its weight."""
    weights = estimator.transformer_weights or {}
    blocks = []
    for name, part in estimator.transformer_list:
        if part == "drop":
            continue
        block = source if part == "passthrough" else importing.transform(part, source, joined(origin, name))
        weight = weights.get(name)
        if weight is not None:
            block = importing.add("factor", block, origin=joined(origin, name), by=float(weight))
        blocks.append(block)
    if not blocks:
        raise NotWhite("it has no transformer left")
    return importing.add("concat", *blocks, origin=origin, keeps="any")


def takes_text(estimator: Any) -> bool:
    """Whether its rows are texts: the first transformer that reads them is a vectoriser."""
    if hasattr(estimator, "build_analyzer"):
        return True
    kind = class_name(estimator)
    if kind == "Pipeline":
        steps = [step for _, step in estimator.steps if step not in _NOTHING]
        return bool(steps) and takes_text(steps[0])
    if kind in _MEMBERS:
        return any(takes_text(part) for part in getattr(estimator, "estimators_", ()))
    if kind == "CalibratedClassifierCV":
        return any(takes_text(part.estimator) for part in getattr(estimator, "calibrated_classifiers_", ()))
    if kind == "FeatureUnion":
        return any(takes_text(part) for _, part in estimator.transformer_list if not isinstance(part, str))
    return False


TRANSFORMERS = {"Pipeline": pipeline_transform, "FeatureUnion": union}
PREDICTORS = {"Pipeline": pipeline_predict}
