"""Heads in float32, where somebody asks for it: weights, products and sums of linear heads over text.

Features (counts, idf, norm) stay float64, and so do intercepts and links. A plan with such heads is no longer its
original; what it is off by is measured against its own float64 heads, which answer as the original does, and is told
wherever the plan is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamserve.core.messages import F64
from streamserve.errors import PlanError
from streamserve.plan.compile import Plan
from streamserve.plan.graph import Constant, Graph, Node
from streamserve.plan.physical import Layout, taken
from streamserve.plan.sampling import sample_rows
from streamserve.plan.verify import differing_rows, is_exact

_HEADS = frozenset({"score", "dot"})
#: What is compared, the first that a plan has: probabilities hide what is far from the border.
_SCORES = ("decision_function", "predict_proba", "predict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """What heads in float32 were off by, on so many rows."""

    rows: int
    output: str
    """What was compared: `decision_function`, else `predict_proba`, else values."""
    absolute: float
    """The largest difference."""
    relative: float
    """The largest difference as a part of the float64 value."""
    labels_changed: float
    """Share of the rows with another label; 0 for a regressor."""

    def words(self) -> str:
        """For people."""
        labels = "" if self.output == "predict" else f"; labels that change {self.labels_changed:.2%}"
        return (
            f"heads in float32: {self.output} off by at most {self.absolute:.2g}, relative {self.relative:.2g}"
            f"{labels} ({self.rows} rows)"
        )


def precision_of(plan: Plan) -> str:
    """`f32` where any head is."""
    narrow = any(node.op in _HEADS and node.array("weights").dtype == np.float32 for node in plan.graph.nodes)
    return "f32" if narrow else "f64"


def narrowed(plan: Plan, rows: Any = None) -> tuple[Plan, Error]:
    """The plan with heads in float32, and what they are off by on these rows (None: generated ones).

    Raises `PlanError` where float32 means nothing: no linear head over text, a black box, weights beyond its range,
    or heads that are float32 already.
    """
    _refuse(plan)
    graph = plan.graph
    changed = tuple(_narrow(node) if node.op in _HEADS else node for node in graph.nodes)
    whole = Graph(nodes=changed, outputs=graph.outputs, form=graph.form)
    narrow = replace(plan, graph=whole, layout=Layout(whole, plan.layout.choice))
    error = error_of(plan, narrow, sample_rows(plan.imported or graph) if rows is None else rows)
    return replace(narrow, error=error), error


def _refuse(plan: Plan) -> None:
    ops = {node.op for node in plan.graph.nodes}
    if precision_of(plan) == "f32":
        raise PlanError("its heads are float32 already")
    if plan.black_boxes or "opaque" in ops:
        raise PlanError(
            f'precision = "f32" has no meaning for a black box ({next(iter(plan.black_boxes), "") or "the model"}): '
            "its arithmetic is its own; leave precision out"
        )
    if "normalise" not in ops or not ops & _HEADS:
        raise PlanError(
            'precision = "f32" is for linear heads over text, and this plan has none (trees and columns keep their '
            "original's arithmetic); leave precision out"
        )


def _narrow(node: Node) -> Node:
    wide = node.array("weights")
    with np.errstate(over="ignore"):
        weights = wide.astype(np.float32)
    if not np.array_equal(np.isfinite(weights), np.isfinite(wide)):
        raise PlanError(f"{node.origin or 'its head'} has weights beyond the range of float32; leave precision out")
    return replace(node, constants={**node.constants, "weights": Constant(weights)})


def error_of(wide: Plan, narrow: Plan, rows: Any) -> Error:
    """What `narrow` is off by on those of the rows that are not refused."""
    output = next(name for name in _SCORES if name in narrow.outputs)
    asked = tuple({output, "predict"})
    refused = wide.run(rows, asked).refused
    kept = taken(rows, [i for i in range(len(rows)) if i not in refused])
    expected, found = wide.run(kept, asked).values, narrow.run(kept, asked).values
    exact: F64 = np.asarray(expected[output], dtype=np.float64)
    off, size = np.abs(np.asarray(found[output], dtype=np.float64) - exact), np.abs(exact)
    relative = np.divide(off, size, out=np.zeros_like(off), where=size > 0)
    changed = found["predict"] != expected["predict"] if output != "predict" else np.zeros(len(off), dtype=bool)
    return Error(
        rows=len(kept),
        output=output,
        absolute=float(off.max(initial=0.0)),
        relative=float(relative.max(initial=0.0)),
        labels_changed=float(changed.mean()) if len(changed) else 0.0,
    )


def differing(one: Plan, other: Plan, rows: Any) -> str:
    """Where two plans with heads in float32 differ, in words; empty where they are equal to the bit."""
    if one.outputs != other.outputs:
        return f"it answers {', '.join(one.outputs)}, not {', '.join(other.outputs)}"
    some, others = (plan.run(rows, plan.outputs) for plan in (one, other))
    if some.refused != others.refused:
        return "they refuse different rows"
    for output in one.outputs:
        wrong = differing_rows(others.values[output], some.values[output], exact=is_exact(one.graph))
        if wrong.any():
            return f"row {int(wrong.argmax())}, {output}"
    return ""
