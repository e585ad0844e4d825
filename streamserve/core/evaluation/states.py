"""What a policy has learnt while it is played over a log: a state a level of each context, published now and then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamserve.core.contexts import GLOBAL, features_of, is_keyed
from streamserve.core.records import OutcomeRecord
from streamserve.core.routes import Route
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.pooling import decided_by_features, features_read, pooled

#: A state decides this many outcomes before the next one is published, as by default in a running app.
PUBLISHED_EVERY = 100


class PlayedStates:
    """As `EpochTable` decides and the update stage learns, with turns for time."""

    def __init__(self, route: Route) -> None:
        rule, features = route.contexts, features_read(route.policy)
        if rule is not None and rule.features != features:
            # The log's vectors name no states; its names are no vectors: features are then as if none had come.
            route = replace(route, contexts=None if rule.features else replace(rule, features=features))
        self._route = route
        self._initial = route.policy.initial(route.models)
        self._states: dict[str, Any] = {}
        self._published: dict[str, Any] = {}
        self._distributions: dict[str, Distribution] = {}
        self._n_shared = 0
        self._turns = 0

    def distribution(self, outcome: OutcomeRecord) -> Distribution:
        """What this outcome's request would have been decided by."""
        if self._turns % PUBLISHED_EVERY == 0:
            self._published = dict(self._states)
            self._distributions.clear()
        self._turns += 1
        context = outcome.decision.context if self._route.contexts is not None else GLOBAL
        found = self._distributions.get(context)
        if found is None:
            found = self._distributions[context] = self._decide(context)
        return found

    def learn(self, outcome: OutcomeRecord) -> None:
        route = self._route
        for level in route.levels(outcome.decision.context):
            rule = route.contexts
            # Of keyed ones a log has as many as it has keys.
            is_shared = level not in self._states and level and not is_keyed(level)
            if is_shared and rule is not None and self._n_shared >= rule.most:
                continue
            self._n_shared += bool(is_shared)
            self._states[level] = route.policy.learn(self._states.get(level, self._initial), outcome)

    def _decide(self, context: str) -> Distribution:
        route, rule = self._route, self._route.contexts
        taught = [self._published[level] for level in route.levels(context) if level in self._published]
        if rule is not None and rule.features:
            features = features_of(context, rule.features) or (0.0,) * rule.features
            return decided_by_features(route.policy, (taught or [self._initial])[-1], route.models, features)
        value = pooled(route.policy, taught, 0.0 if rule is None else rule.pooling) if taught else self._initial
        return route.policy.distribution(value, route.models)
