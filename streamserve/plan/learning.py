"""A head learnt further: labelled texts change the weights of a plan's linear head, and nothing else of it.

One step of stochastic gradient descent a row, on the log loss, at a constant rate and without a penalty: what
scikit-learn's `SGDClassifier(loss="log_loss", penalty=None, learning_rate="constant")` does with dense rows
(`linear_model/_sgd_fast.pyx.tp`; of sparse ones the intercept learns a hundredth as fast). Vocabularies, idf and all
else keep their hashes, so a store has them once and the plan runs in one pass with the one that it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit

from streamserve.core.messages import F64, I64, AnyArray
from streamserve.errors import PlanError
from streamserve.plan.compile import Plan
from streamserve.plan.graph import Constant, Graph
from streamserve.plan.operators import RowsRefused
from streamserve.plan.operators.fused import stage_of
from streamserve.plan.physical import Layout

_ONE_HEAD = (
    "only the head of a text classifier of two classes with a logistic function (LogisticRegression, SGDClassifier "
    "with log_loss) can be learnt further"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What became of some rows."""

    rows: int
    right: int
    """Rows whose label the head would have given before it learnt from them."""


class HeadLearner:
    """Learns the head of a plan; the plan itself stays as it is. Raises `PlanError` for a head that it cannot learn."""

    def __init__(self, plan: Plan, *, rate: float) -> None:
        """`rate`: how far one row moves the weights; values of a row that is normalised to length 1 want about 0.5."""
        if plan.error is not None:
            raise PlanError(
                "its head is float32; learn from the plan with the float64 one, and narrow what comes of it"
            )
        self._plan, self._rate = plan, rate
        self._intercept_at, self._blocks = _head_of(plan)
        nodes = plan.graph.nodes
        self._stages = [stage_of(nodes[i]) for i in self._blocks]
        self._weights: list[F64] = [np.array(nodes[i].array("weights")[:, 0]) for i in self._blocks]
        self._intercept = float(nodes[self._intercept_at].array("intercept").reshape(-1)[0])
        classes = plan.classes
        assert classes is not None  # `_head_of` has seen to it
        self._number = {one: i for i, one in enumerate(classes.tolist())}

    def knows(self, label: Any) -> bool:
        """Whether it is one of the plan's classes."""
        return isinstance(label, str | int | float) and label in self._number

    def learn(self, texts: Sequence[str], labels: Sequence[Any]) -> Learnt:
        """One step a row, in order. Raises `PlanError` for a label or a row that the plan does not know; then none of
        these rows is learnt from."""
        unknown = [(i, label) for i, label in enumerate(labels) if label not in self._number]
        if unknown:
            row, label = unknown[0]
            raise PlanError(f"row {row}: {label!r} is no class of this plan; its classes: {list(self._number)}")
        blocks, right = self._features(texts), 0
        for row, label in enumerate(labels):
            parts = [
                (ids[ends[row] : ends[row + 1]], values[ends[row] : ends[row + 1]]) for ids, values, ends in blocks
            ]
            score = self._intercept
            for weights, (ids, values) in zip(self._weights, parts, strict=True):
                score += float(values @ weights[ids])
            number = self._number[label]
            right += (score > 0) == bool(number)
            step = self._rate * (float(expit(score)) - number)
            for weights, (ids, values) in zip(self._weights, parts, strict=True):
                weights[ids] -= step * values
            self._intercept -= step
        return Learnt(rows=len(labels), right=right)

    def _features(self, texts: Sequence[str]) -> list[tuple[AnyArray, F64, I64]]:
        """Of each block: ids and values of all rows, and where each row begins."""
        try:
            values = self._plan.layout.values(np.array(texts, dtype=object), ("predict",))
        except RowsRefused as refusal:
            raise PlanError(f"row {int(refusal.rows.argmax())}: {refusal.words}") from refusal
        nodes = self._plan.graph.nodes
        found = [stage.rows(values[nodes[i].inputs[0]]) for i, stage in zip(self._blocks, self._stages, strict=True)]
        return [(np.array(ids), np.array(numbers, dtype=np.float64), ends) for ids, numbers, ends in found]

    @property
    def changed(self) -> int:
        """Features whose weights are not those of the plan."""
        nodes = self._plan.graph.nodes
        return sum(
            int(np.count_nonzero(weights != nodes[i].array("weights")[:, 0]))
            for i, weights in zip(self._blocks, self._weights, strict=True)
        )

    def plan(self) -> Plan:
        """The plan with the head as it is now."""
        nodes = list(self._plan.graph.nodes)
        for i, weights in zip(self._blocks, self._weights, strict=True):
            nodes[i] = replace(nodes[i], constants={**nodes[i].constants, "weights": Constant(weights[:, None].copy())})
        at = self._intercept_at
        shape = nodes[at].array("intercept").shape
        nodes[at] = replace(nodes[at], constants={"intercept": Constant(np.full(shape, self._intercept))})
        graph = Graph(nodes=tuple(nodes), outputs=self._plan.graph.outputs, form=self._plan.graph.form)
        layout = Layout(graph, self._plan.layout.choice)
        rules = self._plan.rules or tuple(fired.rule.name for fired in self._plan.fired)
        return replace(self._plan, graph=graph, layout=layout, fired=(), imported=None, rules=rules)


def _head_of(plan: Plan) -> tuple[int, list[int]]:
    """(the intercept, the scores over each block of features in order). Raises `PlanError`."""
    nodes, outputs = plan.graph.nodes, plan.graph.outputs
    chosen, chances = nodes[outputs["predict"]], nodes[outputs.get("predict_proba", outputs["predict"])]
    is_logistic = chosen.op == "choose" and chances.op == "logistic" and not chances.params.get("doubled")
    if plan.graph.form.kind != "text" or not is_logistic or chosen.inputs != chances.inputs:
        raise PlanError(_ONE_HEAD)
    intercept = chosen.inputs[0]
    blocks: list[int] = []
    at = nodes[intercept].inputs[0] if nodes[intercept].op == "intercept" else intercept
    while nodes[at].op == "score" and nodes[at].array("weights").shape[1] == 1:
        blocks.append(at)
        if len(nodes[at].inputs) == 1:
            return intercept, blocks[::-1]
        at = nodes[at].inputs[1]
    raise PlanError(_ONE_HEAD)
