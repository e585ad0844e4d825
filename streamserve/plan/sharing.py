"""Several plans as one: in a batch what they share runs once, whichever of them are asked.

The graphs of the plans become one graph; equal parts are equal nodes, and heads over the same features one pass with a
column for each model. A model's answers are those it gives alone: text and trees to the bit, dense products to 1e-12.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streamserve.errors import PlanDiffers
from streamserve.plan.compile import Plan
from streamserve.plan.graph import Graph, Node
from streamserve.plan.operators import RowsRefused
from streamserve.plan.physical import Answers, Layout
from streamserve.plan.rules.merge import merged
from streamserve.plan.sampling import sample_rows
from streamserve.plan.verify import differing_rows, is_exact

_log = logging.getLogger(__name__)
_SEPARATOR = "\t"


class Group:
    """Plans over the same form of rows, ready to run together. Threads may share it."""

    def __init__(
        self, plans: Mapping[str, Plan], *, graph: Graph | None = None, compared: Collection[str] | None = None
    ) -> None:
        """`plans` by name. `graph`: theirs, where it is made already; then only those `compared` are.

        Raises `PlanDiffers` where one would answer otherwise than alone, ValueError for forms that differ."""
        forms = {(plan.graph.form.kind, plan.graph.form.columns) for plan in plans.values()}
        if len(forms) != 1:
            raise ValueError("plans of a group take rows of one form")
        self.plans = dict(plans)
        self.graph = graph or merged(_united(self.plans))
        self.layout = Layout(self.graph)
        self._verify(self.plans if compared is None else compared)

    def run(self, rows: Any, asked: Mapping[str, Sequence[str]]) -> dict[str, Answers]:
        """What each of the plans asked says, as `Plan.run` would: `asked` is model -> outputs.

        Where any of them refuses a row they are asked one by one, since a row that one refuses another may answer.
        """
        if len(asked) > 1:
            names = tuple(named(model, output) for model, outputs in asked.items() for output in outputs)
            try:
                values = self.layout.values(rows, names)
            except RowsRefused:
                pass
            else:
                nodes = self.graph.outputs
                return {
                    model: Answers(values={output: values[nodes[named(model, output)]] for output in outputs})
                    for model, outputs in asked.items()
                }
        return {model: self.plans[model].run(rows, outputs) for model, outputs in asked.items()}

    def _verify(self, compared: Collection[str]) -> None:
        first = next(iter(self.plans.values()))
        rows = sample_rows(first.graph, odd=False)
        names = tuple(named(model, output) for model in compared for output in self.plans[model].outputs)
        values = self.layout.run(rows, names).values
        for model in compared:
            plan = self.plans[model]
            alone, exact = plan.run(rows, plan.outputs), is_exact(plan.graph)
            for output in plan.outputs:
                wrong = differing_rows(alone.values[output], values[named(model, output)], exact=exact)
                if wrong.any():
                    raise PlanDiffers(
                        f"{model}, {output}, row {int(wrong.argmax())}: together with others it answers otherwise than "
                        "alone; please report these models"
                    )


def together(plans: Mapping[str, Plan]) -> list[Group]:
    """Groups of those plans that may run together: two or more that take rows of one form.

    A plan with a black box runs alone: foreign code may hang, and would hold the others. So do plans that together
    would answer otherwise than alone.
    """
    forms: dict[tuple[str, int], dict[str, Plan]] = defaultdict(dict)
    for model, plan in plans.items():
        if not plan.black_boxes:
            forms[plan.graph.form.kind, plan.graph.form.columns][model] = plan
    groups = []
    for members in forms.values():
        if len(members) > 1:
            try:
                groups.append(Group(members))
            except PlanDiffers as differs:
                _log.warning("models that could share work run alone: %s", differs)
    return groups


def named(model: str, output: str) -> str:
    """An output of a model, as the united graph calls it."""
    return f"{model}{_SEPARATOR}{output}"


def _united(plans: Mapping[str, Plan]) -> Graph:
    """One graph of all, equal nodes once; outputs are named by model and output."""
    nodes: list[Node] = []
    place_of: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for model, plan in plans.items():
        graph = plan.graph
        place: dict[int, int] = {}
        for i, node in enumerate(graph.nodes):
            key = graph.keys[i]
            if key not in place_of:
                place_of[key] = len(nodes)
                nodes.append(_moved(node, place))
            place[i] = place_of[key]
        outputs |= {named(model, output): place[node] for output, node in graph.outputs.items()}
    return Graph(nodes=tuple(nodes), outputs=outputs, form=next(iter(plans.values())).graph.form)


def _moved(node: Node, place: Mapping[int, int]) -> Node:
    return Node(
        op=node.op,
        inputs=tuple(place[source] for source in node.inputs),
        params=node.params,
        constants=node.constants,
        opaque=node.opaque,
        origin=node.origin,
    )
