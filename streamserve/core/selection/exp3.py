"""Exp3 (Auer et al. 2002) in its loss form: one model a request, learnt from what that model's answer cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.sums import (
    LossSums,
    aligned,
    check_half_life,
    check_rate,
    decay_of,
    dump_sums,
    fixed_point,
    initial_sums,
    load_sums,
    softmin,
    usable_losses,
)
from streamserve.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3:
    """Asks one model, drawn with probability `(1 - gamma) * softmin(eta * loss) + gamma / models`.

    The loss of an answer counts divided by the probability that was logged with the decision, never by one computed
    when the feedback comes: by then the state is another, and recomputing triples the regret at a delay of 100 events.
    Left out: decisions made under another state than the terminal record says (`off_epoch`), and requests that named
    their model themselves (one model, probability 1: nothing was drawn). Raises ConfigError on impossible parameters.
    """

    eta: float = 0.1
    gamma: float = 0.02
    half_life_events: float | None = None
    """Outcomes after which a loss counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_rate(self.name, "eta", self.eta)
        check_half_life(self.name, self.half_life_events)
        if not (isinstance(self.gamma, int | float) and 0.0 <= self.gamma < 1.0):
            raise ConfigError(f"policy exp3: gamma must be at least 0 and below 1, not {self.gamma!r}")

    @property
    def name(self) -> str:
        return "exp3"

    def initial(self, models: Sequence[str]) -> LossSums:
        return initial_sums(models)

    def distribution(self, state: LossSums, models: Sequence[str]) -> Distribution:
        floor = self.gamma / len(models)
        shares = [(1.0 - self.gamma) * share + floor for share in softmin(aligned(state, models).losses, self.eta)]
        # One unit at least: a model can always be drawn again, and a drawn probability is never 1 beside others.
        probabilities = fixed_point(shares, at_least=1)
        return Distribution(
            masks=np.left_shift(np.uint64(1), np.arange(len(models), dtype=np.uint64)),
            probabilities=probabilities,
            weights=probabilities / PROBABILITY_ONE,
        )

    def learn(self, state: LossSums, outcome: OutcomeRecord) -> LossSums:
        losses = usable_losses(outcome.losses, state.models)
        probability = self._probability(state, outcome)
        chosen = {model: losses[model] for model in outcome.decision.chosen if model in losses}
        if probability is None or not chosen:
            return state
        decay = decay_of(self.half_life_events)
        sums = tuple(
            decay * total + chosen.get(model, 0.0) / probability
            for model, total in zip(state.models, state.losses, strict=True)
        )
        return LossSums(models=state.models, losses=sums, events=state.events + 1)

    def dump(self, state: LossSums) -> Mapping[str, Any]:
        return dump_sums(state)

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> LossSums:
        return load_sums(data, models)

    def _probability(self, state: LossSums, outcome: OutcomeRecord) -> float | None:
        """The logged probability, or None where it says nothing about a draw of ours.

        Several models at probability 1 (the route asked all of them before it was changed to this policy) are as good
        as drawn: each one's loss was certain to be seen.
        """
        decision = outcome.decision
        if decision.off_epoch or not 1.0 / PROBABILITY_ONE <= decision.probability <= 1.0:
            return None
        drawn = len(decision.chosen) == 1 and (decision.probability < 1.0 or len(state.models) == 1)
        all_asked = decision.probability == 1.0 and set(state.models) <= set(decision.chosen)
        return decision.probability if drawn or all_asked else None
