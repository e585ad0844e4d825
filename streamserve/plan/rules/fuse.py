"""Rules that make one kernel call of a chain of text operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streamserve.plan.graph import Graph, Node, rebuilt
from streamserve.plan.rules.base import Rule

#: Operators of a text chain, last first: the order in which the kernel does them, backwards.
_ORDER = ("factor", "norm", "idf", "sublinear", "binary", "lookup", "ngrams")


@dataclass(slots=True)
class _Chain:
    """A chain that ends (looked at backwards) at lower-cased text."""

    texts: int = -1
    params: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    members: int = 0


def _chain_from(graph: Graph, last: int, readers: list[list[int]], answers: set[int]) -> _Chain | None:
    """The chain whose last operator is a node; None where it is none, or somebody else reads a part of it."""
    chain = _Chain(params={"binary": False, "sublinear": False, "norm": None, "scale": 1.0})
    at, place = last, 0
    while True:
        node = graph.nodes[at]
        if node.op == "normalise":
            chain.texts = at
            return chain if place == len(_ORDER) else None
        if node.op not in _ORDER[place:] or (at != last and (len(readers[at]) != 1 or at in answers)):
            return None
        place = _ORDER.index(node.op) + 1
        _take(chain, node)
        at = node.inputs[0]


def _take(chain: _Chain, node: Node) -> None:
    chain.members += 1
    if node.op == "factor":
        chain.params["scale"] = float(node.param("by"))
    elif node.op in {"binary", "sublinear"}:
        chain.params[node.op] = True
    elif node.op == "idf":
        chain.constants["idf"] = node.constants["idf"]
    elif node.op == "norm":
        chain.params["norm"] = node.param("norm")
    elif node.op == "lookup":
        chain.constants |= dict(node.constants)
        chain.params["features"] = node.param("features")
        chain.params["dtype"] = node.param("dtype")
    else:
        chain.params |= dict(node.params)


def _fuse_score(graph: Graph) -> Graph:
    """A text chain that a dot product reads becomes one `score`, which makes no matrix."""
    readers, answers = graph.readers(), set(graph.outputs.values())
    chains: dict[int, tuple[Node, ...]] = {}
    for i, node in enumerate(graph.nodes):
        last = node.inputs[0] if node.op == "dot" else -1
        if last < 0 or len(readers[last]) != 1 or last in answers:
            continue
        found = graph.nodes[last]
        if found.op == "features":  # fused already, before its reader was split off
            constants = {**found.constants, "weights": node.constants["weights"]}
            inputs = (*found.inputs, *node.inputs[1:])
            chains[i] = (replace(found, op="score", inputs=inputs, constants=constants, origin=node.origin),)
            continue
        chain = _chain_from(graph, last, readers, answers)
        if chain is not None:
            inputs = (chain.texts, *node.inputs[1:])
            chains[i] = (_fused("score", chain, inputs, {"weights": node.constants["weights"]}, node.origin),)
    return rebuilt(graph, chains) if chains else graph


def _fuse_features(graph: Graph) -> Graph:
    """Any other text chain becomes one `features`, which makes the CSR matrix."""
    readers, answers = graph.readers(), set(graph.outputs.values())
    chains: dict[int, tuple[Node, ...]] = {}
    for i, node in enumerate(graph.nodes):
        ends = node.op in _ORDER[:-1] and not (len(readers[i]) == 1 and graph.nodes[readers[i][0]].op in _ORDER)
        chain = _chain_from(graph, i, readers, answers) if ends else None
        floats = chain is not None and (
            chain.params["norm"] is not None or chain.params["sublinear"] or "idf" in chain.constants
        )
        if chain is not None and (floats or chain.params["dtype"] == "float64"):
            chains[i] = (_fused("features", chain, (chain.texts,), {}, node.origin),)
    return rebuilt(graph, chains) if chains else graph


def _fused(op: str, chain: _Chain, inputs: tuple[int, ...], more: Mapping[str, Any], origin: str) -> Node:
    params = {name: value for name, value in chain.params.items() if name != "dtype"}
    return Node(op=op, inputs=inputs, params=params, constants={**chain.constants, **more}, origin=origin)


SCORE = Rule(name="fuse-score", words="text to scores in one call of the kernel, no matrix", apply=_fuse_score)
FEATURES = Rule(name="fuse-features", words="text to a sparse matrix in one call of the kernel", apply=_fuse_features)
