"""The laws of a stage, as a Hypothesis state machine; the conformance list of a policy is in `policy_checks`.

Subclass `StageLaws`, say how to build the stage and what arrives, and hand the class to `check_laws`. The driver plays
arrivals, acknowledgements in any order, failures, early, exact and late wake-ups, and at the end either lets the input
run dry or drains. It checks, after every event:

1. the next deadline is none or later than now;
2. a tick before the deadline does nothing;
3. a tick at or after the deadline does something;
4. every input is settled exactly once, never while something that carries it is unacknowledged; none is left when the
   input ends, and the stage says that it is idle;
5. `check`, the stage's own promise;
6. the same events and times give equal effects in a second stage.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from streamserve.core.effects import Effect, Settle
from streamserve.core.events import BatchesFinished, BatchFinished, Drain, Event, Produced, ProduceFailed, Revoked, Tick
from streamserve.core.stage import Stage

Input = tuple[int, int]
"""(partition, offset) of the driving topic."""

START_MS = 1_700_000_000_000
_MOST_ROUNDS = 10_000


class LawBroken(AssertionError):
    """A stage broke one of the laws; the message says which, and after what."""


class StageLaws(RuleBasedStateMachine):
    """Driver of one stage. A subclass gives `new_stage`, `seeds`, `event_of`, `opens`; the rest as needed."""

    may_fail: ClassVar[bool] = True
    """Play `ProduceFailed` too."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.stage = self.new_stage()
        self.open: set[Input] = set()
        self.settled: set[Input] = set()
        self.unacknowledged: dict[int, Effect] = {}
        self.replies: list[BatchFinished] = []
        self.history: list[tuple[Event, int, list[Effect]]] = []
        self._broken = False
        self._drain_at_end = False
        self._next_offset = 0

    # -- what a subclass says ------------------------------------------------------------------------------------

    def new_stage(self) -> Stage:
        """A fresh stage; called again for law 6."""
        raise NotImplementedError

    def seeds(self) -> st.SearchStrategy[Any]:
        """Small values that `event_of` turns into events; drawn anew for each arrival."""
        raise NotImplementedError

    def event_of(self, seed: Any) -> Event | None:
        """The next thing that arrives; offsets and times are the subclass's to count. None: nothing."""
        raise NotImplementedError

    def opens(self, event: Event) -> Iterable[Input]:
        """Inputs of the driving topic that this event hands to the stage, each to be settled once."""
        raise NotImplementedError

    def first_events(self) -> Sequence[Event]:
        """What the shell reports before anything arrives."""
        return ()

    def carries(self, effect: Effect) -> Iterable[Input]:
        """Inputs that this emission answers: none of them may be settled before it is acknowledged."""
        return ()

    def reply(self, effect: Effect) -> BatchFinished | None:
        """What becomes of a `RunBatch`, given some time later, alone or with others."""
        return None

    def acknowledgement(self, token: int, effect: Effect) -> Event:
        self._next_offset += 1
        return Produced(token=token, offsets={0: self._next_offset}, append_ms=self.now_ms)

    def failure(self, token: int, effect: Effect) -> Event:
        return ProduceFailed(token=token, error="not taken")

    def check(self, event: Event, effects: list[Effect]) -> None:
        """Law 5: raise AssertionError where the stage's own promise is broken."""

    def check_end(self) -> None:
        """Law 5 at the end, when everything is acknowledged and settled (not after a drain)."""

    # -- what happens --------------------------------------------------------------------------------------------

    @initialize(drain_at_end=st.booleans())
    def begin(self, drain_at_end: bool) -> None:
        self._drain_at_end = drain_at_end
        for event in self.first_events():
            self.give(event)

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        event = self.event_of(data.draw(self.seeds()))
        if event is not None:
            self.give(event)

    @rule(ms=st.integers(1, 50))
    def wait(self, ms: int) -> None:
        """Time passes, but not to the deadline."""
        deadline_ms = self.stage.next_deadline_ms()
        latest_ms = self.now_ms + ms if deadline_ms is None else min(self.now_ms + ms, deadline_ms - 1)
        self.now_ms = max(self.now_ms, latest_ms)
        effects = self.give(Tick())
        self.require(not effects, f"law 2: a tick {deadline_ms} - {self.now_ms} ms early led to {effects}")

    @precondition(lambda self: self.stage.next_deadline_ms() is not None)
    @rule(late_ms=st.sampled_from([0, 0, 0, 1, 1_000]))
    def wake(self, late_ms: int) -> None:
        self.now_ms = (self.stage.next_deadline_ms() or self.now_ms) + late_ms
        effects = self.give(Tick())
        self.require(bool(effects), f"law 3: a tick {late_ms} ms after the deadline led to nothing")

    @precondition(lambda self: self.unacknowledged)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.unacknowledged)))
        self.give(self.acknowledgement(token, self.unacknowledged.pop(token)))

    @precondition(lambda self: self.may_fail and self.unacknowledged)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.unacknowledged)))
        self.give(self.failure(token, self.unacknowledged.pop(token)))

    @precondition(lambda self: self.replies)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        most = min(3, len(self.replies))
        ended = [
            self.replies.pop(data.draw(st.integers(0, len(self.replies) - 1)))
            for _ in range(data.draw(st.integers(1, most)))
        ]
        self.give(BatchesFinished(batches=tuple(ended)))

    def teardown(self) -> None:
        if self._broken:
            return
        if self._drain_at_end:
            self.give(Drain())
        self._run_dry()
        self.require(self.stage.idle, "law 4: everything is acknowledged, and the stage is not idle")
        if not self._drain_at_end:
            self.require(not self.open, f"law 4: never settled: {sorted(self.open)}")
            self.check_end()
        self._repeat()

    # -- the driver ----------------------------------------------------------------------------------------------

    def give(self, event: Event) -> list[Effect]:
        """Hand one event to the stage and check what comes out."""
        self._expect(event)
        try:
            effects = self.stage.handle(event, self.now_ms)
            deadline_ms = self.stage.next_deadline_ms()
        except BaseException:
            self._broken = True
            raise
        self.history.append((event, self.now_ms, effects))
        late = deadline_ms is not None and deadline_ms <= self.now_ms
        self.require(not late, f"law 1: the next deadline is {self.now_ms} - {deadline_ms} ms ago after {event}")
        for effect in effects:
            self._note(effect)
        try:
            self.check(event, effects)
        except BaseException:
            self._broken = True
            raise
        return effects

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._broken = True
            raise LawBroken(otherwise)

    def _expect(self, event: Event) -> None:
        if isinstance(event, Revoked):
            gone = set(event.partitions)
            self.open = {item for item in self.open if item[0] not in gone}
            self.settled = {item for item in self.settled if item[0] not in gone}
        self.open.update(item for item in self.opens(event) if item not in self.settled)

    def _note(self, effect: Effect) -> None:
        token = getattr(effect, "token", None)
        if token is not None:
            self.require(token not in self.unacknowledged, f"token {token} was used twice")
            self.unacknowledged[token] = effect
        reply = self.reply(effect)
        if reply is not None:
            self.replies.append(reply)
        if isinstance(effect, Settle):
            self._settle(effect)

    def _settle(self, effect: Settle) -> None:
        busy = {item for sent in self.unacknowledged.values() for item in self.carries(sent)}
        for offset in effect.offsets.tolist():
            item = (effect.partition, offset)
            self.require(item not in self.settled, f"law 4: {item} was settled twice")
            self.require(item in self.open, f"law 4: {item} was settled, but is not open")
            self.require(item not in busy, f"law 4: {item} was settled before what carries it was acknowledged")
            self.open.discard(item)
            self.settled.add(item)

    def _run_dry(self) -> None:
        for _ in range(_MOST_ROUNDS):
            if self.replies:
                self.give(BatchesFinished(batches=(self.replies.pop(0),)))
            elif self.unacknowledged:
                token = min(self.unacknowledged)
                self.give(self.acknowledgement(token, self.unacknowledged.pop(token)))
            elif self.stage.next_deadline_ms() is not None and (self.open or not self.stage.idle):
                self.wake(0)
            else:
                return
        self.require(False, f"law 4: after {_MOST_ROUNDS} rounds the stage still has something to do")

    def _repeat(self) -> None:
        stage = self.new_stage()
        for event, now_ms, effects in self.history:
            again = stage.handle(event, now_ms)
            if not same(effects, again):  # the words only then: writing out arrays takes longer than the stage
                self.require(False, f"law 6: {event} led to {effects}, the second time to {again}")


def check_laws(case: type[StageLaws], *, examples: int = 100, steps: int = 30, shrink: bool = True) -> None:
    """Run a case; raises on the shortest sequence of events that breaks a law (`shrink=False`: on any)."""
    run_state_machine_as_test(
        case,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def same(left: object, right: object) -> bool:
    """Deep equality of messages: dataclasses by field, arrays by dtype and element (NaN equals NaN)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return _same_arrays(left, right)
    if dataclasses.is_dataclass(left) and not isinstance(left, type):
        return all(same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    nans = isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
    return nans or left == right


def _same_arrays(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == object:
        return same(left.tolist(), right.tolist())
    floats = left.dtype.kind in "fc"
    return bool(np.array_equal(left, right, equal_nan=floats))
