"""Planted faults of what is asked: staleness, freezes, second opinions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from streamserve.core.epochs import EpochTable, _RouteStates
from streamserve.core.settling import Settling
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.testing.mutants_delivery import patched


def _never_stale() -> AbstractContextManager[None]:
    """Whoever reads learnt states late decides by what it has, and does not say so."""

    def make(original: Any) -> Any:
        def choose(self: EpochTable, *columns: Any, **wanted: Any) -> Any:
            choice = original(self, *columns, **wanted)
            return replace(choice, stale=np.zeros(len(choice.stale), np.bool_))

        return choose

    return patched(EpochTable, "choose", make)


def _freeze_forgotten() -> AbstractContextManager[None]:
    """A frozen model is asked like any other."""
    return patched(_RouteStates, "frozen", lambda _original: lambda self, append_ms, switches: None)


def _first_answer_kept() -> AbstractContextManager[None]:
    """A second opinion is asked and waited for, and the first answer is given."""

    def make(original: Any) -> Any:
        def weights(self: Settling, route: int, at: Any) -> Any:
            found, table = original(self, route, at), self._window.table
            mask = self._routes[route].second_mask
            both = table["chosen"][at] & table["present"][at]
            came = (both & np.uint64(mask)) != 0
            for row in np.flatnonzero(came):
                first = int(both[row]) & ~mask
                if first:
                    found[row] = 0.0
                    found[row, first.bit_length() - 1] = 1.0
            return found

        return weights

    return patched(Settling, "weights", make)


def _second_opinion_awaited_too_long() -> AbstractContextManager[None]:
    """Where a second opinion is on its way a record is made a while after the deadline."""

    def make(original: Any) -> Any:
        def settle_due(self: AggregatorStage, now_ms: int, effects: Any) -> None:
            table = self._window.table
            masks = np.array([route.second_mask for route in self._rules.routes], np.uint64)
            waits = ~table["settled"] & ((table["chosen"] & ~table["present"] & masks[table["route"]]) != 0)
            original(self, now_ms - (10 * self._rules.guard_ms if waits.any() else 0), effects)

        return settle_due

    return patched(AggregatorStage, "_settle_due", make)


CHOICES = (_never_stale, _freeze_forgotten, _first_answer_kept, _second_opinion_awaited_too_long)
