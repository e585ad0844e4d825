"""Exp4 (Auer et al. 2002) with models as experts: all are asked, one answer serves, learnt from what that one cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from streamserve.core.records import Decision, OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import all_of, with_floor
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
)
from streamserve.core.values import unchanging


@unchanging()
class Exp4(KeepsLosses):
    """Asks all models; the answer of one of them serves, drawn by `(1 - gamma) * softmin(eta * loss) + gamma / models`.

    The draw is the combine rule `drawn`, after the members have answered; the probability with which the answer that
    was given would be given, `p = sum of the shares of those who gave it`, is logged with the prediction. A reward
    counts `loss / p` for each model that gave that answer and nothing for those that gave another one: unbiased, and
    one reward teaches all that agree. A label tells every model's loss, which then counts as it is.

    A model that did not answer is charged the loss of the answer that served, whose expectation is the weighted mean of
    those that did answer: being absent neither helps nor harms. Raises ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "All models may be asked, and only the served answer is judged, by rewards."

    eta: float = 0.15
    gamma: float = 0.002
    half_life_events: float | None = 5_000.0
    """Outcomes after which a loss counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_rate(self.name, "eta", self.eta)
        check_half_life(self.name, self.half_life_events)
        check_share(self.name, "gamma", self.gamma)

    @property
    def name(self) -> str:
        return "exp4"

    def distribution(self, state: LossSums, models: Sequence[str]) -> Distribution:
        shares = np.asarray(with_floor(softmin(aligned(state, models).losses, self.eta), self.gamma), np.float64)
        return all_of(shares / shares.sum())

    def learn(self, state: LossSums, outcome: OutcomeRecord) -> LossSums:
        losses = usable_losses(outcome.losses, state.models)
        if not losses:
            return state
        if outcome.has_label:
            absent = mean_of_present(state, losses, self.eta)
            charged = {model: losses.get(model, absent) for model in state.models}
        else:
            found = self._estimated(state, outcome.decision, losses)
            if found is None:
                return state
            charged = found
        decay = decay_of(self.half_life_events)
        sums = tuple(decay * total + charged[model] for model, total in zip(state.models, state.losses, strict=True))
        return LossSums(models=state.models, losses=sums, events=state.events + 1)

    def _estimated(self, state: LossSums, decision: Decision, losses: Mapping[str, float]) -> dict[str, float] | None:
        """What one reward says of each model; None where it was not drawn as it is logged."""
        probability = decision.served_probability
        if decision.off_epoch or probability is None or not 0.0 < probability <= 1.0:
            return None
        served = max(losses.values())
        return {
            model: losses[model] / probability if model in losses else (0.0 if model in decision.members else served)
            for model in state.models
        }
