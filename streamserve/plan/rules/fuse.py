"""Rules that make one kernel call of a chain of text operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamserve.plan.graph import Graph, Node, rebuilt
from streamserve.plan.rules.base import Rule

#: Operators of a text chain, last first: the order in which the kernel does them, backwards.
_ORDER = ("factor", "norm", "idf", "sublinear", "binary", "lookup", "ngrams")
#: Counts come from a vocabulary or from hashes.
_COUNTS = frozenset({"lookup", "hashed"})


@dataclass(slots=True)
class _Chain:
    """A chain that ends (looked at backwards) at lower-cased text."""

    texts: int = -1
    params: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)


def _chain_from(graph: Graph, last: int) -> _Chain | None:
    """The chain whose last operator is a node; None where it is none.

    Others may read a part of it: the kernel does that part again, in less time than it would take to hand it over.
    """
    chain = _Chain(params={"binary": False, "sublinear": False, "norm": None, "scale": 1.0})
    at, place = last, 0
    while True:
        node = graph.nodes[at]
        if node.op == "normalise":
            chain.texts = at
            return chain if place == len(_ORDER) else None
        step = _step(node)
        if step not in _ORDER[place:]:
            return None
        place = _ORDER.index(step) + 1
        _take(chain, node)
        at = node.inputs[0]


def _step(node: Node) -> str:
    return "lookup" if node.op in _COUNTS else node.op


def _take(chain: _Chain, node: Node) -> None:
    if node.op == "factor":
        chain.params["scale"] = float(node.param("by"))
    elif node.op in {"binary", "sublinear"}:
        chain.params[node.op] = True
    elif node.op == "idf":
        chain.constants["idf"] = node.constants["idf"]
    elif node.op == "norm":
        chain.params["norm"] = node.param("norm")
    elif node.op in _COUNTS:
        chain.constants |= dict(node.constants)
        chain.params |= dict(node.params)
    else:
        chain.params |= dict(node.params)


def _fuse_score(graph: Graph) -> Graph:
    """A text chain that a dot product reads becomes one `score`, which makes no matrix."""
    chains: dict[int, tuple[Node, ...]] = {}
    for i, node in enumerate(graph.nodes):
        if node.op != "dot":
            continue
        chain = _chain_from(graph, node.inputs[0])
        if chain is not None:
            inputs = (chain.texts, *node.inputs[1:])
            chains[i] = (_fused("score", chain, inputs, {"weights": node.constants["weights"]}, node.origin),)
    return rebuilt(graph, chains) if chains else graph


def _fuse_features(graph: Graph) -> Graph:
    """Any other text chain becomes one `features`, which makes the CSR matrix."""
    readers, answers = graph.readers(), set(graph.outputs.values())
    chains: dict[int, tuple[Node, ...]] = {}
    for i, node in enumerate(graph.nodes):
        if _step(node) not in _ORDER[:-1]:
            continue
        goes_on = readers[i] and all(_step(graph.nodes[one]) in _ORDER for one in readers[i]) and i not in answers
        chain = None if goes_on else _chain_from(graph, i)
        if chain is not None:
            chains[i] = (_fused("features", chain, (chain.texts,), {}, node.origin),)
    return rebuilt(graph, chains) if chains else graph


def _fused(op: str, chain: _Chain, inputs: tuple[int, ...], more: Mapping[str, Any], origin: str) -> Node:
    weighted = chain.params["norm"] is not None or chain.params["sublinear"] or "idf" in chain.constants
    kept = (
        op == "features" and not weighted and chain.params["scale"] == 1.0
    )  # whole numbers stay what they are until they are weighted
    params = {**chain.params, "dtype": chain.params["dtype"] if kept else "float64"}
    return Node(op=op, inputs=inputs, params=params, constants={**chain.constants, **more}, origin=origin)


SCORE = Rule(name="fuse-score", words="text to scores in one call of the kernel, no matrix", apply=_fuse_score)
FEATURES = Rule(name="fuse-features", words="text to a sparse matrix in one call of the kernel", apply=_fuse_features)
