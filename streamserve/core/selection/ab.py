"""A fixed split: one model a request, the same one for every request of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import one_of
from streamserve.core.selection.weights import LearnsNothing, check_weights, weights_of
from streamserve.core.values import unchanging


@unchanging()
class AB(LearnsNothing):
    """Asks one model, drawn by fixed shares; nothing is learnt.

    `shares`: by model id (`name@version`) or by name, in any unit; a model that is not named has none. None: all
    equal. Sticky: requests with the same record key go to the same model, whatever their place in the log; a request
    without a key is drawn by its place. Raises ConfigError on a share that is negative or not finite, and, once the
    models are known, on a name that is none of them.
    """

    when_to_use: ClassVar[str] = "An experiment with fixed shares; a key (a user) keeps its model."

    shares: Mapping[str, float] | None = None
    sticky_by_key: bool = True

    def __post_init__(self) -> None:
        check_weights(self.name, "share", self.shares)

    @property
    def name(self) -> str:
        return "ab"

    def initial(self, models: Sequence[str]) -> None:
        weights_of(self.name, "share", self.shares, models)

    def distribution(self, state: None, models: Sequence[str]) -> Distribution:
        weights = weights_of(self.name, "share", self.shares, models)
        total = sum(weights)
        return one_of([weight / total for weight in weights])
