"""HistGradientBoostingClassifier and -Regressor, with categories and missing values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.importers.categories import ordinal_codes
from streamserve.plan.importers.context import Importing, NotWhite, PredictorImporter, class_params
from streamserve.plan.importers.trees import left_first
from streamserve.plan.kernels.histograms import BY_CATEGORY, COLUMN, MISSING_LEFT, SET_WORDS
from streamserve.plan.shapes import shapes_of

#: Link function of the loss -> operator that undoes it; none for the identity.
_LINKS = {"IdentityLink": "", "LogLink": "power"}


def _scores(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    if shapes_of(importing.builder.nodes)[source] in {"sparse", "unknown"}:
        raise NotWhite("it reads a sparse matrix")
    if estimator.n_features_in_ > COLUMN:
        raise NotWhite("it has too many columns")
    node = _columns(importing, estimator, source, origin)
    return importing.add("boosted", node, origin=origin, constants=_arrays(estimator))


def _columns(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    """Categories as numbers first, then the other columns, as its own preprocessor has them."""
    if estimator._preprocessor is None:
        return importing.add("doubles", source, origin=origin)
    if source != importing.builder.source:
        raise NotWhite("it has categories, and reads what another step has made")
    blocks = []
    for name, part, _ in estimator._preprocessor.transformers_:
        places = [int(place) for place in estimator._preprocessor._transformer_to_input_indices[name]]
        if not places or name == "remainder":
            continue
        taken: dict[str, AnyArray] = {"places": np.array(places, dtype=np.int64)}
        block = importing.add("columns", source, origin=origin, constants=taken, alone=False)
        encoded = name == "encoder"
        blocks.append(
            ordinal_codes(importing, part, block, origin) if encoded else importing.add("doubles", block, origin=origin)
        )
    return importing.add("concat", *blocks, origin=origin, keeps="dense") if len(blocks) > 1 else blocks[0]


def _arrays(estimator: Any) -> dict[str, AnyArray]:
    known, place_of = estimator._bin_mapper.make_known_categories_bitsets()
    by_column = np.zeros((estimator.n_features_in_, SET_WORDS), dtype=np.uint32)
    columns = np.flatnonzero(estimator._bin_mapper.is_categorical_)
    by_column[columns] = known[place_of[columns]]
    parts, leaves, roots, sets = [], [], [], [np.zeros((0, SET_WORDS), dtype=np.uint32)]
    nodes = filled = of_sets = 0
    for one in (predictor for turn in estimator._predictors for predictor in turn):
        tree = one.nodes
        is_leaf = tree["is_leaf"].astype(bool)
        order = left_first(np.where(is_leaf, -1, tree["left"].astype(np.int64)), tree["right"].astype(np.int64))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        tree, is_leaf = tree[order], is_leaf[order]
        by_set = tree["is_categorical"].astype(bool) & ~is_leaf
        column = tree["feature_idx"].astype(np.int64)
        column += np.where(tree["missing_go_to_left"] != 0, MISSING_LEFT, 0) + np.where(by_set, BY_CATEGORY, 0)
        right = np.where(is_leaf, np.cumsum(is_leaf) - 1 + filled, place[np.where(is_leaf, 0, tree["right"])] + nodes)
        bounds = np.ascontiguousarray(np.where(is_leaf | by_set, 0.0, tree["num_threshold"])).view(np.int32)
        bounds = bounds.reshape(-1, 2)
        bounds[by_set, 0] = tree["bitset_idx"][by_set].astype(np.int64) + of_sets
        head = np.stack([np.where(is_leaf, -1, column), right], axis=1).astype(np.int32)
        parts.append(np.concatenate([head, bounds], axis=1))
        leaves.append(tree["value"][is_leaf].astype(np.float64))
        sets.append(np.asarray(one.raw_left_cat_bitsets, dtype=np.uint32).reshape(-1, SET_WORDS))
        roots.append(nodes)
        nodes, filled, of_sets = nodes + len(tree), filled + int(is_leaf.sum()), of_sets + len(sets[-1])
    return {
        "nodes": np.concatenate(parts),
        "leaves": np.concatenate(leaves),
        "roots": np.array(roots, dtype=np.int32),
        "sets": np.concatenate(sets),
        "known": by_column,
        "start": np.asarray(estimator._baseline_prediction, dtype=np.float64).reshape(-1),
    }


def _classifier(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    scores = _scores(importing, estimator, source, origin)
    link = "softmax"
    if estimator.n_trees_per_iteration_ == 1:
        scores, link = importing.add("first_column", scores, origin=origin), "logistic"
    labels = importing.builder.add("choose", [scores], params=params, constants=constants, origin=origin)
    chances = importing.add(link, scores, origin=origin)
    return {"predict": labels, "decision_function": scores, "predict_proba": chances}


def _regressor(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    link = type(estimator._loss.link).__name__
    if link not in _LINKS:
        raise NotWhite(f"its loss has {link}")
    scores = importing.add("first_column", _scores(importing, estimator, source, origin), origin=origin)
    return {"predict": importing.add(_LINKS[link], scores, origin=origin) if _LINKS[link] else scores}


PREDICTORS: dict[str, PredictorImporter] = {
    "HistGradientBoostingClassifier": _classifier,
    "HistGradientBoostingRegressor": _regressor,
}
