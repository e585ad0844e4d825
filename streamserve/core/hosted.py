"""The models of one process of a pool, as its stage sees them: their desks, and who of them each route asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamserve.core.desk import Desk, ModelRules
from streamserve.core.lanes import Lane, LaneRules
from streamserve.core.route_versions import Routes
from streamserve.core.routes import Route
from streamserve.core.table import Table
from streamserve.core.thinning import Thinning


class Hosted:
    """Follows the versions of the routes, and what the process hosts."""

    def __init__(
        self, models: Mapping[str, ModelRules], routes: Routes, table: Table, lane_rules: LaneRules, *, pool: str
    ) -> None:
        """`pool`: whose models are to be asked, where routes say who asks which."""
        self._routes = routes
        self._table = table
        self._lane_rules = lane_rules
        self._pool = pool
        self._lanes: dict[str, Lane] = {}
        self.desks = {model: self._desk(rules) for model, rules in models.items()}
        self.of_route: dict[int, list[tuple[int, Desk]]] = {}
        """Route index -> bit and desk of each model that is asked here."""
        self.lacking: dict[int, list[tuple[int, str]]] = {}
        """Route index -> bit and id of each model that is to be asked here and is not loaded."""
        self.seconds: dict[int, tuple[Route, Desk]] = {}
        """Route index -> the route, and the desk of its second opinions."""
        self.thinning: dict[int, Thinning] = {}
        """Route index -> how many of its models are asked; routes with one model here have none."""
        self._turns = -1
        self.follow()

    def _desk(self, rules: ModelRules) -> Desk:
        lane = None if rules.lane is None else self._lanes.setdefault(rules.lane, Lane(self._lane_rules))
        return Desk(rules, self._table, lane)

    def follow(self) -> None:
        """The routes that requests may have: to be asked before a request is looked at."""
        if self._turns != self._routes.turns:
            self._turns = self._routes.turns
            self._arrange()

    def change(self, models: Mapping[str, ModelRules], is_shared_anew: Callable[[str], None]) -> list[Desk]:
        """Host these from now on; the desks of those that are gone.

        `is_shared_anew`: told of each model whose part of the pool's cache is another one now.
        """
        gone = [desk for model, desk in self.desks.items() if model not in models]
        before, self.desks = self.desks, {}
        for model, rules in models.items():
            desk = self.desks[model] = before[model] if model in before else self._desk(rules)
            if desk.rules.cache_bytes != rules.cache_bytes:
                is_shared_anew(model)
            desk.rules = rules
        self._arrange()
        return gone

    def _arrange(self) -> None:
        before, self.thinning = self.thinning, {}
        self.of_route, self.lacking, self.seconds = {}, {}, {}
        for index, route in self._routes.live.items():
            knows = bool(self._pool and route.pools)
            mine = [bit for bit in range(len(route.models)) if not knows or route.pools[bit] == self._pool]
            there = [(bit, self.desks[route.models[bit]]) for bit in mine if route.models[bit] in self.desks]
            self.of_route[index] = there
            if knows:
                lacking = [(bit, route.models[bit]) for bit in mine if route.models[bit] not in self.desks]
                self.lacking |= {index: lacking} if lacking else {}
            if route.second is not None and any(desk.rules.model == route.second for _, desk in there):
                self.seconds[index] = (route, self.desks[route.second])
            elif route.second is None and len(there) > 1:
                known = before.get(index)
                is_same = known is not None and known.members == len(there)
                self.thinning[index] = known if known and is_same else Thinning(len(there), route.deadline_ms)
