"""One figure of a benchmark, and the number that it is to reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number; `limit` None: told, not judged."""

    section: str
    what: str
    values: tuple[float, ...]
    limit: float | None = None
    at_least: bool = False

    @property
    def value(self) -> float:
        return float(np.mean(self.values))

    @property
    def held(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit
