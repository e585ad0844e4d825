"""Rules about dense columns."""

from __future__ import annotations

from dataclasses import replace

from streamserve.plan.graph import Graph, Node, rebuilt
from streamserve.plan.operators.chains import STEPS, joined
from streamserve.plan.rules.base import Rule
from streamserve.plan.shapes import shapes

_DENSE = frozenset({"dense", "rows", "scores", "answers"})
#: Operators that make a sparse matrix of columns, and those that make the same as an array.
_AS_ARRAYS = {"one_hot": "dense_one_hot", "places": "dense_places"}


def _fuse_chain(graph: Graph) -> Graph:
    """Checks and arithmetic on the columns of an array, one after the other, become one pass."""
    kinds, readers, answers = shapes(graph), graph.readers(), set(graph.outputs.values())

    def step(i: int) -> bool:
        return graph.nodes[i].op in STEPS and kinds[i] in _DENSE

    chains: dict[int, tuple[Node, ...]] = {}
    for i in range(len(graph.nodes)):
        goes_on = len(readers[i]) == 1 and step(readers[i][0]) and i not in answers
        if not step(i) or goes_on:
            continue
        members = [i]
        source = graph.nodes[i].inputs[0]
        while step(source) and len(readers[source]) == 1 and source not in answers:
            members.append(source)
            source = graph.nodes[source].inputs[0]
        steps = [graph.nodes[member] for member in reversed(members)]
        if len(steps) > 1 and any("by" in one.constants for one in steps):
            chains[i] = (joined(steps, source),)
    return rebuilt(graph, chains) if chains else graph


def _skip_checks(graph: Graph) -> Graph:
    """A check of what the same or a stricter check has let through goes."""
    for i, node in enumerate(graph.nodes):
        if node.op != "floats":
            continue
        source = graph.nodes[node.inputs[0]]
        if source.op == "floats" and (node.param("allow_nan") or not source.param("allow_nan")):
            readers = graph.readers()
            nodes = {
                reader: (
                    replace(
                        graph.nodes[reader],
                        inputs=tuple(node.inputs[0] if one == i else one for one in graph.nodes[reader].inputs),
                    ),
                )
                for reader in readers[i]
            }
            return rebuilt(graph, nodes) if i not in graph.outputs.values() else graph
    return graph


def _dense_encode(graph: Graph) -> Graph:
    """A one-hot matrix that becomes dense at once is made dense."""
    readers, answers = graph.readers(), set(graph.outputs.values())
    changed: dict[int, tuple[Node, ...]] = {}
    for i, node in enumerate(graph.nodes):
        reads = [graph.nodes[reader] for reader in readers[i]]
        dense = reads and all(one.op == "concat" and one.param("keeps") == "dense" for one in reads)
        if node.op in _AS_ARRAYS and dense and i not in answers:
            changed[i] = (replace(node, op=_AS_ARRAYS[node.op]),)
    return rebuilt(graph, changed) if changed else graph


ENCODE = Rule(name="dense-encode", words="one-hot matrices that become dense are made dense", apply=_dense_encode)
CHAIN = Rule(name="fuse-chain", words="checks and arithmetic on columns become one pass", apply=_fuse_chain)
CHECKS = Rule(name="skip-checks", words="what was checked is not checked again", apply=_skip_checks)
