"""Metrics of what routes have learnt: weights, and how well confidence holds, by context.

What is heard is only kept; it is worked out when somebody looks. Contexts are names that users send, so there is a
bound: the first `MOST_CONTEXTS` of a route have figures of their own, later ones share a mean, and so do keyed ones.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from streamserve.core.contexts import GLOBAL, is_keyed
from streamserve.core.routes import Route

#: Of one route, beside the state that all its requests share.
MOST_CONTEXTS = 50
#: Labels of means; no context is called so.
FURTHER, KEYED = "/", "//"
#: Of contexts without a label of their own, the mean is over so many, heard last.
MOST_IN_A_MEAN = 100


class LearntMetrics:
    """The newest learnt states of each route as metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._routes: dict[str, _OfRoute] = {}
        registry.register(self)

    def heard(self, route: Route, context: str, learnt: Any) -> None:
        """The newest state of a context, as the route's policy has loaded it."""
        of_route = self._routes.get(route.name)
        if of_route is None or of_route.route is not route:
            of_route = self._routes[route.name] = _OfRoute(route)
        of_route.heard(context, learnt)

    def weights(self) -> dict[str, Mapping[str, float]]:
        """By route and model: of the state that all its requests share."""
        return {
            name: of_route.weights([of_route.named[GLOBAL]])
            for name, of_route in self._routes.items()
            if GLOBAL in of_route.named
        }

    def describe(self) -> list[Metric]:
        """Nothing beforehand: what there is depends on what was heard."""
        return []

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for it."""
        weights = GaugeMetricFamily(
            "streamserve_model_weight",
            'Newest learnt weight; context "": the state for all, "/": mean of further ones, "//": of keyed ones',
            labels=["route", "context", "model"],
        )
        sureness = GaugeMetricFamily(
            "streamserve_confidence",
            "Of what labels say lately: calibration error of the confidence, coverage and size of the sets. Of a "
            "context: as its own labels alone would have it; predictions tell what all labels of the route say",
            labels=["route", "context", "figure"],
        )
        for name, of_route in self._routes.items():
            for context, states in of_route.by_label():
                for model, weight in of_route.weights(states).items():
                    weights.add_metric([name, context, model], weight)
                for figure, value in of_route.sureness(states).items():
                    sureness.add_metric([name, context, figure], value)
        yield weights
        yield sureness


class _OfRoute:
    def __init__(self, route: Route) -> None:
        self.route = route
        self.named: dict[str, Any] = {}
        self._together: dict[str, OrderedDict[str, Any]] = {FURTHER: OrderedDict(), KEYED: OrderedDict()}

    def heard(self, context: str, learnt: Any) -> None:
        if context == GLOBAL or context in self.named:
            self.named[context] = learnt
        elif is_keyed(context):
            self._join(KEYED, context, learnt)
        elif len(self.named) - (GLOBAL in self.named) < MOST_CONTEXTS:
            self.named[context] = learnt
        else:
            self._join(FURTHER, context, learnt)

    def _join(self, label: str, context: str, learnt: Any) -> None:
        states = self._together[label]
        states[context] = learnt
        states.move_to_end(context)
        if len(states) > MOST_IN_A_MEAN:
            states.popitem(last=False)

    def by_label(self) -> Iterator[tuple[str, list[Any]]]:
        yield from ((context, [learnt]) for context, learnt in self.named.items())
        yield from ((label, list(states.values())) for label, states in self._together.items() if states)

    def weights(self, states: list[Any]) -> Mapping[str, float]:
        """By model, the mean over these states."""
        policy, models = self.route.policy, self.route.models
        mean = np.mean([policy.distribution(learnt, models).weights for learnt in states], axis=0)
        return dict(zip(models, mean.tolist(), strict=True))

    def sureness(self, states: list[Any]) -> Mapping[str, float]:
        """By figure, the mean over those of these states that have it."""
        if self.route.confident is None:
            return {}
        found: defaultdict[str, list[float]] = defaultdict(list)
        for learnt in states:
            for figure, value in self.route.confident.report(learnt).items():
                found[figure].append(value)
        return {figure: float(np.mean(values)) for figure, values in found.items()}
