"""KBinsDiscretizer, MissingIndicator, PolynomialFeatures, FunctionTransformer, and whatever chooses columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import Param
from streamserve.plan.importers.context import Importing, NotWhite, TransformerImporter
from streamserve.plan.operators.features import FUNCTIONS
from streamserve.plan.shapes import shapes_of

_SPARSE = frozenset({"sparse", "unknown"})


def _refuse_sparse(importing: Importing, source: int) -> None:
    if shapes_of(importing.builder.nodes)[source] in _SPARSE:
        raise NotWhite("it reads a sparse matrix")


def _bins(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    _refuse_sparse(importing, source)
    if estimator.dtype is not None:
        raise NotWhite(f"dtype = {np.dtype(estimator.dtype)} rounds the values before they are put into bins")
    inner = [np.asarray(edges, dtype=np.float64)[1:-1] for edges in estimator.bin_edges_]
    constants: dict[str, AnyArray] = {
        "edges": np.concatenate([np.zeros(0), *inner]),
        "starts": np.cumsum([0, *(len(edges) for edges in inner)]).astype(np.int64),
    }
    node = importing.add("floats", source, origin=origin, allow_nan=False)
    node = importing.add("bins", node, origin=origin, constants=constants, features=len(inner))
    if estimator.encode == "ordinal":
        return node
    counts = [len(edges) + 1 for edges in inner]
    op = "places" if estimator.encode == "onehot" else "dense_places"
    first = {"starts": np.cumsum([0, *counts[:-1]]).astype(np.int32)}
    return importing.add(op, node, origin=origin, constants=first, features=sum(counts))


def marks(importing: Importing, indicator: Any, source: int, origin: str) -> int:
    """The node of a fitted MissingIndicator over checked numbers."""
    if not (isinstance(indicator.missing_values, float) and np.isnan(indicator.missing_values)):
        raise NotWhite(f"missing_values = {indicator.missing_values!r} is not NaN")
    if indicator.sparse is True:
        raise NotWhite("sparse = True")
    only = indicator.features == "missing-only"
    places = np.asarray(indicator.features_, dtype=np.int64) if only else np.arange(indicator._n_features)
    refuses = only and bool(indicator.error_on_new)
    constants: dict[str, AnyArray] = {"places": places}
    return importing.add(
        "missing", source, origin=origin, constants=constants, refuses=refuses, features=len(places)
    )  # fmt: skip


def _indicator(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    _refuse_sparse(importing, source)
    node = importing.add("floats", source, origin=origin, allow_nan=True)
    return marks(importing, estimator, node, origin)


def _polynomial(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    _refuse_sparse(importing, source)
    if estimator.order != "C" or estimator._max_degree < 1:
        raise NotWhite('order = "F", or no degree but 0')
    columns, bias = int(estimator.n_features_in_), bool(estimator.include_bias)
    terms, factors, ends = _terms(columns, int(estimator._max_degree), bias, bool(estimator.interaction_only))
    width = bias + columns + len(terms)
    kept = np.arange(width)
    if estimator._min_degree > 1:
        wanted = int(estimator.n_output_features_)
        kept = np.concatenate([kept[:bias], kept[width - wanted + bias :]])
    constants: dict[str, AnyArray] = {"terms": terms, "factors": factors, "ends": ends, "kept": kept}
    node = importing.add("floats", source, origin=origin, allow_nan=False)
    return importing.add("polynomial", node, origin=origin, constants=constants, bias=bias, features=len(kept))


def _terms(columns: int, degrees: int, bias: bool, interactions: bool) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Of every term above degree 1: the term (a column of the result) and the column whose product it is; degree ends.

    Terms of a degree are those of the degree below, by their first column, times each column that is not after it.
    """
    terms: list[int] = []
    factors: list[int] = []
    ends: list[int] = []
    begins = [*range(bias, bias + columns), bias + columns]
    at = begins[-1]
    for _ in range(2, degrees + 1):
        end, now = begins[-1], []
        for column in range(columns):
            now.append(at)
            start = begins[column + 1] if interactions else begins[column]
            if end <= start:
                break
            terms += range(start, end)
            factors += [column] * (end - start)
            at += end - start
        now.append(at)
        begins = now + [at] * (columns + 1 - len(now))
        ends.append(len(terms))
    return np.array(terms, np.int64), np.array(factors, np.int64), np.array(ends, np.int64)


def _function(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    _refuse_sparse(importing, source)
    if estimator.kw_args:
        raise NotWhite("its function takes arguments")
    name = "" if estimator.func is None else getattr(estimator.func, "__name__", "")
    if estimator.func is not None and (name not in FUNCTIONS or estimator.func is not getattr(np, name)):
        raise NotWhite("its function is none of numpy's that is known")
    if estimator.validate:
        source = importing.add("floats", source, origin=origin, allow_nan=False)
    return source if estimator.func is None else importing.add("function", source, origin=origin, name=name)


def _selection(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    places = np.flatnonzero(estimator.get_support())
    if not len(places):
        raise NotWhite("it chooses no column")
    allow_nan = bool(estimator.__sklearn_tags__().input_tags.allow_nan)
    if shapes_of(importing.builder.nodes)[source] == "unknown":
        raise NotWhite("it reads what a black box has made")
    params: dict[str, Param] = {"features": len(places)}
    if not allow_nan:  # else it looks at nothing
        source = importing.checked(source, origin)
    return importing.add("select", source, origin=origin, constants={"places": places}, **params)


TRANSFORMERS: dict[str, TransformerImporter] = {
    "FunctionTransformer": _function,
    "KBinsDiscretizer": _bins,
    "MissingIndicator": _indicator,
    "PolynomialFeatures": _polynomial,
    **dict.fromkeys(
        (
            "GenericUnivariateSelect",
            "RFE",
            "RFECV",
            "SelectFdr",
            "SelectFpr",
            "SelectFromModel",
            "SelectFwe",
            "SelectKBest",
            "SelectPercentile",
            "SequentialFeatureSelector",
            "VarianceThreshold",
        ),
        _selection,
    ),
}
