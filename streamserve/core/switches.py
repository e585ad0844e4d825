"""Which models are switched off when: the same in every role, by the append time of a record of the models topic.

A switch is in force for requests appended at least `epoch_delay_ms` after it, as a learnt state is. Where it would
leave a route without any model, it is not in force for that route.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from streamserve.core.fast import every
from streamserve.core.messages import I64, U64
from streamserve.core.values import unchanging


@unchanging()
class SwitchRecord:
    """A model is switched off, or on again."""

    model: str
    """Its id, or its name: then of every version."""
    disabled: bool
    append_ms: int
    offset: int
    """In the partition of its key: records of one model are in one order."""


class Switches:
    """Switches as far as they are known; what stands in a compacted topic tells nothing of earlier ones."""

    #: Of one model; a switch that is thrown all the time must not leave a record each behind.
    MOST_REMEMBERED = 100

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._by_name: dict[str, dict[int, SwitchRecord]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def apply(self, records: Iterable[SwitchRecord]) -> None:
        """Take switches as they stand in the log, in any order. Of one model the newest `MOST_REMEMBERED` are known."""
        for record in records:
            known = self._by_name.setdefault(record.model, {})
            known[record.offset] = record
            if len(known) > self.MOST_REMEMBERED:
                del known[min(known)]

    def allowed(self, models: Sequence[str], append_ms: I64) -> U64 | None:
        """`[n]`: the models that may be asked, as bits; None where that is all of them for all requests."""
        everybody = (1 << len(models)) - 1
        masks = np.full(len(append_ms), everybody, np.uint64)
        for bit, model in enumerate(models):
            for name in (model, model.rpartition("@")[0]):
                if name in self._by_name:
                    masks[self._off(name, append_ms)] &= np.uint64(everybody ^ (1 << bit))
        masks[masks == 0] = everybody
        return None if every(masks == everybody) else masks

    def lifted(self, model: str, since_ms: int, append_ms: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """`[n]`: whether an operator has switched this model on since then, for requests of these append times."""
        found = np.zeros(len(append_ms), np.bool_)
        for name in (model, model.rpartition("@")[0]):
            for record in self._by_name.get(name, {}).values():
                if not record.disabled and record.append_ms > since_ms:
                    found |= append_ms >= record.append_ms + self._delay_ms
        return found

    def _off(self, name: str, append_ms: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """`[n]`: whether the newest switch in force says so; of several in force the later in the log counts."""
        off = np.zeros(len(append_ms), np.bool_)
        for _, record in sorted(self._by_name[name].items()):
            off[append_ms >= record.append_ms + self._delay_ms] = record.disabled
        return off
