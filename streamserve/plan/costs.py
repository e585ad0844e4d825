"""What stages cost: the fastest variant for each batch size is chosen by measuring, not by rules of thumb."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from streamserve.plan.compile import Plan
from streamserve.plan.graph import Node
from streamserve.plan.physical import SIZES, Layout, variants_of
from streamserve.plan.sampling import sample_rows

_REPEATS = 7
#: A variant must be this much faster than the first one to be taken instead: less is noise.
_MARGIN = 0.9


def timed(call: Callable[[Any], Any], rows: Any, size: int, repeats: int = _REPEATS) -> float:
    """Median seconds of a call on batches of `size` rows, cycled from `rows`, after one that is not counted."""
    batch = cycled(rows, size)
    call(batch)
    spent = []
    for _ in range(repeats if size > SIZES[0] else 5 * repeats):
        started_s = time.perf_counter()
        call(batch)
        spent.append(time.perf_counter() - started_s)
    return statistics.median(spent)


def cycled(rows: Any, size: int) -> Any:
    """`size` rows, again from the first where there are fewer."""
    if isinstance(rows, np.ndarray):
        return rows[np.arange(size) % len(rows)]
    return [rows[i % len(rows)] for i in range(size)]


def chosen(plan: Plan, rows: Any = None) -> Plan:
    """The plan with the fastest variant of each stage for batches of 1, 10 and 1000 rows."""
    open_stages = [i for i, node in enumerate(plan.graph.nodes) if len(variants_of(node)) > 1]
    if not open_stages:
        return plan
    tried = sample_rows(plan.graph, odd=False) if rows is None else rows
    choice = dict(plan.layout.choice)
    for i in open_stages:
        names = [variant.name for variant in variants_of(plan.graph.nodes[i])]
        layouts = {name: Layout(plan.graph, {**choice, i: (name,) * len(SIZES)}) for name in names}
        picked = []
        for size in SIZES:
            costs = {name: _stage_seconds(layout, plan.outputs, tried, size, i) for name, layout in layouts.items()}
            best = min(costs, key=lambda name: costs[name])
            picked.append(best if costs[best] < _MARGIN * costs[names[0]] else names[0])
        choice[i] = tuple(picked)
    return replace(plan, layout=Layout(plan.graph, choice))


def _stage_seconds(layout: Layout, outputs: tuple[str, ...], rows: Any, size: int, stage: int) -> float:
    batch = cycled(rows, size)
    layout.seconds(batch, outputs)
    return statistics.median(layout.seconds(batch, outputs)[stage] for _ in range(_REPEATS))


def black_box_share(plan: Plan, rows: Any) -> float:
    """The part of the time of a batch of 1000 rows that black boxes take."""
    spent = plan.layout.seconds(cycled(rows, SIZES[-1]), plan.outputs)
    return sum(s for i, s in spent.items() if plan.graph.nodes[i].op == "opaque") / (sum(spent.values()) or 1.0)


def shares(plan: Plan, rows: Any) -> list[tuple[str, float]]:
    """Each stage and its share of the time of a batch of 1000 rows, the largest first."""
    spent = plan.layout.seconds(cycled(rows, SIZES[-1]), plan.outputs)
    total = sum(spent.values()) or 1.0
    named = [
        (f"%{i} {_called(plan.graph.nodes[i])} ({plan.graph.nodes[i].origin})", s / total) for i, s in spent.items()
    ]
    return sorted(named, key=lambda pair: -pair[1])


def _called(node: Node) -> str:
    return f"opaque {node.param('kind')}" if node.op == "opaque" else node.op
