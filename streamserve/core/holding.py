"""Answers that wait a moment for those of other models to the same requests: taken in together they cost one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamserve.core.events import AnswersFetched
from streamserve.core.messages import Answers

#: No answer waits longer. Sixteen models on one processor end their calls one after the other within few such spans.
HOLD_MS = 2


class Holding:
    """Law: what comes in goes out once: with the last answer to the same requests that a call is under way for, or when
    something has waited for `HOLD_MS`."""

    def __init__(self, is_called: Callable[[Answers], bool]) -> None:
        """`is_called`: whether another model's call for the very same requests is under way."""
        self._is_called = is_called
        self._held: dict[int, list[Answers]] = {}
        """By their column of offsets, which is one object for all models that were called together."""
        self._since_ms: int | None = None

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def due_ms(self) -> int | None:
        """When all that is held has to go; None: nothing is."""
        return None if self._since_ms is None else self._since_ms + HOLD_MS

    def take(self, blocks: Sequence[Answers], now_ms: int) -> AnswersFetched | None:
        """What need not wait, once these have come."""
        if self._since_ms is None:
            self._since_ms = now_ms
        for block in blocks:
            self._held.setdefault(id(block.offsets), []).append(block)
        return self._let_go([column for column, held in self._held.items() if not self._is_called(held[0])], now_ms)

    def release(self, now_ms: int) -> AnswersFetched | None:
        """All that is held."""
        return self._let_go(list(self._held), now_ms)

    def _let_go(self, columns: list[int], now_ms: int) -> AnswersFetched | None:
        since_ms = self._since_ms
        blocks = [block for column in columns for block in self._held.pop(column)]
        if not self._held:
            self._since_ms = None
        if not blocks or since_ms is None:
            return None
        return AnswersFetched(blocks=tuple(blocks), positions={}, waited_ms=now_ms - since_ms)
