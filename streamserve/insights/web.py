"""What the web view answers: the newest rows, as they were published, by route, model and context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamserve.insights.board import Board

_MOST_WINDOWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which rows; None: all. A model or context of "" is the route's own row, or that of all requests."""

    route: str | None = None
    model: str | None = None
    context: str | None = None
    windows: int = 10
    """How many windows, the newest."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Question:
        """From the parameters of a request; what is no number counts as left out."""
        windows = query.get("windows", "")
        return cls(
            route=query.get("route"),
            model=query.get("model"),
            context=query.get("context"),
            windows=min(_MOST_WINDOWS, int(windows)) if windows.isdigit() else cls().windows,
        )

    def wants(self, route: str, model: str, context: str) -> bool:
        asked = ((self.route, route), (self.model, model), (self.context, context))
        return all(wanted is None or wanted == found for wanted, found in asked)


def view(app: str, board: Board, question: Question) -> dict[str, Any]:
    """The page, as plain values: newest window first."""
    rows = [row for row in board.rows() if question.wants(row.route, row.model, row.context)]
    newest = sorted({row.from_ms for row in rows}, reverse=True)[: question.windows]
    shown = [row for row in rows if row.from_ms in newest]
    left_out: dict[str, int] = {}
    for slice_ in board.slices.values():
        for why, n in slice_.left_out.items():
            left_out[why] = left_out.get(why, 0) + n
    return {
        "app": app,
        "rows": [board.row(row) for row in sorted(shown, key=lambda row: (-row.from_ms, row))],
        "left_out": left_out,
    }
