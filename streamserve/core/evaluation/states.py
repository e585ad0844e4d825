"""What a policy has learnt while it is played over a log: a state a level of each context, published now and then."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

from streamserve.core.contexts import GLOBAL, features_of, is_keyed
from streamserve.core.records import OutcomeRecord
from streamserve.core.routes import Route
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.pooling import decided_by_features, features_read, pooled

#: A state decides this many outcomes before the next one is published, as by default in a running app.
PUBLISHED_EVERY = 100


#: A level of a context, and the partition that its state belongs to: of a keyed one that of its requests.
_Place = tuple[str, int]
_SHARED = -1


class PlayedStates:
    """As `EpochTable` decides and the update stage learns, with turns for time.

    Keyed states are kept by partition, and forgotten by the times that outcomes tell. `max_state_age_ms` is not played:
    it tells of a learner that is away.
    """

    def __init__(self, route: Route) -> None:
        rule, features = route.contexts, features_read(route.policy)
        if rule is not None and rule.features != features:
            # The log's vectors name no states; its names are no vectors: features are then as if none had come.
            route = replace(route, contexts=None if rule.features else replace(rule, features=features))
        self._route = route
        self._initial = route.policy.initial(route.models)
        self._states: dict[_Place, Any] = {}
        self._published: dict[_Place, Any] = {}
        self._learnt_ms: dict[_Place, int] = {}
        """Of keyed states: append time of the newest outcome."""
        self._distributions: dict[tuple[str, tuple[_Place, ...]], Distribution] = {}
        self._n_begun: Counter[int] = Counter()
        self._turns = 0

    def distribution(self, outcome: OutcomeRecord) -> Distribution:
        """What this outcome's request would have been decided by."""
        if self._turns % PUBLISHED_EVERY == 0:
            self._published = dict(self._states)
            self._distributions.clear()
        self._turns += 1
        context = outcome.decision.context if self._route.contexts is not None else GLOBAL
        asked_ms = outcome.feedback_ms if outcome.prediction_ms < 0 else outcome.prediction_ms
        places = tuple(
            place
            for place in self._places(outcome, context)
            if place in self._published and not self._is_forgotten(place, asked_ms)
        )
        found = self._distributions.get((context, places))
        if found is None:
            found = self._distributions[context, places] = self._decide(context, places)
        return found

    def learn(self, outcome: OutcomeRecord) -> None:
        for place in self._places(outcome, outcome.decision.context):
            level, partition = place
            if self._is_forgotten(place, outcome.append_ms):
                self._states[place] = self._initial
            if place not in self._states and level:
                if self._n_begun[partition] >= self._most(partition):
                    continue
                self._n_begun[partition] += 1
            self._states[place] = self._route.policy.learn(self._states.get(place, self._initial), outcome)
            if partition != _SHARED:
                self._learnt_ms[place] = outcome.append_ms

    def _places(self, outcome: OutcomeRecord, context: str) -> list[_Place]:
        levels = self._route.levels(context)
        return [(level, outcome.ref[0] if is_keyed(level) else _SHARED) for level in levels]

    def _most(self, partition: int) -> float:
        rule = self._route.contexts
        return math.inf if rule is None else rule.most if partition == _SHARED else rule.most_keyed

    def _is_forgotten(self, place: _Place, at_ms: int) -> bool:
        learnt_ms, rule = self._learnt_ms.get(place), self._route.contexts
        return learnt_ms is not None and rule is not None and at_ms > learnt_ms + rule.forget_after_ms

    def _decide(self, context: str, places: tuple[_Place, ...]) -> Distribution:
        route, rule = self._route, self._route.contexts
        taught = [self._published[place] for place in places]
        if rule is not None and rule.features:
            features = features_of(context, rule.features) or (0.0,) * rule.features
            return decided_by_features(route.policy, (taught or [self._initial])[-1], route.models, features)
        value = pooled(route.policy, taught, 0.0 if rule is None else rule.pooling) if taught else self._initial
        return route.policy.distribution(value, route.models)
