"""The one protocol of every role.

Laws, checked by Hypothesis on every stage (`streamserve.testing.laws`):

1. After `handle`, the next deadline is none or later than now.
2. A tick before the deadline does nothing.
3. A tick at the deadline does something.
4. Every input is settled exactly once, after its effect was acknowledged, and none is left when the input ends.
5. Each stage's own promise, stated in its docstring.
6. Same events, times and seed give equal effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from streamserve.core.bounds import Fill
from streamserve.core.effects import Effect
from streamserve.core.events import Event


class Stage(Protocol):
    """Decides; never does. Sees no broker, no clock, no random source."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one fact; return what is to be done about it, in order. `now_ms`: broker time, never going back."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When to be woken by a `Tick`, at the latest; None: only by events."""
        ...

    def commit_metadata(self, partition: int) -> str:
        """Words for the commit of this partition, read back by a new owner (`Resume.metadata`); at most 4,096 bytes."""
        ...

    @property
    def takes_more(self) -> bool:
        """False while more of the driving topic would only lie about: everybody who works has enough to do."""
        ...

    @property
    def idle(self) -> bool:
        """Nothing is open: all input is settled or nothing was taken. A drained process may stop."""
        ...

    def fills(self) -> Mapping[str, Fill]:
        """How full each thing is that grows, by the name of its bound; asked for when somebody looks."""
        ...
