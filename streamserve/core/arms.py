"""Whether feedback comes alike for all the models that a policy draws between.

Where it does not, what is learnt from it is biased, and nothing simple helps: whoever is reported less looks worse or
better than it is. So shares of predictions that get feedback are counted by model and compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamserve.core.effects import Count

#: Predictions of a route after which its models are compared, and counted from nothing again.
COMPARED_EVERY = 5_000
#: That equal rates look so different has at most this probability.
ALARM_BELOW = 1e-3
#: A model with fewer predictions is not compared.
_FEWEST = 50
_CHOSEN, _ROUTE = b'"chosen":"', b'{"model_name":"'
_CHOSEN_BYTES, _ROUTE_BYTES = len(_CHOSEN), len(_ROUTE)


@dataclass(slots=True, kw_only=True)
class _Counts:
    predicted: dict[str, int] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    total: int = 0


class Arms:
    """Counts of the routes of one join; `effects` tells what is new.

    `streamserve_events_total` gets `arm_predictions`, `arm_joined` and `arm_delay_ms` (label `<route>/<model>`), whose
    quotients are join rates and mean delays; and `join_rates_differ` (label: the route), which is the alarm.
    """

    def __init__(self) -> None:
        self._routes: dict[str, _Counts] = {}
        self._new: dict[tuple[str, str], int] = {}
        self._predicted: dict[tuple[str, str], int] = {}

    def predicted(self, raw: bytes) -> None:
        """A terminal record as it stands in the log; one that was given to several models counts for none."""
        place = arm_of(raw)
        if place is None:
            return
        route, model = place
        counts = self._routes.get(route)
        if counts is None:
            counts = self._routes[route] = _Counts()
        counts.predicted[model] = counts.predicted.get(model, 0) + 1
        counts.total += 1
        self._predicted[place] = self._predicted.get(place, 0) + 1
        if counts.total >= COMPARED_EVERY:
            if chance_of_equal(counts.predicted, counts.joined) < ALARM_BELOW:
                self._count("join_rates_differ", route, 1)
            self._routes[route] = _Counts()

    def joined(self, route: str, chosen: tuple[str, ...], delay_ms: int) -> None:
        """Feedback has met the prediction of a request that was given to these models."""
        if len(chosen) != 1:
            return
        counts = self._routes.setdefault(route, _Counts())
        counts.joined[chosen[0]] = counts.joined.get(chosen[0], 0) + 1
        self._count("arm_joined", f"{route}/{chosen[0]}", 1)
        self._count("arm_delay_ms", f"{route}/{chosen[0]}", max(0, delay_ms))

    def effects(self) -> list[Count]:
        effects = [
            Count(what="arm_predictions", label=f"{route}/{model}", n=n)
            for (route, model), n in self._predicted.items()
        ]
        effects += [Count(what=what, label=label, n=n) for (what, label), n in self._new.items() if n]
        self._new, self._predicted = {}, {}
        return effects

    def _count(self, what: str, label: str, n: int) -> None:
        self._new[what, label] = self._new.get((what, label), 0) + n


def arm_of(raw: bytes) -> tuple[str, str] | None:
    """The route and the one model of a terminal record, without decoding it: both are written in a fixed form."""
    at = raw.rfind(_CHOSEN)
    if at < 0 or not raw.startswith(_ROUTE):
        return None
    chosen = raw[at + _CHOSEN_BYTES : raw.find(b'"', at + _CHOSEN_BYTES)]
    if not chosen or b"," in chosen:
        return None
    route = raw[_ROUTE_BYTES : raw.find(b'"', _ROUTE_BYTES)]
    return route.decode("utf-8", "replace"), chosen.decode("utf-8", "replace")


def chance_of_equal(predicted: Mapping[str, int], joined: Mapping[str, int]) -> float:
    """The probability that models of one and the same join rate differ as much (chi-squared, its tail by Wilson and
    Hilferty 1931). 1 where fewer than two have enough predictions, or all rates are 0 or 1."""
    arms = {model: n for model, n in predicted.items() if n >= _FEWEST}
    hits = {model: min(joined.get(model, 0), n) for model, n in arms.items()}
    total, met = sum(arms.values()), sum(hits.values())
    if len(arms) < 2 or met in (0, total):
        return 1.0
    rate = met / total
    statistic = sum((hits[model] - n * rate) ** 2 / (n * rate * (1.0 - rate)) for model, n in arms.items())
    freedom = len(arms) - 1
    if freedom == 1:
        return math.erfc(math.sqrt(statistic / 2.0))
    spread = 2.0 / (9.0 * freedom)
    score = ((statistic / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(score / math.sqrt(2.0))
