"""Decision trees, random and extra forests, gradient boosting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import F64, I64, AnyArray
from streamserve.plan.importers.context import Importing, NotWhite, PredictorImporter, class_name, class_params
from streamserve.plan.kernels.forest import NAN_LEFT

_LEAF = -1


def _arrays(trees: Sequence[Any], heads: Sequence[int], scale: float | None = None) -> dict[str, AnyArray]:
    """The forest's arrays; `heads`: which score a tree's only value goes to, -1 where its leaves hold all of them."""
    rows, leaves, roots = [], [], []
    nodes = filled = 0
    for tree in trees:
        order = left_first(tree.children_left, tree.children_right)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        is_leaf = tree.children_left[order] == _LEAF
        own = tree.feature[order] + np.where(tree.missing_go_to_left[order] != 0, NAN_LEFT, 0)
        threshold = _rounded_down(np.where(is_leaf, 0.0, tree.threshold[order]))
        right = place[np.where(is_leaf, 0, tree.children_right[order])] + nodes
        right = np.where(is_leaf, np.cumsum(is_leaf) - 1 + filled, right)
        whole = [np.where(is_leaf, -1, own).astype(np.int32), right.astype(np.int32), threshold.view(np.int32)]
        rows.append(np.stack(whole, axis=1))
        values = tree.value[order][is_leaf][:, 0, :]
        leaves.append(values if scale is None else scale * values)
        roots.append(nodes)
        nodes += len(order)
        filled += int(is_leaf.sum())
    return {
        "nodes": np.concatenate(rows),
        "leaves": np.ascontiguousarray(np.concatenate(leaves), dtype=np.float64),
        "roots": np.array(roots, dtype=np.int32),
        "heads": np.array(heads, dtype=np.int32),
    }


def left_first(left: I64, right: I64) -> I64:
    """A tree's nodes with every left child right after its parent."""
    order, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        order.append(node)
        if left[node] != _LEAF:
            waiting += (right[node], left[node])
    return np.array(order, dtype=np.int64)


def _rounded_down(thresholds: F64) -> AnyArray:
    """The largest float32 that is not above each."""
    with np.errstate(over="ignore"):
        narrow = thresholds.astype(np.float32)
    above = narrow.astype(np.float64) > thresholds
    narrow[above] = np.nextafter(narrow[above], np.float32(-np.inf))
    return narrow


def _singles(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    allow_nan = bool(estimator.__sklearn_tags__().input_tags.allow_nan)
    return importing.add("singles", source, origin=origin, allow_nan=allow_nan)


def _one_output(estimator: Any) -> None:
    if estimator.n_outputs_ != 1:
        raise NotWhite("it answers several outputs a row")
    if getattr(estimator, "monotonic_cst", None) is not None:
        raise NotWhite("monotonic_cst changes what its leaves say")


def _averaged(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    """A tree, or a forest whose trees' answers are averaged."""
    _one_output(estimator)
    trees = [part.tree_ for part in getattr(estimator, "estimators_", [estimator])]
    arrays = _arrays(trees, [-1] * len(trees))
    width = arrays["leaves"].shape[1]
    arrays["start"] = np.zeros(width)
    singles = _singles(importing, estimator, source, origin)
    sums = importing.add("forest", singles, origin=origin, constants=arrays, divide_by=len(trees))
    if not hasattr(estimator, "classes_"):
        return {"predict": importing.add("first_column", sums, origin=origin)}
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    labels = importing.builder.add("choose", [sums], params=params, constants=constants, origin=origin)
    return {"predict": labels, "predict_proba": sums}


def _boosted(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    if estimator.init_ != "zero" and class_name(estimator.init_) not in {"DummyClassifier", "DummyRegressor"}:
        raise NotWhite("it starts from an estimator of the user's own")
    rounds, heads = estimator.estimators_.shape
    trees = [estimator.estimators_[i, k].tree_ for i in range(rounds) for k in range(heads)]
    arrays = _arrays(trees, [k for _ in range(rounds) for k in range(heads)], float(estimator.learning_rate))
    arrays["start"] = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), dtype=np.float32))[0]
    singles = _singles(importing, estimator, source, origin)
    sums = importing.add("forest", singles, origin=origin, constants=arrays, divide_by=1)
    return importing.add("first_column", sums, origin=origin) if heads == 1 else sums


def _boosted_classifier(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    scores = _boosted(importing, estimator, source, origin)
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    labels = importing.builder.add("not_below", [scores], params=params, constants=constants, origin=origin)
    if len(estimator.classes_) > 2:
        chances = importing.add("softmax", scores, origin=origin)
    else:
        chances = importing.add("logistic", scores, origin=origin, doubled=estimator.loss == "exponential")
    return {"predict": labels, "decision_function": scores, "predict_proba": chances}


def _boosted_regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    return {"predict": _boosted(importing, estimator, source, origin)}


PREDICTORS: dict[str, PredictorImporter] = {
    **dict.fromkeys(
        (
            "DecisionTreeClassifier",
            "DecisionTreeRegressor",
            "ExtraTreeClassifier",
            "ExtraTreeRegressor",
            "ExtraTreesClassifier",
            "ExtraTreesRegressor",
            "RandomForestClassifier",
            "RandomForestRegressor",
        ),
        _averaged,
    ),
    "GradientBoostingClassifier": _boosted_classifier,
    "GradientBoostingRegressor": _boosted_regressor,
}
