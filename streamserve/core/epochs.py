"""Which learnt state is in force when: the table that every role decides by.

A state is in force for requests appended at least `epoch_delay_ms` after it; of several, the highest offset wins;
before the first, the route's initial state holds. One that holds fewer outcomes than a state before it in the log is
never in force: its writer was shut out or gave it up, and it reached the log late. So workers, the aggregator and a
replay reach the same choice from the log alone.

A route with contexts has one such state for each context and level. A request is decided by those of its levels that
have learnt something by then: the most special one, drawn towards the one above it (`selection/pooling.py`); a context
that has learnt nothing yet is decided as the level above it is. The epoch of a choice is that of the context's own
state: with the time of the request it tells which states the levels above were in.

A keyed state is known to the owners of its partition only (`own`, `disown`); its epoch is an offset in the partition of
the requests that it decides.

Long since taking states, choosing and saying later what a choice was decided by are one rule about the same table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from streamserve.core.bounds import Fill, fullest
from streamserve.core.contexts import GLOBAL, ContextRule, features_of, is_keyed
from streamserve.core.events import ContextsFetched, StatesFetched, StatesKnownUntil
from streamserve.core.fast import constant, distinct, every, has_bit, highest, lowest, some
from streamserve.core.history import NEVER_MS, State, StateHistory
from streamserve.core.keyed_histories import KeyedHistories
from streamserve.core.messages import F64, I64, INITIAL_EPOCH, U64, Choice, Flags
from streamserve.core.records import StateRecord
from streamserve.core.route_versions import Routes, RoutesRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.around import Around, frozen_models
from streamserve.core.selection.base import Distribution, pick, salt_of
from streamserve.core.selection.masking import masked
from streamserve.core.selection.pooling import decided_by_features, pooled
from streamserve.core.switches import Switches, SwitchRecord
from streamserve.core.values import unchanging

#: Distributions of a route that are remembered: of a context and the states that it is decided by.
_REMEMBERED = 4096

_Key = TypeVar("_Key", bound=Hashable)


def outcome_partition(route: str, context: str, partitions: int) -> int:
    """Partition of a shared state: of the outcomes that teach it, of its epochs and of its snapshots."""
    value = salt_of(route, context)
    return (value ^ (value >> 32)) % partitions


def home_of(route: str, context: str, request_partition: int, partitions: int) -> int:
    """Partition of the state of this context, as a request of that partition knows it."""
    return request_partition if is_keyed(context) else outcome_partition(route, context, partitions)


class Decided(Protocol):
    """What a request is decided by: one learnt state, or several drawn together."""

    @property
    def value(self) -> Any:
        """A state of the route's policy."""
        ...

    @property
    def distribution(self) -> Distribution: ...


@unchanging()
class Pooled:
    """States of several levels drawn together, or one state with the features of a request."""

    value: Any
    distribution: Distribution


class EpochTable:
    """Learnt states of all routes of an app, and choices under them. Routes are named by their index in `routes`.

    Raises ConfigError when a policy does not fit its route's models, ContractError on a state that cannot be read.
    """

    def __init__(self, rules: AppRules) -> None:
        self.routes = Routes(rules.routes, delay_ms=rules.routes_delay_ms, keep_ms=rules.keep_ms)
        self._delay_ms, self._keep_ms = rules.epoch_delay_ms, rules.keep_ms
        self._most_states = rules.bounds.learnt_states
        self._owned: set[int] = set()
        self._keyed: dict[tuple[str, str, int], KeyedHistories] = {}
        """By name of the route, policy, and partition: of those that are owned."""
        self._routes: dict[int, _RouteStates] = {}
        self._by_name: dict[str, list[_RouteStates]] = {}
        self._follow()
        self._known_ms = NEVER_MS
        self._switches = Switches(rules.epoch_delay_ms)

    def change(self, records: Iterable[RoutesRecord]) -> None:
        """Take versions of the routes, in the order of the log. Raises ConfigError as the table itself."""
        turns = self.routes.turns
        self.routes.apply(records)
        if self.routes.turns != turns:
            self._follow()

    def _follow(self) -> None:
        """A table of states for each version. A new one begins with what is known of its route: states name models."""
        before, self._routes, self._by_name = self._routes, {}, {}
        for index, route in sorted(self.routes.live.items()):
            table = before.get(index)
            if table is None:
                table = _RouteStates(route, self._delay_ms)
                elders = [other for other in before.values() if other.route.name == route.name]
                if elders:
                    table.take_over(elders[-1], self._most_states)
                self._own(table, self._owned)
            self._routes[index] = table
            self._by_name.setdefault(route.name, []).append(table)
        wanted = {(table.route.name, table.route.policy.name) for table in self._routes.values()}
        self._keyed = {key: rows for key, rows in self._keyed.items() if key[:2] in wanted}

    def switch(self, records: Iterable[SwitchRecord]) -> None:
        """Take switches of models as they stand in the log, in any order."""
        self._switches.apply(records)

    def own(self, partitions: Iterable[int]) -> None:
        """Requests of these partitions are to be decided: their keyed states count from now on, and will be loaded."""
        partitions = tuple(partitions)
        self._owned.update(partitions)
        for partition in partitions:
            self._forget(partition)
        for table in self._routes.values():
            self._own(table, partitions)

    def _own(self, table: _RouteStates, partitions: Iterable[int]) -> None:
        """All versions of a route share the rows of a partition."""
        route = table.route
        if not route.keyed or not route.learns:
            return
        for partition in partitions:
            key = route.name, route.policy.name, partition
            histories = self._keyed.get(key)
            if histories is None:
                histories = self._keyed[key] = KeyedHistories(route, partition, self._delay_ms, self._keep_ms)
            table.keyed[partition] = histories

    def disown(self, partitions: Iterable[int]) -> None:
        """Forget the keyed states of these partitions."""
        for partition in partitions:
            self._owned.discard(partition)
            self._forget(partition)

    def _forget(self, partition: int) -> None:
        self._keyed = {key: rows for key, rows in self._keyed.items() if key[2] != partition}
        for table in self._routes.values():
            table.keyed.pop(partition, None)

    def take(self, event: StatesFetched | ContextsFetched | StatesKnownUntil) -> None:
        """What has been read of the log."""
        match event:
            case StatesFetched():
                self.change(event.routes)
                self.apply(event.states)
                self.switch(event.switches)
            case ContextsFetched():
                self.apply(event.states)
                for (_, _, partition), histories in self._keyed.items() if event.loaded else ():
                    histories.loaded |= partition == event.partition
            case StatesKnownUntil():
                self.known_until(event.known_until_ms)

    def apply(self, states: Iterable[StateRecord]) -> None:
        """Take states as they stand in the log, in any order, snapshots too; those of other policies are ignored, and
        so are keyed ones of partitions that are not owned."""
        changed: dict[StateHistory, None] = {}
        for record in states:
            if is_keyed(record.context):
                keyed = self._keyed.get((record.route, record.policy, record.partition))
                if keyed is not None:
                    keyed.add(record)
                continue
            for table in self._by_name.get(record.route, ()):
                if not table.uses(record):
                    continue
                history = table.history_for(record)
                if history is not None and history.add(record):
                    changed[history] = None
        for history in changed:
            history.keep_newest(self._most_states)

    def fills(self) -> dict[str, Fill]:
        held = [Fill(table.most_held, self._most_states) for table in self._routes.values()]
        return {"learnt_states": fullest(held)}

    def known_until(self, ms: int) -> None:
        """Every state appended before this broker time has been applied."""
        self._known_ms = max(self._known_ms, ms)
        for histories in self._keyed.values():
            histories.known_until(self._known_ms)

    def choose(
        self,
        route: int,
        partition: I64,
        offsets: I64,
        append_ms: I64,
        contexts: Sequence[str] | None = None,
        *,
        without: U64 | None = None,
    ) -> Choice:
        """Choices of n requests. All columns `[n]`, in any order. `contexts` None: the state for all. `without`: models
        that each is not to be given to."""
        n = len(offsets)
        if not n:
            return _empty_choice(0)
        table, known_ms = self._routes[route], self._known_ms + self._delay_ms
        allowed = self._allowed(table, append_ms, without)
        if table.route.contexts is None:
            contexts = None
        if contexts is None and allowed is None:
            return table.choose((GLOBAL, -1, None), partition, offsets, append_ms, known_ms)
        masks: list[Any] = [None] * n if allowed is None else allowed.tolist()
        contexts = contexts or [GLOBAL] * n
        groups = places_of(list(zip(contexts, table.partitions_of(contexts, partition), masks, strict=True)))
        if len(groups) == 1:
            return table.choose(next(iter(groups)), partition, offsets, append_ms, known_ms)
        choice = _empty_choice(n)
        for asked, at in groups.items():
            rows = np.array(at, np.int64)
            part = table.choose(asked, partition[rows], offsets[rows], append_ms[rows], known_ms)
            choice.chosen[rows], choice.probability[rows] = part.chosen, part.probability
            choice.epoch[rows], choice.stale[rows] = part.epoch, part.stale
        return choice

    def may_ask(self, route: int, model: str, append_ms: I64) -> Flags:
        """`[n]`: whether no switch forbids to ask this model for requests of these append times."""
        models = self._routes[route].route.models
        allowed = self._switches.allowed(models, append_ms) if self._switches else None
        if allowed is None:
            return np.ones(len(append_ms), np.bool_)
        return has_bit(allowed, models.index(model))

    def _allowed(self, table: _RouteStates, append_ms: I64, without: U64 | None) -> U64 | None:
        """`[n]`: models that may be asked, as bits; None: all. Where none would be left, a switch counts more than a
        freeze, a request's wish more than both."""
        models = table.route.models
        allowed = self._switches.allowed(models, append_ms) if self._switches else None
        frozen = table.frozen(append_ms, self._switches)
        if frozen is not None:
            switched = np.uint64((1 << len(models)) - 1) if allowed is None else allowed
            allowed = np.where(switched & ~frozen != 0, switched & ~frozen, switched)
        if without is None:
            return allowed
        asked = np.uint64((1 << len(models)) - 1) & ~without
        return asked if allowed is None else np.where(allowed & asked != 0, allowed & asked, asked)

    def ages_ms(
        self,
        route: int,
        epochs: I64,
        append_ms: I64,
        contexts: Sequence[str] | None = None,
        partition: I64 | None = None,
    ) -> I64:
        """`[n]`: how old, at its append, the state was that decided each request (with contexts: the context's own); -1
        where none was there.

        Where it was older than the route allows, the initial state has decided; its age is told all the same.
        """
        table = self._routes[route]
        if contexts is None or table.route.contexts is None:
            return table.own_history(GLOBAL).ages_ms(epochs, append_ms)
        ages = np.full(len(epochs), -1, np.int64)
        for (context, number), at in table.places_by_state(contexts, partition).items():
            rows = np.array(at, np.int64)
            ages[rows] = table.own_history(context, number).ages_ms(epochs[rows], append_ms[rows])
        return ages

    def deciding(
        self,
        route: int,
        epochs: I64,
        append_ms: I64 | None = None,
        contexts: Sequence[str] | None = None,
        partition: I64 | None = None,
    ) -> tuple[I64, list[Decided]]:
        """`[n]`: which of the second each request is decided by, under states of these epochs; of one that is not
        known, the nearest older one.

        `append_ms`, `contexts` and `partition`: of the requests; None where the state for all decides.
        """
        table = self._routes[route]
        if contexts is None or append_ms is None or table.route.contexts is None:
            if len(epochs) and every(epochs == epochs[0]):
                return constant(len(epochs), 0), [table.at_epoch(int(epochs[0]))]
            kinds, of_kind = np.unique(epochs, return_inverse=True)
            return of_kind, [table.at_epoch(epoch) for epoch in kinds.tolist()]
        number = np.zeros(len(epochs), np.int64)
        found: list[Decided] = []
        for (context, number_of_partition), at in table.places_by_state(contexts, partition).items():
            rows = np.array(at, np.int64)
            of_kind, decided = table.decided(context, number_of_partition, epochs[rows], append_ms[rows])
            number[rows] = of_kind + len(found)
            found += decided
        return number, found

    def weights(
        self,
        route: int,
        epochs: I64,
        append_ms: I64 | None = None,
        contexts: Sequence[str] | None = None,
        partition: I64 | None = None,
    ) -> F64:
        """`[n, models]`: weights under these states; otherwise as `deciding`."""
        number, found = self.deciding(route, epochs, append_ms, contexts, partition)
        if len(found) == 1:
            return np.tile(found[0].distribution.weights, (len(epochs), 1))
        weights = np.zeros((len(epochs), len(self._routes[route].route.models)))
        for place, decided in enumerate(found):
            weights[number == place] = decided.distribution.weights
        return weights

    def weights_of_all(self, route: int, epoch: int) -> F64:
        """`[models]`, read-only: weights under this state of the route for all."""
        return self._routes[route].at_epoch(epoch).distribution.weights


def places_of(keys: Sequence[_Key]) -> dict[_Key, list[int]]:
    """Places of each distinct key."""
    found: dict[_Key, list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    return found


class _RouteStates:
    """States of one route by context, and what they decide together."""

    def __init__(self, route: Route, delay_ms: int) -> None:
        self.route = route
        self.keyed: dict[int, KeyedHistories] = {}
        """By partition, of those that are owned."""
        self._rule = route.contexts or ContextRule()
        self._salt = salt_of(route.name, route.policy.name)
        self._delay_ms = delay_ms
        self._all = StateHistory(route, delay_ms)
        self._histories = {GLOBAL: self._all}
        self._decided: dict[tuple[str, tuple[State, ...]], Decided] = {}

    def frozen(self, append_ms: I64, switches: Switches) -> U64 | None:
        """`[n]`: models that the state for all has frozen and no operator has switched on since, as bits; None: none.

        Each request by the state that is in force for it, as its choice is.
        """
        policy, models = self.route.policy, self.route.models
        if not isinstance(policy, Around):
            return None
        at = self._all.indices_at(append_ms)
        masks = np.zeros(len(append_ms), np.uint64)
        for index in distinct(at):
            for model, one in frozen_models(policy, self._all.state(index).value).items():
                rows = (at == index) & ~switches.lifted(model, one.since_ms, append_ms)
                masks[rows] |= np.uint64(1 << models.index(model))
        return masks if some(masks != 0) else None

    def take_over(self, elder: _RouteStates, most: int) -> None:
        """Begin with the shared states of another version of the route."""
        if not self.route.learns or not elder.route.learns or self.route.policy.name != elder.route.policy.name:
            return
        by_context = self.route.contexts is not None and not self.route.contexts.features
        for context, history in elder._histories.items():
            if context == GLOBAL or by_context:
                self._histories[context] = history.copied(self.route, most)
        self._all = self._histories[GLOBAL]

    @property
    def most_held(self) -> int:
        return max(len(history) for history in self._histories.values())

    def uses(self, record: StateRecord) -> bool:
        return self.route.learns and record.policy == self.route.policy.name

    def history_for(self, record: StateRecord) -> StateHistory | None:
        """Where this record of a shared state belongs; None where it is of no use."""
        route = self.route
        history = self._histories.get(record.context)
        if history is None and route.contexts is not None and not route.contexts.features:
            history = self._histories[record.context] = StateHistory(route, self._delay_ms)
        return history

    def at_epoch(self, epoch: int) -> State:
        return self._all.at_epoch(epoch)

    def partitions_of(self, contexts: Sequence[str], partition: I64 | None) -> list[int]:
        """`[n]`: of the keyed state that each request may be decided by; -1 where shared ones alone decide."""
        if partition is None or not self._rule.keyed:
            return [-1] * len(contexts)
        return [
            number if is_keyed(context) else -1 for context, number in zip(contexts, partition.tolist(), strict=True)
        ]

    def places_by_state(self, contexts: Sequence[str], partition: I64 | None) -> dict[tuple[str, int], list[int]]:
        """Places of each distinct (context, partition as above)."""
        return places_of(list(zip(contexts, self.partitions_of(contexts, partition), strict=True)))

    def own_history(self, context: str, partition: int = -1) -> StateHistory:
        """Of the state that a context's choices are named by; the nearest level above it while it has none."""
        return self._all if self._rule.features else self._chain(context, partition)[0][-1]

    def _chain(self, context: str, partition: int) -> tuple[list[StateHistory], StateHistory | None]:
        """The histories of a context's levels, from the general to the special, and the last level's own if any."""
        if context == GLOBAL or self._rule.features:
            return [self._all], self._all
        own: StateHistory | None = None
        found: list[StateHistory] = []
        for level in self._rule.levels(context):
            own = self._histories.get(level)
            if own is None and is_keyed(level) and partition in self.keyed:
                own = self.keyed[partition].history(level, self.route)
            if own is not None:
                found.append(own)
        return found, own

    def choose(
        self, asked: tuple[str, int, int | None], partition: I64, offsets: I64, append_ms: I64, known_ms: int
    ) -> Choice:
        """Of requests of one context and one partition of keyed states, and of the models that they may be given to, as
        bits; None: all."""
        context, number, allowed = asked
        chain, history = self._chain(context, number)
        own = history is not None
        first_ms, last_ms = lowest(append_ms), highest(append_ms)
        indices = [history.index_at(first_ms) for history in chain]
        if indices == [history.index_at(last_ms) for history in chain]:
            states = [history.state(index) for history, index in zip(chain, indices, strict=True)]
            distribution = self._decide(context, states).distribution
            chosen, probability = pick(_without(distribution, allowed), partition, offsets, self._salt)
            epochs = constant(len(offsets), states[-1].epoch if own else INITIAL_EPOCH)
        else:
            places = (partition, offsets, append_ms)
            chosen, probability, epochs = self._choose_each((context, allowed), chain, own, places)
        return Choice(
            chosen=chosen,
            probability=probability,
            epoch=epochs,
            stale=self._stale(chain, append_ms, first_ms, last_ms, self._known_ms(number, known_ms)),
        )

    def _known_ms(self, partition: int, known_ms: int) -> int:
        """Until when the states are known that decide; never, while keyed ones of this partition are not read."""
        if partition < 0 or (partition in self.keyed and self.keyed[partition].loaded):
            return known_ms
        return NEVER_MS

    def _choose_each(
        self, asked: tuple[str, int | None], chain: list[StateHistory], own: bool, places: tuple[I64, I64, I64]
    ) -> tuple[U64, I64, I64]:
        """Several states are in force over these requests: one pick for each of them."""
        context, allowed = asked
        partition, offsets, append_ms = places
        steps, of_step = np.unique(
            np.stack([history.indices_at(append_ms) for history in chain]), axis=1, return_inverse=True
        )
        chosen = np.empty(len(offsets), np.uint64)
        probability = np.empty(len(offsets), np.int64)
        epochs = np.empty(len(offsets), np.int64)
        for number, indices in enumerate(steps.T.tolist()):
            where = of_step.reshape(-1) == number
            states = [history.state(index) for history, index in zip(chain, indices, strict=True)]
            distribution = _without(self._decide(context, states).distribution, allowed)
            chosen[where], probability[where] = pick(distribution, partition[where], offsets[where], self._salt)
            epochs[where] = states[-1].epoch if own else INITIAL_EPOCH
        return chosen, probability, epochs

    def decided(self, context: str, partition: int, epochs: I64, append_ms: I64) -> tuple[I64, list[Decided]]:
        """`EpochTable.deciding` of requests of one context, and one partition of keyed states."""
        chain, own = self._chain(context, partition)
        above = chain[:-1] if own is chain[-1] else chain
        columns = [epochs, *(history.indices_at(append_ms) for history in above)]
        kinds = np.stack(columns)
        if every(kinds == kinds[:, :1]):  # as mostly: of one moment, by one state
            kinds, of_kind = kinds[:, :1], np.zeros(len(epochs), np.int64)
        else:
            kinds, of_kind = np.unique(kinds, axis=1, return_inverse=True)
        found = []
        for epoch, *indices in kinds.T.tolist():
            states = [history.state(index) for history, index in zip(above, indices, strict=True)]
            if own is not None:
                states.append(own.at_epoch(epoch))
            found.append(self._decide(context, states))
        return of_kind.reshape(-1), found

    def _decide(self, context: str, states: Sequence[State]) -> Decided:
        """What these states decide together; those that have learnt nothing have no say."""
        taught = tuple(state for state in states if state.epoch != INITIAL_EPOCH)
        if len(taught) < len(states):
            states = taught or states[:1]
        if not self._rule.features and len(states) == 1:
            return states[0]
        key = (context, tuple(states))
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= _REMEMBERED:
                self._decided.clear()
            found = self._decided[key] = self._pool(context, states)
        return found

    def _pool(self, context: str, states: Sequence[State]) -> Decided:
        policy, models = self.route.policy, self.route.models
        if self._rule.features:
            features = features_of(context, self._rule.features)
            assert features is not None  # else the request was refused
            value = states[-1].value
            return Pooled(value=value, distribution=decided_by_features(policy, value, models, features))
        value = pooled(policy, [state.value for state in states], self._rule.pooling)
        return Pooled(value=value, distribution=policy.distribution(value, models))

    def _stale(self, chain: list[StateHistory], append_ms: I64, first_ms: int, last_ms: int, known_ms: int) -> Flags:
        """Where the states in force are not known for certain: too new, or older than what is remembered."""
        from_ms = max(history.known_from_ms for history in chain)
        if not self.route.learns or (first_ms >= from_ms and last_ms <= known_ms):
            return constant(len(append_ms), 0, "bool")
        return (append_ms > known_ms) | (append_ms < from_ms)


def _without(distribution: Distribution, allowed: int | None) -> Distribution:
    return distribution if allowed is None else masked(distribution, allowed)


def _empty_choice(n: int) -> Choice:
    return Choice(
        chosen=np.empty(n, np.uint64),
        probability=np.empty(n, np.int64),
        epoch=np.empty(n, np.int64),
        stale=np.empty(n, "bool"),
    )
