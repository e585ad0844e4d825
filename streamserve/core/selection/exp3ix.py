"""Exp3-IX (Neu 2015): Exp3 with implicit exploration, whose regret holds with high probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import one_of, with_floor
from streamserve.core.selection.exp3 import learn_drawn
from streamserve.core.selection.sums import (
    KeepsLosses,
    LossSums,
    aligned,
    check_half_life,
    check_rate,
    check_share,
    softmin,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3IX(KeepsLosses):
    """Asks one model, drawn as by `exp3`; its loss counts divided by the logged probability + `eta / 2`.

    That bounds what one unlucky draw of a rare model can do, at the price of a bias towards rare models. Raises
    ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "One model may be asked a request, only its answer is judged, and models may break."

    eta: float = 0.05
    gamma: float = 0.01
    half_life_events: float | None = 5_000.0
    """Outcomes after which a loss counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_rate(self.name, "eta", self.eta)
        check_half_life(self.name, self.half_life_events)
        check_share(self.name, "gamma", self.gamma)

    @property
    def name(self) -> str:
        return "exp3ix"

    def distribution(self, state: LossSums, models: Sequence[str]) -> Distribution:
        return one_of(with_floor(softmin(aligned(state, models).losses, self.eta), self.gamma))

    def learn(self, state: LossSums, outcome: OutcomeRecord) -> LossSums:
        return learn_drawn(state, outcome, half_life_events=self.half_life_events, extra=self.eta / 2.0)
