"""Thompson sampling (1933) on Beta posteriors, with the exact probability of each choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.beta import chances_of_being_largest
from streamserve.core.selection.drawing import one_of, with_floor
from streamserve.core.selection.rewards import (
    KeepsRewards,
    RewardSums,
    aligned_rewards,
    learn_rewards,
)
from streamserve.core.selection.sums import check_half_life, check_share
from streamserve.core.values import unchanging


@unchanging()
class Thompson(KeepsRewards):
    """Asks each model with the probability that it is the best, given what has been seen.

    A model's reward has the posterior `Beta(1 + rewards, 1 + losses)`, its sums decaying. Instead of drawing from the
    posteriors, the probability that each one's draw would be the largest is computed by quadrature, mixed with a floor,
    rounded to 2**-32, and the model drawn from that: what is logged is exactly what was drawn from. Raises ConfigError
    on impossible parameters.
    """

    when_to_use: ClassVar[str] = "One model may be asked a request; explores no more than what is not known is worth."

    gamma: float = 0.01
    half_life_events: float | None = 1_000.0
    """Outcomes after which a reward counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_half_life(self.name, self.half_life_events)
        check_share(self.name, "gamma", self.gamma)

    @property
    def name(self) -> str:
        return "thompson"

    def distribution(self, state: RewardSums, models: Sequence[str]) -> Distribution:
        found = aligned_rewards(state, models)
        right = [1.0 + reward for reward in found.rewards]
        wrong = [1.0 + max(0.0, count - reward) for count, reward in zip(found.counts, found.rewards, strict=True)]
        return one_of(with_floor(chances_of_being_largest(right, wrong).tolist(), self.gamma))

    def learn(self, state: RewardSums, outcome: OutcomeRecord) -> RewardSums:
        return learn_rewards(state, outcome, self.half_life_events)
