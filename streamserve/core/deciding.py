"""Which answers can no longer change, though members are missing: how much weight leads, and how much is still out."""

from __future__ import annotations

import numpy as np

from streamserve.core.fast import distinct, indices
from streamserve.core.masks import bits
from streamserve.core.messages import I64, Flags
from streamserve.core.settling import Settling
from streamserve.core.window import Window

_FORMS = 1 << 20
#: Weights sum to about 1.
_ROUNDING = 1e-9


#: A member that is still missing may change such an answer whatever the others said.
_OPEN = ("mean", "log_probability", "drawn")


class Deciding:
    """Reads the window; keeps in its column `reach` how far the lead was from what had been heard."""

    def __init__(self, window: Window, settling: Settling) -> None:
        self._window = window
        self._settling = settling

    def decided(self, at: I64) -> Flags:
        """The members still missing cannot change the answer (nor lift it over or under the threshold)."""
        table = self._window.table
        decided = np.zeros(len(at), np.bool_)
        kinds = table["route"][at] * _FORMS + table["form"][at]
        for kind in distinct(kinds):
            index = kind // _FORMS
            route = self._window.routes[index]
            if kind % _FORMS == 0 or not route.decide_early or route.combine in _OPEN or len(route.models) < 2:
                continue  # form 0: nobody has answered yet
            if route.confident is not None and route.confidence_threshold > 0:
                continue  # what is learnt of agreements need not rise with them
            mine = indices(kinds == kind)
            weights = self._settling.weights(index, at[mine])
            there = bits(table["present"][at[mine]], len(route.models))
            given = np.where(there, weights, 0.0).sum(axis=1)
            waits = bits(table["chosen"][at[mine]] & ~table["failed"][at[mine]], len(route.models)) & ~there
            open_weights = np.where(waits, weights, 0.0)
            left = open_weights.max(axis=1) if route.combine == "best" else open_weights.sum(axis=1)
            # A member can raise the lead by its weight and no more: who cannot be decided yet is not looked at.
            likely = indices((given > left) & (given + table["reach"][at[mine]] > left) & there.any(axis=1))
            if not len(likely):
                continue
            rows = at[mine[likely]]
            combined, members, row_starts = self._settling.combined(rows, index, weights[likely])
            lead = (
                combined.lead
                if len(combined.lead) == len(rows)
                else np.minimum.reduceat(combined.lead, row_starts[:-1])
            )
            table["reach"][rows] = lead - given[likely]
            # A tie but for rounding is not decided: the full sum may round to the other side.
            certain = lead > left[likely] + _ROUNDING
            if route.confidence_threshold > 0:
                confidence = self._settling.confidence(weights[likely], combined, members, row_starts)
                certain &= confidence >= route.confidence_threshold
            decided[mine[likely[certain]]] = True
        return decided
