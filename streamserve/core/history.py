"""One learnt state through time: its records, and which of them is in force when."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import zip_longest

import numpy as np

from streamserve.core.contexts import GLOBAL, is_keyed
from streamserve.core.fast import distinct
from streamserve.core.messages import I64, INITIAL_EPOCH
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route
from streamserve.core.selection.base import Distribution

NEVER_MS = -(1 << 62)


class State:
    """One learnt state of a route; its distribution is computed when first needed, once."""

    __slots__ = (
        "_distribution", "append_ms", "epoch", "in_force_ms", "included", "last_ms", "partition", "previous", "route",
        "value",
    )  # fmt: skip

    def __init__(self, route: Route, value: object, record: StateRecord | None, delay_ms: int) -> None:
        """`record` None: the initial state."""
        self.route = route
        self.value = value
        self.epoch = INITIAL_EPOCH if record is None else record.epoch
        self.in_force_ms = NEVER_MS if record is None else record.append_ms + delay_ms
        self.previous = INITIAL_EPOCH if record is None else record.previous
        self.partition = -1 if record is None else record.partition
        self.included = 0 if record is None else record.included
        self.append_ms = NEVER_MS if record is None else record.append_ms
        self.last_ms = None if record is None else last_ms_of(route, record)
        self._distribution: Distribution | None = None

    @property
    def distribution(self) -> Distribution:
        if self._distribution is None:
            self._distribution = self.route.policy.distribution(self.value, self.route.models)
        return self._distribution


def last_ms_of(route: Route, record: StateRecord) -> int | None:
    """Append time of the last request that this state may decide; None: there is no such bound."""
    if is_keyed(record.context) and route.contexts is not None:
        return record.learnt_ms + route.contexts.forget_after_ms
    return record.append_ms + route.max_state_age_ms if route.max_state_age_ms else None


class StateHistory:
    """The states of one (route, context), and the steps at which one takes over from the other."""

    def __init__(self, route: Route, delay_ms: int) -> None:
        self.route = route
        self._delay_ms = delay_ms
        self._initial = State(route, route.policy.initial(route.models), None, delay_ms)
        self._states: list[State] = []  # by epoch
        self._epochs: list[int] = []
        self._steps: list[State] = []  # by time; epochs rise too
        self._step_ms: list[int] = []
        self._cut = False  # states before the oldest one are not known any more
        self._forgotten: dict[int, int] = {}  # partition -> outcomes held by states that are forgotten

    def __len__(self) -> int:
        return len(self._states)

    def add(self, record: StateRecord) -> bool:
        route = self.route
        place = bisect_left(self._epochs, record.epoch)
        if place < len(self._epochs) and self._epochs[place] == record.epoch:
            return False
        value = route.policy.load(record.data, route.models)
        state = State(route, value, record, self._delay_ms)
        self._states.insert(place, state)
        self._epochs.insert(place, record.epoch)
        return True

    def copied(self, route: Route, most: int) -> StateHistory:
        """The same states for another version of the route."""
        copy = StateHistory(route, self._delay_ms)
        copy._forgotten = dict(self._forgotten)
        for state in self._states:
            copy.add(
                StateRecord(
                    route=route.name,
                    context=GLOBAL,  # a shared state is read alike in every context
                    policy=route.policy.name,
                    data=self.route.policy.dump(state.value),
                    includes={state.partition: state.included},
                    partition=state.partition,
                    epoch=state.epoch,
                    append_ms=state.append_ms,
                    previous=state.previous,
                )
            )
        copy.keep_newest(most)
        return copy

    def _arrange(self) -> None:
        """From the newest back: a state that would start only when a newer one holds already never holds."""
        steps: list[State] = []
        for state in reversed(self._states):
            if not steps or state.in_force_ms < steps[-1].in_force_ms:
                steps.append(state)
        steps.reverse()
        ends = self._ends(steps)
        self._steps = [state for _, state in ends]
        self._step_ms = [from_ms for from_ms, _ in ends]
        self._cut = bool(self._states) and self._states[0].previous != INITIAL_EPOCH

    def _ends(self, steps: list[State]) -> list[tuple[int, State]]:
        """From when each state is in force; the initial one where a state has become too old and none has followed."""
        found: list[tuple[int, State]] = []
        following = [state.in_force_ms for state in steps[1:]]
        for state, next_ms in zip_longest(steps, following, fillvalue=None):
            assert state is not None
            found.append((state.in_force_ms, state))
            if state.last_ms is not None and (next_ms is None or state.last_ms + 1 < next_ms):
                found.append((max(state.last_ms + 1, state.in_force_ms), self._initial))
        return found

    def ages_ms(self, epochs: I64, append_ms: I64) -> I64:
        """`[n]`: how old the state was that decided each request, or, where that was too old, would have; -1: none."""
        ages = np.full(len(epochs), -1, np.int64)
        for epoch in distinct(epochs):
            mine = epochs == epoch
            state = self.at_epoch(epoch)
            if INITIAL_EPOCH not in (epoch, state.epoch):
                ages[mine] = append_ms[mine] - state.append_ms
            elif epoch == INITIAL_EPOCH and self._states and self._states[-1].last_ms is not None:
                in_force = np.sort(np.array([state.in_force_ms for state in self._states]))
                at = np.searchsorted(in_force, append_ms[mine], side="right") - 1
                ages[mine] = np.where(at >= 0, append_ms[mine] - in_force[np.maximum(at, 0)] + self._delay_ms, -1)
        return np.maximum(ages, -1)

    def index_at(self, append_ms: int) -> int:
        """Index into the steps of the state in force; -1 for the initial one."""
        index = bisect_right(self._step_ms, append_ms) - 1
        return 0 if index < 0 and self._cut else index

    def indices_at(self, append_ms: I64) -> I64:
        """`[n]`: the same of each of these times."""
        index = np.searchsorted(np.asarray(self._step_ms, np.int64), append_ms, side="right") - 1
        return np.maximum(index, 0) if self._cut else index

    def state(self, index: int) -> State:
        return self._steps[index] if index >= 0 else self._initial

    @property
    def known_from_ms(self) -> int:
        """Requests from before this are decided by the oldest state that is remembered."""
        return self._step_ms[0] if self._cut else NEVER_MS

    def at_epoch(self, epoch: int) -> State:
        """The state of this epoch; where it is not known, the nearest older one."""
        place = bisect_right(self._epochs, epoch) - 1
        if place >= 0:
            return self._states[place]
        return self._states[0] if self._cut and epoch != INITIAL_EPOCH else self._initial

    def keep_newest(self, most: int) -> None:
        """Take note of what was added; the oldest states are forgotten. Requests from before the oldest one kept are
        decided by that one, and marked stale."""
        self._drop_late()
        over = len(self._states) - most
        if over > 0:
            for state in self._states[:over]:
                self._forgotten[state.partition] = max(state.included, self._forgotten.get(state.partition, 0))
            del self._states[:over]
        self._epochs = [state.epoch for state in self._states]
        self._arrange()

    def _drop_late(self) -> None:
        """Without those before which a state stands that holds more outcomes."""
        held, in_order = dict(self._forgotten), []
        for state in self._states:
            if state.included >= held.get(state.partition, 0):
                held[state.partition] = state.included
                in_order.append(state)
        self._states = in_order
