"""What a run leaves behind: each text with what the three routes and the four pipelines said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: (partition, offset) of a request.
Ref = tuple[int, int]

CONTEXTS, PLAIN, CEILING = "contexts", "plain", "ceiling"
ROUTES = (CONTEXTS, PLAIN, CEILING)


@dataclass(slots=True, kw_only=True)
class Text:
    """One text that was sent, once to each route."""

    domain: str
    truth: int
    sent_s: float
    answers: dict[str, int | None] = field(default_factory=dict)
    """Route -> its answer, of its first terminal record; None where that has none."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Model id -> 0 (right) or 1 (wrong), by its label: from the outcomes topic."""


@dataclass(slots=True, kw_only=True)
class Recording:
    """Filled in while the run goes on."""

    seconds: float
    models: tuple[str, ...]
    texts: list[Text] = field(default_factory=list)
    refs: dict[Ref, tuple[int, str]] = field(default_factory=dict)
    """Request -> index of its text, and its route; those that the broker acknowledged."""
    refused: int = 0
    repeated: int = 0
    """Terminal records beyond the first of a request."""
    labels_sent: int = 0
    labels_learnt: int = 0
    """Outcomes of the routes that learn; one for each feedback, of its most special context."""
    states: dict[str, int] = field(default_factory=dict)
    """Learnt state (`route` or `route/context`) -> how often it was published."""
