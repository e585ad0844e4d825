"""A group of plans with another head for one of them: its column is written anew, beside what is running.

The block of merged weights is copied with that column changed, and a new group made around the copy; whoever runs the
old one goes on with the old block. Others' columns keep their bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from streamserve.plan.compile import Plan
from streamserve.plan.graph import DIGEST_BYTES, Constant, Graph, Node
from streamserve.plan.physical import Layout
from streamserve.plan.sharing import Group, named

#: The constant of each operator that a head consists of.
PARTS = {"score": "weights", "intercept": "intercept"}


def with_head(group: Group, model: str, plan: Plan) -> Group:
    """The group with this plan in the place of the model's, from which it differs in its head alone.

    Raises `PlanDiffers` where the model would answer otherwise than alone.
    """
    plans = {**group.plans, model: plan}
    graph = _written_anew(group, model, plan)
    return Group(plans, graph=graph, compared=(model,) if graph is not None else None)


def same_but_head(one: Plan, other: Plan) -> bool:
    """Whether two plans differ in weights and intercept of linear heads alone, those of one form."""
    mine, theirs = one.graph, other.graph
    if len(mine.nodes) != len(theirs.nodes) or mine.outputs != theirs.outputs or mine.form != theirs.form:
        return False
    return all(_alike(a, b) for a, b in zip(mine.nodes, theirs.nodes, strict=True))


def headed(plan: Plan, head_of: Plan) -> Plan:
    """The plan with the head of another that differs in nothing else; all other arrays are its own."""
    nodes = [
        replace(node, constants={**node.constants, PARTS[node.op]: other.constants[PARTS[node.op]]})
        if node.op in PARTS and PARTS[node.op] in node.constants
        else node
        for node, other in zip(plan.graph.nodes, head_of.graph.nodes, strict=True)
    ]
    graph = Graph(nodes=tuple(nodes), outputs=plan.graph.outputs, form=plan.graph.form)
    return replace(plan, graph=graph, layout=Layout(graph, plan.layout.choice), fired=(), imported=None)


def _alike(one: Node, other: Node) -> bool:
    if (one.op, one.inputs, dict(one.params)) != (other.op, other.inputs, dict(other.params)):
        return False
    if one.constants.keys() != other.constants.keys() or one.opaque is not other.opaque:
        return False
    free = PARTS.get(one.op)
    return all(
        (kept.array.shape, kept.array.dtype) == (other.array(name).shape, other.array(name).dtype)
        if name == free
        else kept.digest == other.constants[name].digest
        for name, kept in one.constants.items()
    )


def _written_anew(group: Group, model: str, plan: Plan) -> Graph | None:
    """None where the model has no column of its own, or its head stands elsewhere than alone."""
    places = _places(group.graph, group.graph.outputs[named(model, "predict")])
    alone = _places(plan.graph, plan.graph.outputs["predict"])
    if places is None or alone is None or len(places) != len(alone):
        return None
    others = {
        place
        for other, one in group.plans.items()
        if other != model
        for place in _places(group.graph, group.graph.outputs[named(other, "predict")]) or ()
    }
    nodes = list(group.graph.nodes)
    for (at, column), (mine, first) in zip(places, alone, strict=True):
        part, node, new = PARTS[nodes[at].op], nodes[at], plan.graph.nodes[mine]
        if (at, column) in others or nodes[at].op != new.op or first:
            return None
        nodes[at] = replace(
            node, constants={**node.constants, part: _changed(node.constants[part], column, new.constants[part])}
        )
    return Graph(nodes=tuple(nodes), outputs=group.graph.outputs, form=group.graph.form)


def _places(graph: Graph, at: int) -> list[tuple[int, int]] | None:
    """Nodes of a head and its column in each, from the answer down; None where a step is none of a linear head."""
    found: list[tuple[int, int]] = []
    column = 0
    while True:
        node = graph.nodes[at]
        if node.op == "heads":
            column += int(node.param("first"))
        elif node.op in PARTS:
            found.append((at, column))
        elif node.op != "choose":
            return None
        if node.op == "score" and len(node.inputs) == 1:
            return found
        at = node.inputs[1 if node.op == "score" else 0]


def _changed(kept: Constant, column: int, new: Constant) -> Constant:
    """A copy with one column changed. Its hash is made of what it was made of: to hash a block takes longer."""
    array: Any = np.array(kept.array)
    if array.ndim == 2:
        array[:, column] = new.array[:, 0]
    else:
        array.reshape(-1)[column] = new.array.reshape(-1)[0]
    made_of = f"{kept.digest} {column} {new.digest}"
    return Constant(array, hashlib.blake2b(made_of.encode(), digest_size=DIGEST_BYTES).hexdigest())
