"""Which learnt state is in force when: the table that every role decides by.

A state is in force for requests appended at least `epoch_delay_ms` after it; of several, the highest offset wins;
before the first, the route's initial state holds. One that holds fewer outcomes than a state before it in the log is
never in force: its writer was shut out or gave it up, and it reached the log late. So workers, the aggregator and a
replay reach the same choice from the log alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import numpy as np

from streamserve.core.bounds import Fill, fullest
from streamserve.core.fast import constant, distinct, highest, indices, lowest
from streamserve.core.messages import F64, I64, INITIAL_EPOCH, U64, Choice
from streamserve.core.records import StateRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.base import Distribution, pick, salt_of
from streamserve.core.selection.masking import masked
from streamserve.core.switches import Switches, SwitchRecord

_NEVER_MS = -(1 << 62)


def outcome_partition(route: str, context: str, partitions: int) -> int:
    """Partition of a shared state: of the outcomes that teach it, of its epochs and of its snapshots."""
    value = salt_of(route, context)
    return (value ^ (value >> 32)) % partitions


class EpochTable:
    """Learnt states of all routes of an app, and choices under them. Routes are named by their index in the rules.

    Raises ConfigError when a policy does not fit its route's models, ContractError on a state that cannot be read.
    """

    def __init__(self, rules: AppRules) -> None:
        self._routes = [_RouteStates(route, rules.epoch_delay_ms) for route in rules.routes]
        self._most_states = rules.bounds.learnt_states
        self._by_name = {states.route.name: states for states in self._routes}
        self._delay_ms = rules.epoch_delay_ms
        self._known_ms = _NEVER_MS
        self._switches = Switches(rules.epoch_delay_ms)

    def switch(self, records: Iterable[SwitchRecord]) -> None:
        """Take switches of models as they stand in the log, in any order."""
        self._switches.apply(records)

    def apply(self, states: Iterable[StateRecord]) -> None:
        """Take states as they stand in the log, in any order, snapshots too; those of other policies are ignored."""
        changed = set()
        for record in states:
            table = self._by_name.get(record.route)
            if table is not None and table.add(record):
                changed.add(record.route)
        for name in changed:
            self._by_name[name].keep_newest(self._most_states)

    def fills(self) -> dict[str, Fill]:
        return {"learnt_states": fullest([Fill(len(table), self._most_states) for table in self._routes])}

    def known_until(self, ms: int) -> None:
        """Every state appended before this broker time has been applied."""
        self._known_ms = max(self._known_ms, ms)

    def choose(self, route: int, partition: I64, offsets: I64, append_ms: I64, *, without: U64 | None = None) -> Choice:
        """Choices of n requests. All columns `[n]`, in any order. `without`: models that each is not to be given to."""
        table = self._routes[route]
        if not len(offsets):
            return _choice_of_none()
        allowed = self._switches.allowed(table.route.models, append_ms) if self._switches else None
        if without is not None:
            asked = np.uint64((1 << len(table.route.models)) - 1) & ~without
            allowed = asked if allowed is None else np.where(allowed & asked != 0, allowed & asked, asked)
        if allowed is None:
            return self._choose(table, None, partition, offsets, append_ms)
        parts = [indices(allowed == mask) for mask in distinct(allowed)]
        found = [
            self._choose(table, int(allowed[rows[0]]), partition[rows], offsets[rows], append_ms[rows])
            for rows in parts
        ]
        return _in_place(parts, found)

    def _choose(self, table: _RouteStates, allowed: int | None, partition: I64, offsets: I64, append_ms: I64) -> Choice:
        """`allowed`: models that may be asked, as bits; None: all."""
        first_ms, last_ms = lowest(append_ms), highest(append_ms)
        low, high = table.index_at(first_ms), table.index_at(last_ms)
        if low == high:
            distribution, epoch = table.state(low)
            chosen, probability = pick(_without(distribution, allowed), partition, offsets, table.salt)
            epochs = constant(len(offsets), epoch)
        else:
            chosen, probability, epochs = table.choose_each(allowed, partition, offsets, append_ms)
        return Choice(
            chosen=chosen,
            probability=probability,
            epoch=epochs,
            stale=table.stale(append_ms, first_ms, last_ms, self._known_ms + self._delay_ms),
        )

    def value(self, route: int, epoch: int) -> Any:
        """The policy's state of this epoch; of an unknown one, the nearest older one's."""
        return self._routes[route].state_at_epoch(epoch).value

    def ages_ms(self, route: int, epochs: I64, append_ms: I64) -> I64:
        """`[n]`: how old, at its append, the state was that decided each request; -1 where none was there.

        Where it was older than the route allows, the initial state has decided; its age is told all the same.
        """
        return self._routes[route].ages_ms(epochs, append_ms)

    def weights(self, route: int, epoch: int) -> F64:
        """`[models]`, read-only: weights under this state; of an unknown epoch, those of the nearest older one."""
        return self._routes[route].at_epoch(epoch).weights


class _State:
    """One learnt state of a route; its distribution is computed when first needed, once."""

    __slots__ = (
        "_distribution", "append_ms", "epoch", "in_force_ms", "included", "partition", "previous", "route", "value",
    )  # fmt: skip

    def __init__(self, route: Route, value: object, record: StateRecord | None, delay_ms: int) -> None:
        """`record` None: the initial state."""
        self.route = route
        self.value = value
        self.epoch = INITIAL_EPOCH if record is None else record.epoch
        self.in_force_ms = _NEVER_MS if record is None else record.append_ms + delay_ms
        self.previous = INITIAL_EPOCH if record is None else record.previous
        self.partition = -1 if record is None else record.partition
        self.included = 0 if record is None else record.included
        self.append_ms = _NEVER_MS if record is None else record.append_ms
        self._distribution: Distribution | None = None

    @property
    def distribution(self) -> Distribution:
        if self._distribution is None:
            self._distribution = self.route.policy.distribution(self.value, self.route.models)
        return self._distribution


class _RouteStates:
    """States of one route, and the steps at which one takes over from the other."""

    def __init__(self, route: Route, delay_ms: int) -> None:
        self.route = route
        self.salt = salt_of(route.name, route.policy.name)
        self._delay_ms = delay_ms
        self._initial = _State(route, route.policy.initial(route.models), None, delay_ms)
        self._states: list[_State] = []  # by epoch
        self._epochs: list[int] = []
        self._steps: list[_State] = []  # by time; epochs rise too
        self._step_ms: list[int] = []
        self._cut = False  # states before the oldest one are not known any more
        self._forgotten: dict[int, int] = {}  # partition -> outcomes held by states that are forgotten

    def __len__(self) -> int:
        return len(self._states)

    def add(self, record: StateRecord) -> bool:
        route = self.route
        if not route.learns or record.policy != route.policy.name or record.context:
            return False
        place = bisect_left(self._epochs, record.epoch)
        if place < len(self._epochs) and self._epochs[place] == record.epoch:
            return False
        value = route.policy.load(record.data, route.models)
        state = _State(route, value, record, self._delay_ms)
        self._states.insert(place, state)
        self._epochs.insert(place, record.epoch)
        return True

    def _arrange(self) -> None:
        """From the newest back: a state that would start only when a newer one holds already never holds."""
        steps: list[_State] = []
        for state in reversed(self._states):
            if not steps or state.in_force_ms < steps[-1].in_force_ms:
                steps.append(state)
        steps.reverse()
        ends = self._ends(steps)
        self._steps = [state for _, state in ends]
        self._step_ms = [from_ms for from_ms, _ in ends]
        self._cut = bool(self._states) and self._states[0].previous != INITIAL_EPOCH

    def _ends(self, steps: list[_State]) -> list[tuple[int, _State]]:
        """From when each state is in force; the initial one where a state has become too old and none has followed."""
        most_ms = self.route.max_state_age_ms
        found: list[tuple[int, _State]] = []
        following = [state.in_force_ms for state in steps[1:]]
        for state, next_ms in zip_longest(steps, following, fillvalue=None):
            assert state is not None
            found.append((state.in_force_ms, state))
            too_old_ms = state.append_ms + most_ms + 1
            if most_ms and (next_ms is None or too_old_ms < next_ms):
                found.append((max(too_old_ms, state.in_force_ms), self._initial))
        return found

    def ages_ms(self, epochs: I64, append_ms: I64) -> I64:
        """`[n]`: how old the state was that decided each request, or, where that was too old, would have; -1: none."""
        ages = np.full(len(epochs), -1, np.int64)
        for epoch in distinct(epochs):
            mine = epochs == epoch
            state = self.state_at_epoch(epoch)
            if INITIAL_EPOCH not in (epoch, state.epoch):
                ages[mine] = append_ms[mine] - state.append_ms
            elif epoch == INITIAL_EPOCH and self.route.max_state_age_ms and self._states:
                in_force = np.sort(np.array([state.in_force_ms for state in self._states]))
                at = np.searchsorted(in_force, append_ms[mine], side="right") - 1
                ages[mine] = np.where(at >= 0, append_ms[mine] - in_force[np.maximum(at, 0)] + self._delay_ms, -1)
        return np.maximum(ages, -1)

    def index_at(self, append_ms: int) -> int:
        """Index into the steps of the state in force; -1 for the initial one."""
        index = bisect_right(self._step_ms, append_ms) - 1
        return 0 if index < 0 and self._cut else index

    def state(self, index: int) -> tuple[Distribution, int]:
        state = self._steps[index] if index >= 0 else self._initial
        return state.distribution, state.epoch

    def choose_each(self, allowed: int | None, partition: I64, offsets: I64, append_ms: I64) -> tuple[U64, I64, I64]:
        """Several states are in force over these requests: one pick for each of them."""
        index = np.searchsorted(np.asarray(self._step_ms, np.int64), append_ms, side="right") - 1
        if self._cut:
            index = np.maximum(index, 0)
        chosen = np.empty(len(offsets), np.uint64)
        probability = np.empty(len(offsets), np.int64)
        epochs = np.empty(len(offsets), np.int64)
        for step in np.unique(index):
            where = index == step
            distribution, epoch = self.state(int(step))
            part = _without(distribution, allowed)
            chosen[where], probability[where] = pick(part, partition[where], offsets[where], self.salt)
            epochs[where] = epoch
        return chosen, probability, epochs

    def stale(
        self, append_ms: I64, first_ms: int, last_ms: int, known_ms: int
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Where the state in force is not known for certain: too new, or older than what is remembered."""
        from_ms = self._step_ms[0] if self._cut else _NEVER_MS
        if not self.route.learns or (first_ms >= from_ms and last_ms <= known_ms):
            return constant(len(append_ms), 0, "bool")
        return (append_ms > known_ms) | (append_ms < from_ms)

    def at_epoch(self, epoch: int) -> Distribution:
        return self.state_at_epoch(epoch).distribution

    def state_at_epoch(self, epoch: int) -> _State:
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


def _without(distribution: Distribution, allowed: int | None) -> Distribution:
    return distribution if allowed is None else masked(distribution, allowed)


def _in_place(parts: list[I64], found: list[Choice]) -> Choice:
    """One choice of the choices of its parts."""
    back = np.argsort(np.concatenate(parts))
    return Choice(
        chosen=np.concatenate([part.chosen for part in found])[back],
        probability=np.concatenate([part.probability for part in found])[back],
        epoch=np.concatenate([part.epoch for part in found])[back],
        stale=np.concatenate([part.stale for part in found])[back],
    )


def _choice_of_none() -> Choice:
    return Choice(
        chosen=np.empty(0, np.uint64),
        probability=np.empty(0, np.int64),
        epoch=np.empty(0, np.int64),
        stale=np.empty(0, "bool"),
    )
