"""Rules over the graph of several models: heads that read the same become one pass with a column a model.

They add in the same order as each head alone, so text keeps its bits. They are no part of `RULES`: one model has
nothing to merge.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamserve.plan.graph import Constant, Graph, Node, pruned
from streamserve.plan.operators.chains import codes_of
from streamserve.plan.rules.base import Rule
from streamserve.plan.rules.structure import SHARE

_MOST_PASSES = 20
#: A merged block is memory of its process alone, where the weights it is made of are shared by all.
_MOST_BLOCK_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class _Merge:
    """Nodes that become parts of one: the one, and what stands in the place of each."""

    members: Sequence[int]
    whole: Node
    parts: Sequence[Node]
    """Each reads -1: the whole."""


def _applied(graph: Graph, merges: Iterable[_Merge]) -> Graph:
    """Every merge done. A whole comes where its last member was; a reader of an earlier member moves behind it."""
    nodes = list(graph.nodes)
    outputs = dict(graph.outputs)
    for merge in merges:
        whole = len(nodes)
        nodes.append(merge.whole)
        for member, part in zip(merge.members, merge.parts, strict=True):
            nodes[member] = replace(part, inputs=(whole,))
    return pruned(_ordered(nodes, outputs, graph))


def _ordered(nodes: Sequence[Node], outputs: dict[str, int], graph: Graph) -> Graph:
    """The nodes again in an order in which each comes after those that it reads."""
    place: dict[int, int] = {}
    found: list[Node] = []
    for start in range(len(nodes)):
        waiting = [start]
        while waiting:
            one = waiting[-1]
            missing = [source for source in nodes[one].inputs if source not in place]
            if one in place or not missing:
                waiting.pop()
                if one not in place:
                    place[one] = len(found)
                    found.append(replace(nodes[one], inputs=tuple(place[source] for source in nodes[one].inputs)))
            else:
                waiting += missing
    return Graph(nodes=tuple(found), outputs={name: place[node] for name, node in outputs.items()}, form=graph.form)


def _grouped(graph: Graph, key: Callable[[int, Node], object]) -> list[list[int]]:
    groups: dict[object, list[int]] = defaultdict(list)
    for i, node in enumerate(graph.nodes):
        found = key(i, node)
        if found is not None:
            groups[found].append(i)
    return [members for members in groups.values() if len(members) > 1]


def _part(first: int, count: int, *, ravel: bool, origin: str) -> Node:
    return Node(op="heads", params={"first": first, "count": count, "ravel": ravel}, origin=origin)


def _same_scores(graph: Graph, i: int, node: Node) -> object:
    if node.op != "score" or (len(node.inputs) > 1 and graph.nodes[node.inputs[1]].op != "heads"):
        return None
    others = {name: constant.digest for name, constant in sorted(node.constants.items()) if name != "weights"}
    before = None
    if len(node.inputs) > 1:
        before = graph.nodes[node.inputs[1]].inputs[0]
    kind = node.array("weights").dtype.str
    return json.dumps([dict(sorted(node.params.items())), others, node.inputs[0], before, kind])


def _merge_scores(graph: Graph) -> Graph:
    """Scores of the same texts through the same vocabulary."""
    merges = []
    for found in _grouped(graph, lambda i, node: _same_scores(graph, i, node)):
        members = found
        inputs: tuple[int, ...] = graph.nodes[members[0]].inputs[:1]
        if len(graph.nodes[members[0]].inputs) > 1:
            slices = {i: graph.nodes[graph.nodes[i].inputs[1]] for i in members}
            members = sorted(members, key=lambda i: int(slices[i].param("first")))
            before = slices[members[0]].inputs[0]
            places = [(int(slices[i].param("first")), int(slices[i].param("count"))) for i in members]
            covered = np.cumsum([0, *(count for _, count in places)])
            whole = graph.nodes[before].array("weights").shape[1] if graph.nodes[before].op == "score" else -1
            if [first for first, _ in places] != covered[:-1].tolist() or covered[-1] != whole:
                continue
            inputs = (*inputs, before)
        weights = [graph.nodes[i].array("weights") for i in members]
        if sum(each.nbytes for each in weights) > _MOST_BLOCK_BYTES:
            continue
        node = graph.nodes[members[0]]
        merged = Constant(np.ascontiguousarray(np.concatenate(weights, axis=1)))
        starts = np.cumsum([0, *(each.shape[1] for each in weights)]).tolist()
        merges.append(
            _Merge(
                members,
                replace(node, inputs=inputs, constants={**node.constants, "weights": merged}),
                [
                    _part(starts[k], weights[k].shape[1], ravel=False, origin=graph.nodes[i].origin)
                    for k, i in enumerate(members)
                ],
            )
        )
    return _applied(graph, merges) if merges else graph


def _merge_intercepts(graph: Graph) -> Graph:
    """Intercepts of one column each, side by side."""

    def key(_: int, node: Node) -> object:
        source = graph.nodes[node.inputs[0]] if node.op == "intercept" else None
        one = source is not None and source.op == "heads" and source.param("count") == 1
        return source.inputs[0] if one and source is not None else None

    merges = []
    for members in _grouped(graph, key):
        slices = [graph.nodes[graph.nodes[i].inputs[0]] for i in members]
        source = slices[0].inputs[0]
        wide = graph.nodes[source].array("weights").shape[1]
        if graph.nodes[source].op != "score" or len(members) != wide:
            continue
        plus = np.zeros(wide)
        for i, one in zip(members, slices, strict=True):
            plus[int(one.param("first"))] = graph.nodes[i].array("intercept").reshape(-1)[0]
        whole = Node(op="intercept", inputs=(source,), params={"ravel": False}, constants={"intercept": Constant(plus)})
        parts = [
            _part(int(one.param("first")), 1, ravel=bool(graph.nodes[i].param("ravel")), origin=graph.nodes[i].origin)
            for i, one in zip(members, slices, strict=True)
        ]
        merges.append(_Merge(members, whole, parts))
    return _applied(graph, merges) if merges else graph


def _merge_logistics(graph: Graph) -> Graph:
    """Logistic functions of one column each, side by side."""

    def key(_: int, node: Node) -> object:
        source = graph.nodes[node.inputs[0]] if node.op == "logistic" and not node.params.get("doubled") else None
        one = source is not None and source.op == "heads" and source.param("ravel") and source.param("count") == 1
        return source.inputs[0] if one and source is not None else None

    merges = []
    for members in _grouped(graph, key):
        slices = [graph.nodes[graph.nodes[i].inputs[0]] for i in members]
        parts = [
            Node(op="pair", params={"first": one.param("first")}, origin=graph.nodes[i].origin)
            for i, one in zip(members, slices, strict=True)
        ]
        merges.append(_Merge(members, Node(op="logistics", inputs=slices[0].inputs), parts))
    return _applied(graph, merges) if merges else graph


def _merge_chains(graph: Graph) -> Graph:
    """Linear models of one head, each behind a chain of its own with equal steps over the same columns."""

    def key(_: int, node: Node) -> object:
        if node.op != "linear" or not node.param("ravel") or np.atleast_2d(node.array("coef")).shape[0] != 1:
            return None
        source = graph.nodes[node.inputs[0]]
        if source.op != "chain":
            return None
        return json.dumps([source.inputs, source.param("steps"), node.array("coef").size])

    merges = []
    for members in _grouped(graph, key):
        chains = [graph.nodes[graph.nodes[i].inputs[0]] for i in members]
        operands = np.stack([codes_of(one)[1] for one in chains])
        weights = np.stack([graph.nodes[i].array("coef").reshape(-1) for i in members])
        if operands.shape[2] != weights.shape[1]:
            continue
        plus = np.array([graph.nodes[i].array("intercept").reshape(-1)[0] for i in members])
        whole = Node(
            op="chained_heads",
            inputs=chains[0].inputs,
            params={"steps": chains[0].param("steps")},
            constants={"operands": Constant(operands), "weights": Constant(weights), "intercept": Constant(plus)},
        )
        parts = [_part(k, 1, ravel=True, origin=graph.nodes[i].origin) for k, i in enumerate(members)]
        merges.append(_Merge(members, whole, parts))
    return _applied(graph, merges) if merges else graph


SHARING = (
    SHARE,
    Rule(name="merge-scores", words="heads over one vocabulary become one pass", apply=_merge_scores),
    Rule(name="merge-intercepts", words="intercepts of merged heads are added at once", apply=_merge_intercepts),
    Rule(name="merge-chains", words="linear heads behind equal steps become one pass", apply=_merge_chains),
    Rule(name="merge-logistics", words="logistic functions of merged heads are taken at once", apply=_merge_logistics),
)


def merged(graph: Graph) -> Graph:
    """The graph after every rule of sharing, until nothing changes."""
    for _ in range(_MOST_PASSES):
        before = graph
        for rule in SHARING:
            graph = rule.apply(graph)
        if graph is before:
            break
    return graph
