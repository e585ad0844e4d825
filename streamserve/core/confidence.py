"""How sure an answer is: calibrated probabilities, and sets or intervals that hold the truth as often as asked.

Pure: states are values, passed in and returned.

* `Calibration`: an answer falls into a level (how many members agree with it); what share of a level's answers was
  right lately is the probability that the next one is. Counts decay, so the meaning of "four of five agree" follows
  when a member breaks.
* `QuantileTracking` (the proportional part of conformal PID control; Angelopoulos, Candès, Tibshirani 2023): one number
  follows the quantile of a score, so that a share `1 - miss` of truths scores at most that, whatever drifts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streamserve.core.messages import F64, I64, Flags
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError, ContractError

STATE_VERSION = 1


@unchanging()
class LevelCounts:
    """Decayed counts of right and wrong answers, one of each a level; immutable."""

    right: tuple[float, ...]
    wrong: tuple[float, ...]
    events: int = 0


@unchanging()
class Calibration:
    """The probability that an answer is right, from decayed beta counts per level.

    A level's prior is its place among the levels (all agree: 1), worth `prior` answers; so before any feedback the
    probability is the share that agrees, and a level seldom seen stays near it. Raises ConfigError on no levels, an
    impossible half-life or prior.
    """

    levels: int
    """From 0 to `levels - 1`: as many as an ensemble has members, and one more."""
    half_life_events: float = 350.0
    """Labels after which an answer counts half."""
    prior: float = 5.0

    def __post_init__(self) -> None:
        if self.levels < 2:
            raise ConfigError(f"calibration: at least 2 levels are needed, not {self.levels!r}")
        if not (math.isfinite(self.half_life_events) and self.half_life_events >= 1.0):
            raise ConfigError(f"calibration: half_life_events must be at least 1, not {self.half_life_events!r}")
        if not (math.isfinite(self.prior) and self.prior > 0.0):
            raise ConfigError(f"calibration: prior must be above 0, not {self.prior!r}")

    def initial(self) -> LevelCounts:
        nothing = (0.0,) * self.levels
        return LevelCounts(right=nothing, wrong=nothing)

    def probabilities(self, state: LevelCounts) -> F64:
        """`[levels]`: of an answer of each level, that it is right."""
        right, wrong = np.asarray(state.right), np.asarray(state.wrong)
        place = np.arange(self.levels) / (self.levels - 1)
        found: F64 = (right + self.prior * place) / (right + wrong + self.prior)
        return found

    def of(self, state: LevelCounts, level: I64) -> F64:
        """`[n]`: probabilities of n answers by their levels."""
        found: F64 = self.probabilities(state)[level]
        return found

    def learn(self, state: LevelCounts, level: int, loss: float) -> LevelCounts:
        """After one label. A loss between 0 and 1 (rows that differ) counts in part; what is none changes nothing."""
        if not (0.0 <= loss <= 1.0 and 0 <= level < self.levels):
            return state
        decay = 0.5 ** (1.0 / self.half_life_events)
        right, wrong = [decay * count for count in state.right], [decay * count for count in state.wrong]
        right[level] += 1.0 - loss
        wrong[level] += loss
        return LevelCounts(right=tuple(right), wrong=tuple(wrong), events=state.events + 1)

    def dump(self, state: LevelCounts) -> Mapping[str, Any]:
        return {"v": STATE_VERSION, "right": list(state.right), "wrong": list(state.wrong), "events": state.events}

    def load(self, data: Mapping[str, Any]) -> LevelCounts:
        """Raises ContractError where `data` is not what `dump` writes, or of another number of levels."""
        _check_version(data)
        try:
            right, wrong = tuple(map(float, data["right"])), tuple(map(float, data["wrong"]))
            events = int(data["events"])
        except (KeyError, TypeError, ValueError) as error:
            raise ContractError(f"a state of calibration cannot be read: {error!r}") from error
        sound = len(right) == len(wrong) == self.levels
        if not sound or not all(math.isfinite(count) and count >= 0.0 for count in (*right, *wrong)):
            raise ContractError(f"a state of calibration with {self.levels} levels cannot be {data}")
        return LevelCounts(right=right, wrong=wrong, events=events)


def levels_of(agrees: Flags) -> I64:
    """`[n]`: how many members agree with each answer; `agrees` is `[n, members]`."""
    found: I64 = agrees.sum(axis=1)
    return found


@unchanging()
class Tracked:
    """The score up to which answers are taken in; immutable."""

    threshold: float
    events: int = 0
    missed: int = 0


@unchanging()
class QuantileTracking:
    """A set or interval that misses the truth in a share `miss` of cases. Raises ConfigError on impossible parameters.

    The score of a class is 1 minus its probability, that of a number its distance in units of `scale`: what scores at
    most the threshold is in the set. After each label the threshold moves by `step * (missed - miss)`, so over T labels
    the share of misses is within `(1 + step) / (step * T)` of `miss`, for scores in [0, 1] and any drift.
    """

    miss: float = 0.05
    step: float = 0.02

    def __post_init__(self) -> None:
        if not 0.0 < self.miss < 1.0:
            raise ConfigError(f"quantile tracking: miss must be above 0 and below 1, not {self.miss!r}")
        if not 0.0 < self.step <= 1.0:
            raise ConfigError(f"quantile tracking: step must be above 0 and at most 1, not {self.step!r}")

    def initial(self) -> Tracked:
        """Before any label a class is in that has half of the probability.

        A miss lifts the threshold by nearly `step`, a hit lowers it by a twentieth of that where `miss` is 0.05: from
        below it is found in tens of labels, from 1 in a thousand.
        """
        return Tracked(threshold=0.5)

    def classes(self, state: Tracked, probabilities: F64) -> Flags:
        """`[n, classes]`: which classes are in each answer's set; the likeliest always is."""
        within = 1.0 - probabilities <= state.threshold
        within[np.arange(len(within)), probabilities.argmax(axis=1)] = True
        return within

    def interval(self, state: Tracked, answers: F64, scale: float) -> tuple[F64, F64]:
        """`[n]` each: lower and upper ends around numbers."""
        reach = max(state.threshold, 0.0) * scale
        return answers - reach, answers + reach

    def learn(self, state: Tracked, score: float) -> Tracked:
        """After one label, by the truth's score; a score that is not finite changes nothing."""
        if not math.isfinite(score):
            return state
        missed = score > state.threshold
        threshold = state.threshold + self.step * (float(missed) - self.miss)
        return replace(state, threshold=threshold, events=state.events + 1, missed=state.missed + missed)

    def dump(self, state: Tracked) -> Mapping[str, Any]:
        return {"v": STATE_VERSION, "threshold": state.threshold, "events": state.events, "missed": state.missed}

    def load(self, data: Mapping[str, Any]) -> Tracked:
        """Raises ContractError where `data` is not what `dump` writes."""
        _check_version(data)
        try:
            found = Tracked(threshold=float(data["threshold"]), events=int(data["events"]), missed=int(data["missed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ContractError(f"a state of quantile tracking cannot be read: {error!r}") from error
        if not math.isfinite(found.threshold):
            raise ContractError(f"a state of quantile tracking cannot be {data}")
        return found


def calibration_error(probabilities: F64, right: F64, bins: int = 10) -> float:
    """Expected calibration error: over bins of equal width, how far the mean probability is from the share right."""
    if not len(probabilities):
        return 0.0
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    said = np.bincount(place, probabilities, bins)
    true = np.bincount(place, right, bins)
    return float(np.abs(said - true).sum() / counts.sum())


def _check_version(data: Mapping[str, Any]) -> None:
    version = data.get("v") if isinstance(data, Mapping) else None
    if version != STATE_VERSION:
        raise ContractError(f"a state of confidence has version {version!r}, this program reads {STATE_VERSION}")
