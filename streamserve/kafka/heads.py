"""Heads that learn while they serve, taken up by a worker: read off the log, mapped from the store, swapped in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from streamserve.core.effects import Count
from streamserve.core.head_order import Publication, newest
from streamserve.errors import ContractError, PlanError, StoreError
from streamserve.kafka.codecs.heads import decode_head
from streamserve.kafka.ports import Chunk
from streamserve.kafka.tasks import happens_or
from streamserve.runtimes.base import Runtime
from streamserve.runtimes.plan import PlanRuntime
from streamserve.runtimes.sharing import take_head

if TYPE_CHECKING:
    from streamserve.plan.compile import Plan

_log = logging.getLogger(__name__)

#: Models that come while it serves are looked at within this time.
_LOOK_S = 1.0


class LiveHeads:
    """The newest head of each model that one process hosts, in force from its next call on."""

    def __init__(self, runtimes: Mapping[str, Runtime], count: Callable[[Count], None]) -> None:
        """`runtimes`: those of the process, followed as they come and go."""
        self._runtimes, self._count = runtimes, count
        self._newest: dict[str, Publication] = {}
        self._refused: dict[str, int] = {}
        """Model -> rows of the head that could not be taken up: it is not tried again, the next one is."""
        self._changed = asyncio.Event()

    def take(self, chunk: Chunk) -> None:
        """Records of the models topic. What cannot be read is logged and changes nothing."""
        for offset, value in zip(chunk.offsets.tolist(), chunk.values, strict=True):
            try:
                found = decode_head(value, f"the models record {chunk.at.partition}-{offset}")
            except ContractError as error:
                _log.error("a record of the models topic is left out: %s", error)
                continue
            if found is not None:
                self._newest = newest([*self._newest.values(), found])
                self._changed.set()

    async def follow(self) -> None:
        """For ever: take up what is newer than what serves."""
        while True:
            await happens_or(self._changed, _LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Take up what is newer than what serves now, off the loop."""
        self._changed.clear()
        for model, publication in list(self._newest.items()):
            runtime = self._runtimes.get(model)
            if isinstance(runtime, PlanRuntime) and self._is_news(runtime, publication):
                await asyncio.to_thread(self._take_up, runtime, publication)

    def _is_news(self, runtime: PlanRuntime, publication: Publication) -> bool:
        return publication.rows > runtime.head >= 0 and self._refused.get(publication.model) != publication.rows

    def _take_up(self, runtime: PlanRuntime, publication: Publication) -> None:
        model = publication.model
        try:
            take_head(model, runtime, _loaded(runtime, publication), publication.rows)
        except (PlanError, StoreError) as error:
            self._refused[model] = publication.rows
            self._count(Count(what="models", label="head_not_taken", model=model, n=1))
            _log.error(
                "model %s: the head of %d rows cannot be taken up, it serves on with that of %d: %s (it is in %s; "
                "workers must read the store that `streamserve learn-head` writes: options.store)",
                model,
                publication.rows,
                runtime.head,
                error,
                publication.store,
            )
        else:
            self._count(Count(what="models", label="head_taken", model=model, n=1))
            _log.debug("model %s: head of %d rows", model, publication.rows)


def _loaded(runtime: PlanRuntime, publication: Publication) -> Plan:
    if publication.base != runtime.base:
        raise PlanError(
            f"it was learnt from plan {publication.base}, and plan {runtime.base} is what is loaded; give this one "
            "another version"
        )
    from streamserve.plan.packing import stored  # noqa: PLC0415  (a plan is there: so is its extra)
    from streamserve.plan.store import Store  # noqa: PLC0415  (as above)

    return stored(publication.plan, Store(runtime.store))
