"""What a rule is, and facts about nodes that rules look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamserve.plan.graph import Graph
from streamserve.plan.operators import OPERATORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rewriting of the graph that keeps its meaning."""

    name: str
    words: str
    """What it does, for `plan explain`."""
    apply: Callable[[Graph], Graph]
    """The graph rewritten wherever it applies; the same object where it applies nowhere."""


def shapes(graph: Graph) -> list[str]:
    """What each node gives: `text`, `grams`, `sparse`, `dense`, `scores`, `answers` or `unknown`."""
    found: list[str] = []
    for node in graph.nodes:
        shape = OPERATORS[node.op].shape
        if node.op == "source":
            shape = "rows"
        elif node.op == "opaque":
            shape = "unknown"
        elif node.op == "concat":
            shape = _concat_shape(str(node.param("keeps")), [found[source] for source in node.inputs])
        elif shape == "same":
            shape = found[node.inputs[0]]
        found.append(shape)
    return found


def _concat_shape(keeps: str, blocks: list[str]) -> str:
    if keeps in {"sparse", "dense"}:
        return keeps
    if "sparse" in blocks:
        return "sparse"
    return "dense" if all(block in {"dense", "rows"} for block in blocks) else "unknown"


def widths(graph: Graph) -> list[int]:
    """Columns of each node's matrix; 0 where it is not known or it has none."""
    found: list[int] = []
    for node in graph.nodes:
        inner = [found[source] for source in node.inputs]
        if "features" in node.params:
            width = int(node.param("features"))
        elif node.op == "source":
            width = graph.form.columns
        elif node.op == "concat":
            width = sum(inner) if all(inner) else 0
        elif OPERATORS[node.op].shape == "same" and node.op != "opaque":
            width = inner[0]
        else:
            width = 0
        found.append(width)
    return found
