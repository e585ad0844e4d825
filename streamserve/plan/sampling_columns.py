"""Rows of columns to try a plan with: known and unknown categories, numbers around thresholds and scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import Graph, Node
from streamserve.plan.kernels.forest import NAN_LEFT
from streamserve.plan.operators.chains import steps_of
from streamserve.plan.operators.trees import parts_of

_SAME = frozenset({"floats", "singles", "subtract", "divide", "times", "plus", "clip", "threshold", "factor", "chain"})
#: Numbers that have caught somebody.
_ODD: tuple[float, ...] = (0.0, -0.0, 1e-320, -1e-8, 1e30, -1e30, 3.4028235e38, 1e39, np.nan, np.inf, -np.inf)
#: Of the cells of odd rows, how many are odd.
_ODD_SHARE = 0.15
_UNKNOWN: tuple[Any, ...] = ("never seen", "", 12345, None, float("nan"))
_MOST_THRESHOLDS = 2_000


@dataclass(slots=True)
class _Known:
    """What the graph says of one column."""

    categories: list[Any] = field(default_factory=list)
    numbers: list[AnyArray] = field(default_factory=list)
    is_text: bool = False


def sample_table(graph: Graph, *, rows: int, seed: int, odd: bool, texts: Sequence[str]) -> AnyArray:
    """`[rows, columns]`: floats, or objects where a column holds texts or categories that are none."""
    draw = np.random.default_rng(seed)
    known = _known(graph)
    mixed = any(one.is_text or any(not isinstance(value, int | float) for value in one.categories) for one in known)
    table = np.empty((rows, graph.form.columns), dtype=object if mixed else np.float64)
    for place, one in enumerate(known):
        if one.is_text:
            table[:, place] = [texts[i % len(texts)] for i in range(rows)]
        elif one.categories:
            table[:, place] = _categories(one.categories, rows, draw, odd=odd, mixed=mixed)
        else:
            table[:, place] = _numbers(one.numbers, rows, draw, odd=odd)
    return table


def _categories(categories: list[Any], rows: int, draw: np.random.Generator, *, odd: bool, mixed: bool) -> list[Any]:
    found = [categories[i] for i in draw.integers(len(categories), size=rows)]
    if odd:
        for i in np.flatnonzero(draw.random(rows) < _ODD_SHARE / 2):
            value = _UNKNOWN[int(draw.integers(len(_UNKNOWN)))]
            found[i] = value if mixed or isinstance(value, int | float) else 12345
    return found


def _numbers(around: list[AnyArray], rows: int, draw: np.random.Generator, *, odd: bool) -> AnyArray:
    values: AnyArray = draw.normal(size=rows) * 3.0
    if around:
        known = np.concatenate([np.ravel(part) for part in around]).astype(np.float64)
        picked = known[draw.integers(len(known), size=rows)]
        spread = float(np.nanstd(known)) or 1.0
        exact = draw.random(rows) < (0.3 if odd else 0.0)
        values = np.where(exact, picked, picked + draw.normal(size=rows) * spread)
    if odd:
        strange = draw.random(rows) < _ODD_SHARE / 8
        values = np.where(strange, np.array(_ODD)[draw.integers(len(_ODD), size=rows)], values)
    return values


def _known(graph: Graph) -> list[_Known]:
    known = [_Known() for _ in range(graph.form.columns)]
    origin: list[list[int] | None] = []
    for node in graph.nodes:
        places = _places(node, graph, origin)
        origin.append(places)
        if node.op == "columns" and node.param("alone") and places:
            known[places[0]].is_text = True
        read = origin[node.inputs[0]] if node.inputs else None
        if read is not None:
            _learn(node, read, known)
    return known


def _places(node: Node, graph: Graph, origin: list[list[int] | None]) -> list[int] | None:
    """The columns of the input that a node's columns are; None where they are others."""
    if node.op == "source":
        return list(range(graph.form.columns))
    read = origin[node.inputs[0]]
    if read is None:
        return None
    if node.op == "columns":
        return [read[i] for i in node.array("places").tolist()]
    if node.op == "impute":
        return [read[i] for i in node.array("kept").tolist()]
    return read if node.op in _SAME else None


def _learn(node: Node, read: list[int], known: list[_Known]) -> None:
    if node.op in {"one_hot", "ordinal", "dense_one_hot"}:
        for place, categories in zip(read, node.param("categories"), strict=True):
            known[place].categories += list(categories)
    elif node.op == "chain":
        for step in steps_of(node)[:2]:  # a later one reads what these have made
            _learn(step, read, known)
    elif node.op in {"subtract", "impute"}:
        for place, value in zip(read, node.array("by"), strict=False):
            known[place].numbers.append(np.array([value, value + 1.0, value - 1.0]))
    elif node.op == "forest":
        column, _, thresholds = parts_of(node)
        columns, inner = column & (NAN_LEFT - 1), column >= 0
        for i, place in enumerate(read):
            own = thresholds[inner & (columns == i)][:_MOST_THRESHOLDS]
            own = own[np.isfinite(own)]
            if len(own):
                known[place].numbers.append(own)
