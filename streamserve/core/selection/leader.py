"""Follow the leader: the model with the best mean reward serves, and a sampled few requests ask all models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.rewards import (
    KeepsRewards,
    RewardSums,
    aligned_rewards,
    learn_rewards,
    means,
)
from streamserve.core.selection.sums import check_half_life, check_prior, check_share, fixed_point
from streamserve.core.values import unchanging


@unchanging()
class Leader(KeepsRewards):
    """Asks the leader alone; with probability `shadow` it asks all models, and the leader's answer still serves.

    The leader is the model with the best decayed mean reward, drawn towards the common mean where it has few answers.
    Its own failure shows at every feedback, the others' at the sampled ones. Where several tie, the first leads.
    Raises ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = (
        "One model shall serve, the best one; labels come, and a few extra evaluations are fine."
    )

    shadow: float = 0.05
    half_life_events: float | None = 250.0
    """Outcomes after which a reward counts half; None: nothing is forgotten."""
    prior: float = 10.0
    """Answers of the common mean that each model's own mean is mixed with."""

    def __post_init__(self) -> None:
        check_half_life(self.name, self.half_life_events)
        check_share(self.name, "shadow", self.shadow)
        check_prior(self.name, self.prior)

    @property
    def name(self) -> str:
        return "leader"

    def distribution(self, state: RewardSums, models: Sequence[str]) -> Distribution:
        found = means(aligned_rewards(state, models), self.prior)
        leader = found.index(max(found))
        weights = np.zeros(len(models))
        weights[leader] = 1.0
        alone, all_models = 1 << leader, (1 << len(models)) - 1
        if alone == all_models or self.shadow == 0.0:
            masks, shares = [alone], [1.0]
        else:
            masks, shares = [alone, all_models], [1.0 - self.shadow, self.shadow]
        probabilities = fixed_point(shares) if len(shares) > 1 else np.array([PROBABILITY_ONE], np.int64)
        return Distribution(masks=np.array(masks, np.uint64), probabilities=probabilities, weights=weights)

    def learn(self, state: RewardSums, outcome: OutcomeRecord) -> RewardSums:
        return learn_rewards(state, outcome, self.half_life_events)
