"""Facts about nodes that importers and rules look at: what each gives, and how wide it is."""

from __future__ import annotations

from collections.abc import Sequence

from streamserve.plan.graph import Graph, Node
from streamserve.plan.operators import OPERATORS


def shapes(graph: Graph) -> list[str]:
    """What each node gives: `text`, `grams`, `rows`, `sparse`, `dense`, `scores`, `answers` or `unknown`."""
    return shapes_of(graph.nodes)


def shapes_of(nodes: Sequence[Node]) -> list[str]:
    """The same of nodes that are no graph yet."""
    found: list[str] = []
    for node in nodes:
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
    return "dense" if all(block in {"dense", "rows", "scores", "answers"} for block in blocks) else "unknown"


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


#: Operators that make finite numbers of texts, and finite numbers of those.
_TEXT = frozenset({"vectorise", "sublinear", "idf", "norm", "factor", "concat", "binary", "select"})


def only_text(nodes: Sequence[Node], node: int) -> bool:
    """Whether a node's matrix is made of n-grams alone."""
    waiting = [node]
    while waiting:
        one = nodes[waiting.pop()]
        if one.op == "vectorise":
            continue
        if one.op not in _TEXT:
            return False
        waiting += one.inputs
    return True
