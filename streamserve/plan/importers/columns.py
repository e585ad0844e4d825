"""ColumnTransformer, scalers, Normalizer, Binarizer, SimpleImputer."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.importers.context import Importing, NotWhite, TransformerImporter, class_name, joined
from streamserve.plan.importers.features import marks
from streamserve.plan.shapes import shapes_of


def _column_transformer(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    if source != importing.builder.source:
        raise NotWhite("it reads what another step has made")
    weights = estimator.transformer_weights or {}
    blocks = []
    for name, part, columns in estimator.transformers_:
        places = [int(place) for place in estimator._transformer_to_input_indices[name]]
        if (isinstance(part, str) and part == "drop") or not places:
            continue
        inner = joined(origin, name)
        taken = {"places": np.array(places, dtype=np.int64)}
        alone = np.isscalar(columns)
        block = importing.add("columns", source, origin=inner, constants=taken, alone=bool(alone))
        if class_name(part) == "FunctionTransformer" and part.func is None:
            block = importing.add("floats", block, origin=inner, allow_nan=True)
        elif not (isinstance(part, str) and part == "passthrough"):
            block = importing.transform(part, block, inner)
        if weights.get(name) is not None:
            block = importing.add("factor", block, origin=inner, by=float(weights[name]))
        blocks.append(block)
    if not blocks:
        raise NotWhite("it has no transformer left")
    return importing.add("concat", *blocks, origin=origin, keeps="sparse" if estimator.sparse_output_ else "dense")


def _floats(importing: Importing, source: int, origin: str, *, allow_nan: bool) -> int:
    return importing.add("floats", source, origin=origin, allow_nan=allow_nan)


def _by(importing: Importing, op: str, source: int, origin: str, by: Any, *, narrow: bool = False) -> int:
    constants: dict[str, AnyArray] = {"by": np.asarray(by, dtype=np.float64)}
    return importing.add(op, source, origin=origin, constants=constants, narrow=narrow)


def _is_sparse(importing: Importing, source: int) -> bool:
    return shapes_of(importing.builder.nodes)[source] in {"sparse", "unknown"}


def _standard(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    sparse = _is_sparse(importing, source)
    node = _floats(importing, source, origin, allow_nan=True)
    if sparse:
        # the inverse is taken first, and multiplied
        return node if estimator.scale_ is None else _by(importing, "times", node, origin, 1 / estimator.scale_)
    if estimator.with_mean:
        node = _by(importing, "subtract", node, origin, estimator.mean_, narrow=True)
    return _by(importing, "divide", node, origin, estimator.scale_, narrow=True) if estimator.with_std else node


def _min_max(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    node = _by(importing, "times", _floats(importing, source, origin, allow_nan=True), origin, estimator.scale_)
    node = _by(importing, "plus", node, origin, estimator.min_)
    if not estimator.clip:
        return node
    low, high = estimator.feature_range
    return importing.add("clip", node, origin=origin, low=float(low), high=float(high))


def _max_abs(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    node = _floats(importing, source, origin, allow_nan=True)
    if _is_sparse(importing, source):
        node = _by(importing, "times", node, origin, 1.0 / estimator.scale_)
    else:
        node = _by(importing, "divide", node, origin, estimator.scale_)
    return importing.add("clip", node, origin=origin, low=-1.0, high=1.0) if estimator.clip else node


def _robust(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    sparse = _is_sparse(importing, source)
    node = _floats(importing, source, origin, allow_nan=True)
    if sparse:
        return _by(importing, "times", node, origin, 1.0 / estimator.scale_) if estimator.with_scaling else node
    if estimator.with_centering:
        node = _by(importing, "subtract", node, origin, estimator.center_)
    return _by(importing, "divide", node, origin, estimator.scale_) if estimator.with_scaling else node


def _normalizer(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    sparse = _is_sparse(importing, source)
    node = _floats(importing, source, origin, allow_nan=False)
    return importing.add("norm" if sparse else "row_norm", node, origin=origin, norm=estimator.norm)


def _binarizer(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    if _is_sparse(importing, source):
        raise NotWhite("it reads a sparse matrix, whose zeros it takes out")
    node = _floats(importing, source, origin, allow_nan=False)
    return importing.add("threshold", node, origin=origin, above=float(estimator.threshold))


def _imputer(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    if not (isinstance(estimator.missing_values, float) and np.isnan(estimator.missing_values)):
        raise NotWhite(f"missing_values = {estimator.missing_values!r} is not NaN")
    if estimator._fit_dtype.kind != "f" or _is_sparse(importing, source):
        raise NotWhite("it was fitted on other things than an array of floats")
    by = np.asarray(estimator.statistics_, dtype=np.float64)
    observed = np.ones(len(by), dtype=bool) if estimator.keep_empty_features else ~np.isnan(by)
    constants: dict[str, AnyArray] = {"by": by[observed], "kept": np.flatnonzero(observed)}
    node = _floats(importing, source, origin, allow_nan=True)
    filled = importing.add("impute", node, origin=origin, constants=constants)
    if not estimator.add_indicator:
        return filled
    return importing.add(
        "concat", filled, marks(importing, estimator.indicator_, node, origin), origin=origin, keeps="dense"
    )


TRANSFORMERS: dict[str, TransformerImporter] = {
    "ColumnTransformer": _column_transformer,
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": _max_abs,
    "RobustScaler": _robust,
    "Normalizer": _normalizer,
    "Binarizer": _binarizer,
    "SimpleImputer": _imputer,
}
