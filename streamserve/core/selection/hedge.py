"""Hedge (Freund and Schapire 1997) over all models, with forgetting: learns from every model that answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import all_of
from streamserve.core.selection.sums import (
    KeepsLosses,
    LossSums,
    aligned,
    check_half_life,
    check_rate,
    check_share,
    decay_of,
    mean_of_present,
    softmin,
    usable_losses,
    within_reach,
)
from streamserve.core.values import unchanging


@unchanging()
class Hedge(KeepsLosses):
    """Asks all models; weighs each by `exp(-eta * its decayed loss)`.

    A model that did not answer (late, failed) is charged the weighted mean loss of those that did, so its weight
    neither rises nor falls by being absent (sleeping experts, Freund et al. 1997); without it a silent model's losses
    would fade away and it would win. A model that has long been wrong is kept at `least` of the best one's weight: its
    sum stops there, so that it is soon found again when it is mended. Raises ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "All models may be asked and labels come: an ensemble. The default choice."

    eta: float = 0.3
    half_life_events: float | None = 350.0
    """Outcomes after which a loss counts half; None: nothing is forgotten."""
    least: float = 1e-4
    """Of the best model's weight; no other falls below it, so what was mended comes back. 0: no such bound."""

    def __post_init__(self) -> None:
        check_rate(self.name, "eta", self.eta)
        check_half_life(self.name, self.half_life_events)
        check_share(self.name, "least", self.least)

    @property
    def name(self) -> str:
        return "hedge"

    def distribution(self, state: LossSums, models: Sequence[str]) -> Distribution:
        return all_of(softmin(aligned(state, models).losses, self.eta))

    def learn(self, state: LossSums, outcome: OutcomeRecord) -> LossSums:
        losses = usable_losses(outcome.losses, state.models)
        if not losses:
            return state
        absent = mean_of_present(state, losses, self.eta) if len(losses) < len(state.models) else 0.0
        decay = decay_of(self.half_life_events)
        sums = tuple(
            decay * total + losses.get(model, absent) for model, total in zip(state.models, state.losses, strict=True)
        )
        sums = within_reach(sums, self.eta, self.least)
        return LossSums(models=state.models, losses=sums, events=state.events + 1)
