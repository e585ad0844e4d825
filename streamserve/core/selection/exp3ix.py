"""Exp3-IX (Neu 2015): Exp3 with implicit exploration, whose regret holds with high probability."""

from __future__ import annotations

import math
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.exp3 import Exp3, learn_drawn
from streamserve.core.selection.sums import LossSums, events_held
from streamserve.core.values import unchanging


@unchanging()
class Exp3IX(Exp3):
    """Asks one model, drawn as by `exp3`; its loss counts divided by the logged probability + `implicit_exploration`.

    That bounds what one unlucky draw of a rare model can do, at the price of a bias towards rare models. Raises
    ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "One model may be asked a request, only its answer is judged, and models may break."

    eta: float = 0.06

    @property
    def name(self) -> str:
        return "exp3ix"

    def learn(self, state: LossSums, outcome: OutcomeRecord) -> LossSums:
        extra = implicit_exploration(len(state.models), events_held(state, self.half_life_events))
        return learn_drawn(state, outcome, half_life_events=self.half_life_events, extra=extra)


def implicit_exploration(models: int, events: float) -> float:
    """`sqrt(log(models + 1) / (2 * models * horizon))`: half of the learning rate that the bound asks for (Lattimore,
    Szepesvári 2020, theorem 12.1). The horizon is here the number of outcomes that the sums stand for, with the one to
    come.

    It goes not with `eta`, which is higher than that rate since models break: half of it would make the bias as large
    as the losses of good models.
    """
    return math.sqrt(math.log(models + 1.0) / (2.0 * models * (events + 1.0)))
