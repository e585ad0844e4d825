"""Metrics of what routes have learnt: shares, weights, losses, regret, and how well confidence holds, by context.

What is heard is only kept; it is worked out when somebody looks. Contexts are names that users send, so there is a
bound: the first `MOST_CONTEXTS` of a route have figures of their own, later ones share a mean, and so do keyed ones.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from streamserve.core.contexts import GLOBAL, is_keyed
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route
from streamserve.core.selection.figures import StateFigures, figures_of

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

    def heard(self, route: Route, state: StateRecord, learnt: Any) -> None:
        """The newest state of a context, and as the route's policy has loaded it."""
        of_route = self._routes.get(route.name)
        if of_route is None or of_route.route is not route:
            of_route = self._routes[route.name] = _OfRoute(route)
        of_route.heard(state, learnt)

    def weights(self) -> dict[str, Mapping[str, float]]:
        """By route and model: of the state that all its requests share."""
        return {
            name: figures_of(of_route.route.policy, of_route.named[GLOBAL].learnt, of_route.route.models).weights
            for name, of_route in self._routes.items()
            if GLOBAL in of_route.named
        }

    def describe(self) -> list[Metric]:
        """Nothing beforehand: what there is depends on what was heard."""
        return []

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for it."""
        by_model = {field: _family(name, words, "model") for field, (name, words) in _BY_MODEL.items()}
        by_state = {field: _family(name, words) for field, (name, words) in _BY_STATE.items()}
        sureness = _family(
            "confidence",
            "Of what labels say lately: calibration error of the confidence, coverage and size of the sets. Of a "
            "context: as its own labels alone would have it; predictions tell what all labels of the route say",
            "figure",
        )
        for name, of_route in self._routes.items():
            for context, heard in of_route.by_label():
                found = of_route.figures(heard)
                for field, family in by_model.items():
                    for model, value in _means([getattr(one, field) for one in found]).items():
                        family.add_metric([name, context, model], value)
                by_state["entropy"].add_metric([name, context], float(np.mean([one.entropy for one in found])))
                if context not in (FURTHER, KEYED):
                    _add_own(by_state, [name, context], heard[0], found[0])
                for figure, value in of_route.sureness(heard).items():
                    sureness.add_metric([name, context, figure], value)
        yield from by_model.values()
        yield from by_state.values()
        yield sureness


_CONTEXTS = 'context "": the state for all, "/": mean of further ones, "//": of keyed ones'
_BY_MODEL = {
    "weights": ("model_weight", f"Newest learnt weight; {_CONTEXTS}"),
    "shares": (
        "model_share",
        "Part of requests that the newest learnt state gives a model, before switches and freezes; contexts as of "
        "streamserve_model_weight",
    ),
    "losses": (
        "model_loss",
        "Mean loss of the model's judged answers, decayed as its policy forgets; in the state, so exact after a crash",
    ),
    "effective": ("model_effective_outcomes", "Answers of equal weight that streamserve_model_loss is as good as"),
}
#: Of states with a label of their own; of means the entropy alone.
_BY_STATE = {
    "entropy": ("weight_entropy", "Of the newest learnt weights, in nats: 0 where one model has all"),
    "outcomes": ("learnt_outcomes", "Outcomes in the newest state that judged a model, ever; exact after a crash"),
    "regret": (
        "regret",
        "Loss of what was answered, less that of the best single model in hindsight, over the labels that judged every "
        "model since these models are together; exact after a crash. Below 0: better than any one",
    ),
    "full": ("regret_outcomes", "Labels that streamserve_regret is summed over"),
    "epoch": ("state_epoch", "Version of the newest learnt state: its offset in its partition of the epochs topic"),
    "append_ms": ("state_timestamp_seconds", "When the newest learnt state was appended, by the broker's clock"),
}


def _family(name: str, words: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"streamserve_{name}", words, labels=["route", "context", *more])


def _add_own(by_state: Mapping[str, GaugeMetricFamily], labels: list[str], heard: _Heard, one: StateFigures) -> None:
    by_state["epoch"].add_metric(labels, heard.epoch)
    by_state["append_ms"].add_metric(labels, heard.append_ms / 1000)
    by_state["outcomes"].add_metric(labels, one.outcomes)
    if one.regret is not None:
        by_state["regret"].add_metric(labels, one.regret)
        by_state["full"].add_metric(labels, one.full)


def _means(found: list[Mapping[str, float]]) -> Mapping[str, float]:
    """By key, the mean over those that have it."""
    if len(found) == 1:
        return found[0]
    values: defaultdict[str, list[float]] = defaultdict(list)
    for one in found:
        for key, value in one.items():
            values[key].append(value)
    return {key: float(np.mean(of_key)) for key, of_key in values.items()}


@dataclass(frozen=True, slots=True)
class _Heard:
    learnt: Any
    epoch: int
    append_ms: int


class _OfRoute:
    def __init__(self, route: Route) -> None:
        self.route = route
        self.named: dict[str, _Heard] = {}
        self._together: dict[str, OrderedDict[str, _Heard]] = {FURTHER: OrderedDict(), KEYED: OrderedDict()}

    def heard(self, state: StateRecord, learnt: Any) -> None:
        context, heard = state.context, _Heard(learnt, state.epoch, state.append_ms)
        if context == GLOBAL or context in self.named:
            self.named[context] = heard
        elif is_keyed(context):
            self._join(KEYED, context, heard)
        elif len(self.named) - (GLOBAL in self.named) < MOST_CONTEXTS:
            self.named[context] = heard
        else:
            self._join(FURTHER, context, heard)

    def _join(self, label: str, context: str, heard: _Heard) -> None:
        states = self._together[label]
        states[context] = heard
        states.move_to_end(context)
        if len(states) > MOST_IN_A_MEAN:
            states.popitem(last=False)

    def by_label(self) -> Iterator[tuple[str, list[_Heard]]]:
        yield from ((context, [heard]) for context, heard in self.named.items())
        yield from ((label, list(states.values())) for label, states in self._together.items() if states)

    def figures(self, states: list[_Heard]) -> list[StateFigures]:
        return [figures_of(self.route.policy, heard.learnt, self.route.models) for heard in states]

    def sureness(self, states: list[_Heard]) -> Mapping[str, float]:
        """By figure, the mean over those of these states that have it."""
        confident = self.route.confident
        return {} if confident is None else _means([confident.report(heard.learnt) for heard in states])
