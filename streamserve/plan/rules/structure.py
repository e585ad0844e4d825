"""Rules about the shape of the graph: flatten, share, split."""

from __future__ import annotations

from dataclasses import replace

from streamserve.plan.graph import Graph, Node, pruned, rebuilt
from streamserve.plan.operators.text import parts
from streamserve.plan.rules.base import Rule


def _flatten(graph: Graph) -> Graph:
    """A concatenation that only another one reads becomes part of it."""
    readers = graph.readers()
    answers = set(graph.outputs.values())
    for i, node in enumerate(graph.nodes):
        if node.op != "concat":
            continue
        inputs: list[int] = []
        for source in node.inputs:
            inner = graph.nodes[source]
            only_here = len(readers[source]) == 1 and source not in answers
            if inner.op == "concat" and only_here and inner.param("keeps") in {"any", node.param("keeps")}:
                inputs += inner.inputs
            else:
                inputs.append(source)
        if len(inputs) != len(node.inputs):
            return rebuilt(graph, {i: (replace(node, inputs=tuple(inputs)),)})
    return graph


def _share(graph: Graph) -> Graph:
    """Nodes that do the same to the same become one."""
    first: dict[str, int] = {}
    place: dict[int, int] = {}
    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        key = graph.keys[i]
        if key not in first:
            first[key] = len(nodes)
            nodes.append(replace(node, inputs=tuple(place[source] for source in node.inputs)))
        place[i] = first[key]
    if len(nodes) == len(graph.nodes):
        return graph
    outputs = {name: place[node] for name, node in graph.outputs.items()}
    return pruned(Graph(nodes=tuple(nodes), outputs=outputs, form=graph.form))


def _split(graph: Graph) -> Graph:
    """A vectoriser becomes lower-casing, n-grams, look-up, weights and norm."""
    chains = {}
    for i, node in enumerate(graph.nodes):
        if node.op == "vectorise":
            first, *rest = parts(node)
            linked = [replace(part, inputs=(-1 - before,)) for before, part in enumerate(rest)]
            chains[i] = (replace(first, inputs=node.inputs), *linked)
    return rebuilt(graph, chains) if chains else graph


FLATTEN = Rule(name="flatten", words="concatenations of concatenations become one", apply=_flatten)
SPLIT = Rule(name="split-vectorisers", words="vectorisers become their single steps", apply=_split)
SHARE = Rule(name="share-equal", words="nodes that do the same to the same become one", apply=_share)
