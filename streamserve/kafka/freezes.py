"""Who is frozen, as a role hears of it: told once in words, and kept as a metric until an operator lifts it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from streamserve.core.routes import Route
from streamserve.core.selection.freezing import Frozen
from streamserve.core.switches import SwitchRecord

_log = logging.getLogger(__name__)


class Freezes:
    """`report(route, model, is_frozen)` is called for each model of a state, and again when a switch changes it."""

    def __init__(self, report: Callable[[str, str, bool], None]) -> None:
        self._report = report
        self._frozen: dict[str, Mapping[str, Frozen]] = {}
        self._models: dict[str, tuple[str, ...]] = {}
        self._switched_on_ms: dict[str, int] = {}

    def heard(self, route: Route, frozen: Mapping[str, Frozen]) -> None:
        """The newest state of a route."""
        before = self._frozen.get(route.name, {})
        for model, one in frozen.items():
            if model not in before or before[model].since_ms < one.since_ms:
                _log.warning(
                    "model %s of route %s is frozen: its mean loss is above %.3f, the baseline's below %.3f; "
                    "`streamserve models enable` lifts it",
                    model, route.name, one.loss_above, one.baseline_below,
                )  # fmt: skip
        self._frozen[route.name], self._models[route.name] = frozen, route.models
        self._tell(route.name)

    def switched(self, records: Iterable[SwitchRecord]) -> None:
        """Switches of the models topic."""
        for record in records:
            if not record.disabled:
                newest = max(record.append_ms, self._switched_on_ms.get(record.model, record.append_ms))
                self._switched_on_ms[record.model] = newest
        for route in self._frozen:
            self._tell(route)

    def _tell(self, route: str) -> None:
        frozen = self._frozen[route]
        for model in self._models[route]:
            self._report(route, model, model in frozen and not self._is_lifted(model, frozen[model]))

    def _is_lifted(self, model: str, one: Frozen) -> bool:
        return any(self._switched_on_ms.get(name, -1) > one.since_ms for name in (model, model.rpartition("@")[0]))
