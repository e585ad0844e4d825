"""Planted faults of delivery: fences, late records, deploys, transactions of clients, what was deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from streamserve.core.history import StateHistory
from streamserve.core.stages.update import UpdateStage
from streamserve.core.window import Window
from streamserve.kafka.fencing import Fences, Transactions
from streamserve.kafka.once import ExactlyOnce
from streamserve.kafka.ownership import Ownership
from streamserve.kafka.sweeper import Sweeper
from streamserve.kafka.takeover import TakeOver
from streamserve.testing.simulator.clients import SimulatedConnections


@contextmanager
def patched(owner: type, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """The attribute replaced by what `make` makes of it."""
    before = owner.__dict__[name]
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


class _AskingOnce:
    """Asks each kind of request once, and takes whatever answer comes first for the last word."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._asked: set[str] = set()

    async def _ask(self, name: str, request: Any, codes: Any) -> Any:
        kind = type(request).__name__
        if kind in self._asked:
            return None
        self._asked.add(kind)
        return await self._transactions._ask(name, request, codes)


def _markers_not_awaited() -> AbstractContextManager[None]:
    """A fence counts as raised once its transaction is ended, its markers not being written yet."""

    def make(original: Any) -> Any:
        async def abort_empty(self: Transactions, name: str, producer: Any, partitions: Any) -> None:
            await original(_AskingOnce(self), name, producer, partitions)

        return abort_empty

    return patched(Transactions, "abort_empty", make)


def _no_look_behind_the_fence() -> AbstractContextManager[None]:
    """A new owner does not look for the outcomes and dead letters that its predecessor has written."""

    def make(_original: Any) -> Any:
        async def look(self: ExactlyOnce, driving: Any, followed: Any) -> None:
            pass

        return look

    return patched(ExactlyOnce, "look", make)


def _looked_up_before_the_fence() -> AbstractContextManager[None]:
    """A new owner looks for what is answered first, and raises the fence then."""

    def make(original: Any) -> Any:
        async def look_up(self: TakeOver, numbers: Any) -> Any:
            once = self._once
            if once is None:
                return await original(self, numbers)
            take, once.fences.take = once.fences.take, _nothing  # type: ignore[method-assign, assignment]
            try:
                found = await original(self, numbers)
            finally:
                once.fences.take = take  # type: ignore[method-assign]
            await take(numbers)
            return found

        return look_up

    return patched(TakeOver, "look_up", make)


async def _nothing(_numbers: Any) -> None: ...


def _fence_kept_after_a_failure() -> AbstractContextManager[None]:
    """What was sent behind a fence and failed is taken for written; its partition is not taken anew."""
    return patched(Fences, "_lost", lambda _original: lambda self, fence, *, shut_out: None)


def _no_fence() -> AbstractContextManager[None]:
    """With `exactly_once` a process raises the fences that it has to, but writes past them."""

    def make(original: Any) -> Any:
        def send(self: Fences, number: int, at: Any, records: Any) -> Any:
            fence = self._fences.get(number)
            return original(self, number, at, records) if fence is None else self._send(at, records, None)  # type: ignore[arg-type]

        return send

    return patched(Fences, "send", make)


def _late_states_take_over() -> AbstractContextManager[None]:
    """Of several learnt states the one that stands last counts, whatever it holds."""

    def note(original: Any) -> Any:
        def by_place(self: UpdateStage, states: Any) -> None:
            for record in states:
                held = self._newest.get((record.partition, record.route, record.context))
                if held is None or record.epoch > held.epoch:
                    self._newest.pop((record.partition, record.route, record.context), None)
                    original(self, (record,))

        return by_place

    @contextmanager
    def both() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(patched(StateHistory, "_drop_late", lambda _original: lambda self: None))
            stack.enter_context(patched(UpdateStage, "_note", note))
            yield

    return both()


def _unknown_versions_forgotten() -> AbstractContextManager[None]:
    """Where an answer of a model stands that is not known here is not told to the next owner."""

    def make(original: Any) -> Any:
        def apply(self: Window, answers: Any, rows: Any) -> Any:
            if not self.asks(answers):
                answers = replace(answers, log_offset=None)
            return original(self, answers, rows)

        return apply

    return patched(Window, "apply", make)


def _undecided_requests_read() -> AbstractContextManager[None]:
    """Requests are read before the transaction that wrote them is committed, and though it is aborted."""

    def make(original: Any) -> Any:
        def group(self: SimulatedConnections, **wanted: Any) -> Any:
            return original(self, **(wanted | {"committed_only": False}))

        return group

    return patched(SimulatedConnections, "group", make)


def _lease_outlives_a_loss() -> AbstractContextManager[None]:
    """A partition of which it is not known what was written is served on as before."""

    def make(_original: Any) -> Any:
        def lost(self: Ownership, number: int, shut_out: bool) -> None:
            pass

        return lost

    return patched(Ownership, "lost", make)


def _sweep_answers_what_was_answered() -> AbstractContextManager[None]:
    """The sweep after an outage does not look which of the old requests have their record."""

    async def nothing_found(_spans: Any) -> dict[int, Any]:
        return {}

    def make(original: Any) -> Any:
        def init(self: Sweeper, **wanted: Any) -> None:
            original(self, **(wanted | {"scan": nothing_found}))

        return init

    return patched(Sweeper, "__init__", make)


def _skipped_range_forgotten() -> AbstractContextManager[None]:
    """Commits pass over old requests, and do not say which."""
    return patched(Sweeper, "left", lambda _original: lambda self, number: None)


def _fresh_ones_passed_over() -> AbstractContextManager[None]:
    """A new owner takes requests for old before they are."""

    def make(original: Any) -> Any:
        async def fresh(self: TakeOver, positions: Any) -> Any:
            plan, after_ms = self._plan, self._plan.skips_after_ms
            self._plan = plan if after_ms is None else replace(plan, skips_after_ms=after_ms // 8)
            try:
                return await original(self, positions)
            finally:
                self._plan = plan

        return fresh

    return patched(TakeOver, "_fresh", make)


def _keyed_states_not_read() -> AbstractContextManager[None]:
    """A new learner begins before it has read the keyed states of its partition."""

    def make(original: Any) -> Any:
        def load(self: UpdateStage, event: Any) -> None:
            original(self, replace(event, states=(), loaded=True))

        return load

    return patched(UpdateStage, "_load", make)


PLANTED = (
    _keyed_states_not_read,
    _sweep_answers_what_was_answered,
    _skipped_range_forgotten,
    _fresh_ones_passed_over,
    _markers_not_awaited,
    _no_look_behind_the_fence,
    _looked_up_before_the_fence,
    _fence_kept_after_a_failure,
    _no_fence,
    _late_states_take_over,
    _unknown_versions_forgotten,
    _undecided_requests_read,
    _lease_outlives_a_loss,
)
