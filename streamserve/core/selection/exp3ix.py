"""Exp3-IX (Neu 2015): Exp3 with implicit exploration, whose regret holds with high probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.exp3 import Exp3, learn_drawn
from streamserve.core.selection.sums import LossSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3IX(Exp3):
    """Asks one model, drawn as by `exp3`; its loss counts divided by the logged probability + `eta / 2`.

    That bounds what one unlucky draw of a rare model can do, at the price of a bias towards rare models. Raises
    ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "One model may be asked a request, only its answer is judged, and models may break."

    eta: float = 0.05
    gamma: float = 0.01

    @property
    def name(self) -> str:
        return "exp3ix"

    def learn(self, state: LossSums, outcome: OutcomeRecord) -> LossSums:
        return learn_drawn(state, outcome, half_life_events=self.half_life_events, extra=self.eta / 2.0)
