"""White-box plans of a pool run on one thread, what they share of the same rows once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelError, PlanError
from streamserve.runtimes.base import Ended, Runtime
from streamserve.runtimes.plan import PlanRuntime

if TYPE_CHECKING:
    from streamserve.plan.compile import Plan
    from streamserve.plan.physical import Layout
    from streamserve.plan.sharing import Group

_log = logging.getLogger(__name__)


class PlanLane:
    """Runs batches of white-box plans, those over equal rows in as few passes as their rows allow."""

    def __init__(
        self,
        name: str,
        runtimes: Mapping[str, PlanRuntime],
        groups: Iterable[Group] = (),
        *,
        prepare: Callable[[Layout], None] = lambda _: None,
    ) -> None:
        """`groups`: of those of these plans that may run together; the others run one by one. `prepare`: what is done
        to what is laid out before it runs."""
        self._name = name
        self._runtimes = dict(runtimes)
        self._prepare = prepare
        self._shared = _Shared({model: group for group in groups for model in group.plans}, self._heads())
        """One reference: a call has groups and heads of one moment."""
        for group in set(self._shared.group_of.values()):
            prepare(group.layout)

    def _heads(self) -> dict[str, int]:
        return {model: runtime.head for model, runtime in self._runtimes.items()}

    def take(self, model: str, plan: Plan, head: int) -> None:
        """Answer for a model with this plan, which differs from its own in the head alone, from the next call on.

        Calls that are under way end as they began. One thread at a time. Raises `PlanDiffers`: then all is as before.
        """
        from streamserve.plan.regrouping import with_head  # noqa: PLC0415  (a plan is there: so is its extra)

        self._prepare(plan.layout)
        group_of = dict(self._shared.group_of)
        if model in group_of:
            group = with_head(group_of[model], model, plan)
            self._prepare(group.layout)
            group_of |= dict.fromkeys(group.plans, group)
        self._runtimes[model].serve(plan, head)
        self._shared = _Shared(group_of, self._heads())

    @property
    def name(self) -> str:
        return self._name

    def predict_all(self, batches: Sequence[tuple[str, AnyArray]]) -> Iterator[Ended]:
        """What each gets: batches whose rows are the beginning of another's run with that one."""
        shared = self._shared
        alike: dict[Hashable, list[int]] = {}
        for i, (model, rows) in enumerate(batches):
            alike.setdefault(_key(shared, i, model, rows), []).append(i)
        for waiting in alike.values():
            waiting.sort(key=lambda i: -len(batches[i][1]))
            rest = waiting
            while rest:
                rows, together, others = batches[rest[0]][1], {}, []
                for i in rest:
                    model, batch = batches[i]
                    if model not in together and _begins(rows, batch):
                        together[model] = i
                    else:
                        others.append(i)
                yield self._run(shared, rows, together, batches)
                rest = others

    def _run(
        self, shared: _Shared, rows: AnyArray, together: Mapping[str, int], batches: Sequence[tuple[str, AnyArray]]
    ) -> Ended:
        if len(together) > 1:
            group = shared.group_of[next(iter(together))]
            try:
                answers = group.run(rows, {model: self._runtimes[model].asked for model in together})
                outputs = {
                    i: self._runtimes[model].outputs_of(answers[model], shared.heads[model])
                    for model, i in together.items()
                }
            except Exception:  # noqa: BLE001  (one of them; alone each says for itself what is wrong)
                _log.debug("models asked together failed; each is asked alone")
            else:
                return [(i, _first(one, len(batches[i][1]))) for i, one in outputs.items()]
        return [(i, self._alone(model, batches[i][1])) for model, i in together.items()]

    def _alone(self, model: str, rows: AnyArray) -> Outputs | Exception:
        try:
            return self._runtimes[model].predict(rows)
        except Exception as raised:  # noqa: BLE001  (told to whoever asked)
            return raised


@dataclass(frozen=True, slots=True)
class _Shared:
    """What models of a lane run together, and with which heads."""

    group_of: Mapping[str, Group]
    heads: Mapping[str, int]


def _key(shared: _Shared, place: int, model: str, rows: AnyArray) -> Hashable:
    """Only batches with equal keys may run together: same group, same form, same first row."""
    group = shared.group_of.get(model)
    if group is None or not len(rows):
        return place
    first = rows[0]
    if rows.dtype != object:
        return id(group), rows.dtype.str, rows.shape[1:], first.tobytes()
    return (id(group), first) if isinstance(first, str) else place


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
        head=outputs.head,
    )


def take_head(model: str, runtime: PlanRuntime, plan: Plan, head: int) -> None:
    """Answer for a model with a plan whose head has learnt from so many rows, from the next call on; of several threads
    only one may give it heads. Raises `PlanError` for a plan that differs from the model's in more than its head."""
    from streamserve.plan.regrouping import headed, same_but_head  # noqa: PLC0415  (a plan is there: so is its extra)

    if not same_but_head(plan, runtime.plan):
        raise PlanError(f"model {model}: what is to be its new head is a part of another plan")
    plan = headed(runtime.plan, plan)
    if isinstance(runtime.lane, PlanLane):
        runtime.lane.take(model, plan, head)
    else:
        runtime.serve(plan, head)


def share(runtimes: Mapping[str, Runtime], *, cache_bytes: int = 0, own_thread: Collection[str] = ()) -> None:
    """Give the white-box plans among a process's models a lane: one thread, and one pass for what they share.

    A plan with a black box has none: foreign code may hang, and would hold the others.

    `cache_bytes`: memory for sub-results that plans of the process share, kept between batches; 0: none are.
    `own_thread`: models that get a lane of their own. Raises `ModelError` where one has its thread anyway.
    """
    plans = {model: runtime for model, runtime in runtimes.items() if isinstance(runtime, PlanRuntime)}
    white = {model: runtime for model, runtime in plans.items() if not runtime.plan.black_boxes}
    for model in own_thread:
        if model not in white:
            raise ModelError(
                f"model {model}: only a white-box plan shares its thread with others; this one has a thread of its "
                "own. Leave out `own_thread`"
            )
    if not plans:
        return
    from streamserve.plan.materialised import SubResults, shared_keys  # noqa: PLC0415  (a plan is there: so is its extra)
    from streamserve.plan.sharing import together  # noqa: PLC0415  (as above)

    times = next(iter(plans.values())).times
    for runtime in plans.values():
        runtime.times = runtime.plan.layout.times = times
    shared = shared_keys(runtime.plan.graph for runtime in plans.values()) if cache_bytes and len(plans) > 1 else None
    cache = SubResults(cache_bytes) if shared else None
    members = {model: runtime for model, runtime in white.items() if model not in own_thread}
    groups = together({model: runtime.plan for model, runtime in members.items()})

    def prepare(layout: Layout) -> None:
        layout.times = times
        if cache is not None and shared:
            layout.materialise(cache, shared)

    for model in own_thread:
        white[model].lane = PlanLane(f"of {model}", {model: white[model]}, prepare=prepare)
    lane = PlanLane("plans", members, groups, prepare=prepare)
    for runtime in members.values():
        runtime.lane = lane
    if cache is not None and shared:
        for runtime in plans.values():
            runtime.cache = cache
            prepare(runtime.plan.layout)
