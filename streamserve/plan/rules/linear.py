"""Rules about linear models over sparse blocks.

A score over CSR rows is a chain of additions in ascending order of features, block after block. So a model over a
concatenation can take block after block itself, in that order, with the same bits: the concatenation goes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamserve.plan.graph import Constant, Graph, Node, rebuilt
from streamserve.plan.kernels.dictionary import build, entries_of
from streamserve.plan.rules.base import Rule
from streamserve.plan.shapes import shapes, widths


def _push(graph: Graph) -> Graph:
    """`linear(concat(a, b))` becomes `intercept(dot(b, dot(a)))`, and `linear(a)` becomes `intercept(dot(a))`."""
    kinds, columns = shapes(graph), widths(graph)
    chains: dict[int, tuple[Node, ...]] = {}
    for i, node in enumerate(graph.nodes):
        if node.op != "linear":
            continue
        source = graph.nodes[node.inputs[0]]
        pushes = source.op == "concat" and kinds[node.inputs[0]] == "sparse"
        blocks = source.inputs if pushes else node.inputs
        coef = np.atleast_2d(node.array("coef"))
        known = sum(columns[block] for block in blocks) == coef.shape[1] and all(columns[block] for block in blocks)
        if known and all(kinds[block] == "sparse" for block in blocks):
            chains[i] = _chain(node, blocks, [columns[block] for block in blocks])
    return rebuilt(graph, chains) if chains else graph


def _chain(node: Node, blocks: tuple[int, ...], columns: list[int]) -> tuple[Node, ...]:
    coef = node.array("coef")
    weights = np.atleast_2d(coef).T
    ends = np.cumsum(columns)
    dots = []
    for place, (block, end, width) in enumerate(zip(blocks, ends, columns, strict=True)):
        own = Constant(np.ascontiguousarray(weights[end - width : end]))
        inputs = (block,) if place == 0 else (block, -place)
        dots.append(Node(op="dot", inputs=inputs, constants={"weights": own}, origin=node.origin))
    last = Node(
        op="intercept",
        inputs=(-len(dots),),
        params={"ravel": bool(node.param("ravel")) or coef.ndim == 1},
        constants={"intercept": node.constants["intercept"]},
        origin=node.origin,
    )
    return (*dots, last)


#: What a look-up may go through on its way to `dot` without one feature's value touching another's.
_ALONE = ("factor", "idf", "sublinear", "binary")


def _drop(graph: Graph) -> Graph:
    """Vocabulary entries whose weights are all zero go, where no norm needs their counts."""
    readers = graph.readers()
    answers = set(graph.outputs.values())
    for i, node in enumerate(graph.nodes):
        if node.op != "dot":
            continue
        path, at = [], node.inputs[0]
        while graph.nodes[at].op in _ALONE and len(readers[at]) == 1 and at not in answers:
            path.append(at)
            at = graph.nodes[at].inputs[0]
        found = graph.nodes[at]
        if found.op != "lookup" or len(readers[at]) != 1:
            continue
        weights = node.array("weights")
        kept = np.flatnonzero(np.any(weights != 0, axis=1))
        if 0 < len(kept) < len(weights):
            return _without(graph, i, at, path, kept)
    return graph


def _without(graph: Graph, dot: int, lookup: int, path: list[int], kept: Any) -> Graph:
    entries = list(entries_of(graph.nodes[lookup].array("arena")))
    arena, slots = build([entries[number] for number in kept])
    found = graph.nodes[lookup]
    shorter = replace(
        found,
        params={**found.params, "features": len(kept)},
        constants={"arena": Constant(arena), "slots": Constant(slots)},
    )
    weights = Constant(graph.nodes[dot].array("weights")[kept])
    changed = {lookup: (shorter,), dot: (replace(graph.nodes[dot], constants={"weights": weights}),)}
    for i in path:
        node = graph.nodes[i]
        if node.op == "idf":
            changed[i] = (replace(node, constants={"idf": Constant(node.array("idf")[kept])}),)
    return rebuilt(graph, changed)


PUSH = Rule(name="push-linear", words="linear models take sparse blocks one after the other, unjoined", apply=_push)
DROP = Rule(
    name="drop-unread", words="vocabulary entries that no head reads go, unless a norm counts them", apply=_drop
)
