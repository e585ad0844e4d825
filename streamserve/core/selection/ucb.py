"""UCB1 (Auer, Cesa-Bianchi, Fischer 2002) with forgetting (D-UCB; Garivier and Moulines 2011)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import one_of
from streamserve.core.selection.rewards import (
    UNTRIED,
    KeepsRewards,
    RewardSums,
    aligned_rewards,
    learn_rewards,
)
from streamserve.core.selection.sums import check_half_life, check_rate
from streamserve.core.values import unchanging


@unchanging()
class UCB(KeepsRewards):
    """Asks the model with the highest `mean + sqrt(width * ln(answers of all) / answers)`; counts and means decay.

    Models that tie, as those never tried, share the requests equally. Between two published states every request goes
    to the same model, so it explores in lumps, and a choice of probability 1 leaves nothing for off-policy evaluation.
    Raises ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = (
        "Rewards come at once and the log need not answer what another policy would have earned."
    )

    width: float = 0.05
    half_life_events: float | None = 2_000.0
    """Outcomes after which a reward counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_rate(self.name, "width", self.width)
        check_half_life(self.name, self.half_life_events)

    @property
    def name(self) -> str:
        return "ucb"

    def distribution(self, state: RewardSums, models: Sequence[str]) -> Distribution:
        found = aligned_rewards(state, models)
        spread = self.width * math.log(max(math.fsum(found.counts), 1.0))
        heights = [
            reward / count + math.sqrt(spread / count) if count > UNTRIED else math.inf
            for count, reward in zip(found.counts, found.rewards, strict=True)
        ]
        best = [height == max(heights) for height in heights]
        return one_of([float(is_best) / sum(best) for is_best in best])

    def learn(self, state: RewardSums, outcome: OutcomeRecord) -> RewardSums:
        return learn_rewards(state, outcome, self.half_life_events)
