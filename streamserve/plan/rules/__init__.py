"""The rules, in the order in which they are tried, and `rewrite`, which applies them until nothing changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from streamserve.errors import PlanError
from streamserve.plan.graph import Graph
from streamserve.plan.rules import dense, fuse, linear, structure
from streamserve.plan.rules.base import Rule

RULES = (
    structure.FLATTEN,
    structure.SPLIT,
    structure.SHARE,
    linear.PUSH,
    linear.DROP,
    fuse.SCORE,
    fuse.FEATURES,
    dense.CHECKS,
    dense.CHAIN,
    dense.ENCODE,
)
#: Passes over all rules; every rule makes the graph simpler, so this many are never needed.
_MOST_PASSES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A rule that changed something, and the graph after it."""

    rule: Rule
    graph: Graph


def rewrite(graph: Graph, disabled: Collection[str] = ()) -> tuple[Fired, ...]:
    """What fired, in order; the last one's graph is the result, the graph itself where nothing did.

    Raises `PlanError` for a name in `disabled` that is no rule's.
    """
    unknown = sorted(set(disabled) - {rule.name for rule in RULES})
    if unknown:
        raise PlanError(f"no rule {', '.join(unknown)}; the rules are {', '.join(rule.name for rule in RULES)}")
    fired: list[Fired] = []
    for _ in range(_MOST_PASSES):
        before = len(fired)
        for rule in RULES:
            if rule.name in disabled:
                continue
            after = rule.apply(graph)
            if after is not graph:
                fired.append(Fired(rule=rule, graph=after))
                graph = after
        if len(fired) == before:
            break
    return tuple(fired)
