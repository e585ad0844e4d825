"""What an invariant says of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from streamserve.testing.simulator.evidence import Evidence

_MOST = 20


@dataclass(slots=True)
class Verdict:
    premise: int = 0
    """How often there was something to check."""
    failures: list[str] = field(default_factory=list)

    def fail(self, words: str) -> None:
        if len(self.failures) < _MOST:
            self.failures.append(words)


Check = Callable[[Evidence], Verdict]
