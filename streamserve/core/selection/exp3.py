"""Exp3 (Auer et al. 2002) in its loss form: one model a request, learnt from what that model's answer cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import drawn_probability, one_of, with_floor
from streamserve.core.selection.sums import (
    KeepsLosses,
    LossSums,
    aligned,
    check_half_life,
    check_rate,
    check_share,
    decay_of,
    softmin,
    usable_losses,
)
from streamserve.core.values import unchanging


@unchanging()
class Exp3(KeepsLosses):
    """Asks one model, drawn with probability `(1 - gamma) * softmin(eta * loss) + gamma / models`.

    The loss of an answer counts divided by the probability that was logged with the decision (`drawn_probability`).
    Raises ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "As exp3ix, as in the paper: unbiased, but one unlucky draw weighs much."

    eta: float = 0.1
    gamma: float = 0.002
    half_life_events: float | None = 5_000.0
    """Outcomes after which a loss counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_rate(self.name, "eta", self.eta)
        check_half_life(self.name, self.half_life_events)
        check_share(self.name, "gamma", self.gamma)

    @property
    def name(self) -> str:
        return "exp3"

    def distribution(self, state: LossSums, models: Sequence[str]) -> Distribution:
        return one_of(with_floor(softmin(aligned(state, models).losses, self.eta), self.gamma))

    def learn(self, state: LossSums, outcome: OutcomeRecord) -> LossSums:
        return learn_drawn(state, outcome, half_life_events=self.half_life_events, extra=0.0)


def learn_drawn(state: LossSums, outcome: OutcomeRecord, *, half_life_events: float | None, extra: float) -> LossSums:
    """The sums after one loss of the model that was drawn, divided by its logged probability plus `extra`."""
    losses = usable_losses(outcome.losses, state.models)
    probability = drawn_probability(outcome.decision, state.models)
    chosen = {model: losses[model] for model in outcome.decision.chosen if model in losses}
    if probability is None or not chosen:
        return state
    decay = decay_of(half_life_events)
    sums = tuple(
        decay * total + chosen.get(model, 0.0) / (probability + extra)
        for model, total in zip(state.models, state.losses, strict=True)
    )
    return LossSums(models=state.models, losses=sums, events=state.events + 1)
