"""The model with the best mean reward, and now and then any (Sutton and Barto, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import one_of, with_floor
from streamserve.core.selection.rewards import (
    KeepsRewards,
    RewardSums,
    aligned_rewards,
    learn_rewards,
    means,
)
from streamserve.core.selection.sums import check_half_life, check_share
from streamserve.core.values import unchanging

#: Answers of the common mean that a model's own mean is mixed with.
_PRIOR = 1.0


@unchanging()
class EpsilonGreedy(KeepsRewards):
    """Asks the model with the best decayed mean reward; with probability epsilon one of all, equally.

    Models with the same mean share what the best would get. Raises ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "One model may be asked a request, and a fixed known share shall explore."

    epsilon: float = 0.05
    half_life_events: float | None = 700.0
    """Outcomes after which a reward counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_half_life(self.name, self.half_life_events)
        check_share(self.name, "epsilon", self.epsilon)

    @property
    def name(self) -> str:
        return "epsilon_greedy"

    def distribution(self, state: RewardSums, models: Sequence[str]) -> Distribution:
        found = means(aligned_rewards(state, models), _PRIOR)
        best = [mean == max(found) for mean in found]
        shares = [float(is_best) / sum(best) for is_best in best]
        return one_of(with_floor(shares, self.epsilon) if self.epsilon > 0.0 else shares)

    def learn(self, state: RewardSums, outcome: OutcomeRecord) -> RewardSums:
        return learn_rewards(state, outcome, self.half_life_events)
