"""Every operator that a plan may hold, by name: `OPERATORS`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streamserve.plan.graph import Graph
from streamserve.plan.operators import (
    categories,
    chains,
    columns,
    common,
    dense,
    ensembles,
    features,
    fused,
    heads,
    histograms,
    linear,
    text,
    trees,
)
from streamserve.plan.operators.base import OPERATORS, Operator, RowsRefused

__all__ = ["OPERATORS", "Operator", "RowsRefused", "evaluate", "evaluate_nodes"]

_FAMILIES = (
    categories,
    chains,
    columns,
    common,
    dense,
    ensembles,
    features,
    fused,
    heads,
    histograms,
    linear,
    text,
    trees,
)


def evaluate(graph: Graph, rows: Any, outputs: Iterable[str] | None = None) -> dict[str, Any]:
    """What the graph means for a batch: every operator as it is defined, node by node.

    Raises `RowsRefused` for rows that an operator cannot take.
    """
    names = list(graph.outputs if outputs is None else outputs)
    values = evaluate_nodes(graph, rows, names)
    return {name: values[graph.outputs[name]] for name in names}


def evaluate_nodes(graph: Graph, rows: Any, outputs: Iterable[str]) -> Mapping[int, Any]:
    """The value of every node that these outputs need."""
    values: dict[int, Any] = {}
    for i in graph.needed(outputs):
        node = graph.nodes[i]
        inputs = [rows] if node.op == "source" else [values[source] for source in node.inputs]
        values[i] = OPERATORS[node.op].evaluate(node, inputs)
    return values
