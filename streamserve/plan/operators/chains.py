"""A chain of checks and arithmetic on columns, as a rule makes it of single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import F64, I64
from streamserve.plan.graph import Constant, Node
from streamserve.plan.kernels import dense as kernel
from streamserve.plan.operators import columns
from streamserve.plan.operators.base import operator

STEPS = ("floats", "subtract", "divide", "times", "plus", "clip")
_MEANINGS = {
    "floats": columns.floats,
    "subtract": columns.subtract,
    "divide": columns.divide,
    "times": columns.times,
    "plus": columns.plus,
    "clip": columns.clip,
}
_CODES = {
    "subtract": kernel.SUBTRACT,
    "divide": kernel.DIVIDE,
    "times": kernel.TIMES,
    "plus": kernel.PLUS,
    "clip": kernel.CLIP,
}


@operator("chain", shape="dense")
def chain(node: Node, inputs: Sequence[Any]) -> Any:
    """Its steps, one after the other."""
    value: Any = inputs[0]
    for step in steps_of(node):
        value = _MEANINGS[step.op](step, [value])
    return value


def steps_of(node: Node) -> list[Node]:
    """The single operators that a chain was made of."""
    steps = []
    for i, (op, params) in enumerate(node.param("steps")):
        names = dict(params)
        constants = {"by": node.constants[f"by{i}"]} if f"by{i}" in node.constants else {}
        steps.append(Node(op=op, params=names, constants=constants, origin=node.origin))
    return steps


def members_of(node: Node) -> list[Node]:
    """The chains of a `chained_heads`, a model each."""
    steps, first = node.param("steps"), 0
    ends = []
    for op, _ in steps:
        first += _rows_of(op)
        ends.append(first)
    operands = node.array("operands")
    members = []
    for own in operands:
        constants = {f"by{i}": Constant(own[ends[i] - 1]) for i, (op, _) in enumerate(steps) if _rows_of(op) == 1}
        members.append(Node(op="chain", params={"steps": steps}, constants=constants, origin=node.origin))
    return members


def _rows_of(op: str) -> int:
    """Rows of operands that a step has."""
    return 0 if op == "floats" else 2 if op == "clip" else 1


def joined(steps: Sequence[Node], source: int) -> Node:
    """One chain of single operators."""
    params = tuple((step.op, tuple(sorted(step.params.items()))) for step in steps)
    constants: dict[str, Constant] = {f"by{i}": s.constants["by"] for i, s in enumerate(steps) if "by" in s.constants}
    return Node(op="chain", inputs=(source,), params={"steps": params}, constants=constants, origin=steps[-1].origin)


def codes_of(node: Node) -> tuple[I64, F64]:
    """What the kernel reads: a code a step, and the operands, a row each (of `clip` two)."""
    codes, rows = [], []
    steps = steps_of(node)
    width = max((len(step.array("by")) for step in steps if "by" in step.constants), default=1)
    for step in steps:
        if step.op == "floats":
            codes.append(kernel.CHECK_NAN if step.param("allow_nan") else kernel.CHECK)
            continue
        codes.append(_CODES[step.op])
        bounds = ("low", "high") if step.op == "clip" else ()
        rows += [np.full(width, step.param(name)) for name in bounds] or [step.array("by")]
    return np.array(codes, dtype=np.int64), np.array(rows, dtype=np.float64).reshape(len(rows), width)
