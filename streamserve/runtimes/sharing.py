"""Plans of a pool that take the same rows run together: on one thread, what they share once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from streamserve.core.messages import AnyArray, Outputs
from streamserve.runtimes.base import Runtime
from streamserve.runtimes.plan import PlanRuntime

if TYPE_CHECKING:
    from streamserve.plan.sharing import Group

_log = logging.getLogger(__name__)


class PlanLane:
    """Runs the batches that are there of several plans in as few passes as their rows allow."""

    def __init__(self, group: Group, runtimes: Mapping[str, PlanRuntime]) -> None:
        self._group = group
        self._runtimes = dict(runtimes)

    def predict_all(self, batches: Sequence[tuple[str, AnyArray]]) -> list[Outputs | Exception]:
        """What each gets: batches whose rows are the beginning of another's run with that one."""
        found: dict[int, Outputs | Exception] = {}
        waiting = sorted(range(len(batches)), key=lambda i: -len(batches[i][1]))
        while waiting:
            rows, together, others = batches[waiting[0]][1], {}, []
            for i in waiting:
                model, batch = batches[i]
                if model not in together and _begins(rows, batch):
                    together[model] = i
                else:
                    others.append(i)
            found |= self._run(rows, together, batches)
            waiting = others
        return [found[i] for i in range(len(batches))]

    def _run(
        self, rows: AnyArray, together: Mapping[str, int], batches: Sequence[tuple[str, AnyArray]]
    ) -> dict[int, Outputs | Exception]:
        if len(together) > 1:
            try:
                answers = self._group.run(rows, {model: self._runtimes[model].asked for model in together})
                outputs = {i: self._runtimes[model].outputs_of(answers[model]) for model, i in together.items()}
            except Exception:  # noqa: BLE001  (one of them; alone each says for itself what is wrong)
                _log.debug("models asked together failed; each is asked alone")
            else:
                return {i: _first(one, len(batches[i][1])) for i, one in outputs.items()}
        return {i: self._alone(model, batches[i][1]) for model, i in together.items()}

    def _alone(self, model: str, rows: AnyArray) -> Outputs | Exception:
        try:
            return self._runtimes[model].predict(rows)
        except Exception as raised:  # noqa: BLE001  (told to whoever asked)
            return raised


def _begins(rows: AnyArray, batch: AnyArray) -> bool:
    """Whether a batch is the beginning of `rows`."""
    if batch is rows:
        return True
    if batch.dtype != rows.dtype or batch.shape[1:] != rows.shape[1:] or len(batch) > len(rows):
        return False
    start = rows[: len(batch)]
    if rows.dtype == object:
        return bool(np.all(start == batch))
    if start.flags.c_contiguous and batch.flags.c_contiguous:
        return start.tobytes() == batch.tobytes()  # NaN is equal to itself here
    return False


def _first(outputs: Outputs, rows: int) -> Outputs:
    if len(outputs.labels) == rows:
        return outputs
    return Outputs(
        labels=outputs.labels[:rows],
        probabilities=None if outputs.probabilities is None else outputs.probabilities[:rows],
        classes=outputs.classes,
        row_errors={row: words for row, words in outputs.row_errors.items() if row < rows},
    )


def share(runtimes: Mapping[str, Runtime], *, cache_bytes: int = 0) -> None:
    """Give those plans among a process's models that may run together a lane of their own.

    `cache_bytes`: memory for sub-results that plans of the process share, kept between batches; 0: none are.
    """
    plans = {model: runtime for model, runtime in runtimes.items() if isinstance(runtime, PlanRuntime)}
    if len(plans) < 2:
        return
    from streamserve.plan.materialised import SubResults, shared_keys  # noqa: PLC0415  (a plan is there: so is its extra)
    from streamserve.plan.sharing import together  # noqa: PLC0415  (as above)

    times = next(iter(plans.values())).times
    for runtime in plans.values():
        runtime.times = runtime.plan.layout.times = times
    shared = shared_keys(runtime.plan.graph for runtime in plans.values()) if cache_bytes else frozenset()
    cache = SubResults(cache_bytes) if shared else None
    for group in together({model: runtime.plan for model, runtime in plans.items()}):
        group.layout.times = times
        if cache is not None:
            group.layout.materialise(cache, shared)
        members = {model: plans[model] for model in group.plans}
        lane = PlanLane(group, members)
        for runtime in members.values():
            runtime.lane = lane
    if cache is not None:
        for runtime in plans.values():
            runtime.cache = cache
            runtime.plan.layout.materialise(cache, shared)
