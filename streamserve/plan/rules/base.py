"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamserve.plan.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rewriting of the graph that keeps its meaning."""

    name: str
    words: str
    """What it does, for `plan explain`."""
    apply: Callable[[Graph], Graph]
    """The graph rewritten wherever it applies; the same object where it applies nowhere."""
