"""From an agreement to the probability that the answer is right: three ways, one state.

Pure: states are values, passed in and returned. An agreement is a number in [0, 1]; it falls into one of `levels`
equal steps, each with decayed counts of answers that were right and wrong (`confidence.Calibration`).

* `counts`: a level's own share of right answers.
* `isotonic`: the same, made to rise with the agreement by pooling neighbours (pool adjacent violators; Zadrozny, Elkan
  2002): for many levels with few answers each.
* `temperature`: `1 / (1 + exp(-(a * logit(agreement) + b)))` (Platt 1999), two numbers learnt by gradient steps on the
  log loss: for agreements that are probabilities, and too sure or not sure enough all over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from streamserve.core.confidence import Calibration, LevelCounts
from streamserve.core.messages import F64, I64
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError, ContractError

Method = Literal["counts", "isotonic", "temperature"]
METHODS: tuple[Method, ...] = ("counts", "isotonic", "temperature")
_EDGE = 0.02
"""No agreement counts as nearer to 0 or 1 than this, where its logit is taken."""
_FURTHEST = 20.0


@unchanging()
class Learnt:
    """What was learnt of how often answers are right; immutable."""

    counts: LevelCounts
    said: tuple[float, ...]
    """Decayed sums of the probability that was said, by level: with the counts they tell the calibration error."""
    slope: float = 1.0
    shift: float = 0.0


@unchanging()
class Calibrating:
    """The probability that an answer is right, by its agreement. Raises ConfigError on impossible parameters."""

    levels: int
    method: Method = "counts"
    half_life_events: float = 350.0
    prior: float = 5.0
    rate: float = 0.02
    """Of the gradient steps of `temperature`."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"calibration: there is no method {self.method!r}; allowed: {', '.join(METHODS)}")
        self.initial()  # checks the rest

    @property
    def _table(self) -> Calibration:
        return Calibration(levels=self.levels, half_life_events=self.half_life_events, prior=self.prior)

    def initial(self) -> Learnt:
        return Learnt(counts=self._table.initial(), said=(0.0,) * self.levels)

    def level_of(self, agreement: F64) -> I64:
        """`[n]`: the step that each agreement falls into."""
        found: I64 = np.rint(np.clip(agreement, 0.0, 1.0) * (self.levels - 1)).astype(np.int64)
        return found

    def probabilities(self, state: Learnt, agreement: F64) -> F64:
        """`[n]`: of answers with these agreements, that they are right."""
        if self.method == "temperature":
            return _squashed(state.slope * _logit(agreement) + state.shift)
        found: F64 = self._by_level(state.counts)[self.level_of(agreement)]
        return found

    def _by_level(self, counts: LevelCounts) -> F64:
        by_level = self._table.probabilities(counts)
        if self.method != "isotonic":
            return by_level
        return rising(by_level, np.asarray(counts.right) + np.asarray(counts.wrong) + self.prior)

    def learn(self, state: Learnt, agreement: float, loss: float) -> Learnt:
        """After one label; what is no loss in [0, 1] and no agreement in [0, 1] changes nothing."""
        if not (0.0 <= loss <= 1.0 and 0.0 <= agreement <= 1.0):
            return state
        place = np.array([agreement])
        level, said = int(self.level_of(place)[0]), float(self.probabilities(state, place)[0])
        decay = 0.5 ** (1.0 / self.half_life_events)
        sums = [decay * value for value in state.said]
        sums[level] += said
        slope, shift = state.slope, state.shift
        if self.method == "temperature":
            error = (1.0 - loss) - said
            step = self.rate * error
            slope = min(max(slope + step * float(_logit(place)[0]), 0.0), _FURTHEST)
            shift = min(max(shift + step, -_FURTHEST), _FURTHEST)
        return Learnt(counts=self._table.learn(state.counts, level, loss), said=tuple(sums), slope=slope, shift=shift)

    def pooled(self, above: Learnt, own: Learnt, strength: float) -> Learnt:
        """What `own` says where `above` is what it begins with: at each level in the place of the prior, worth
        `strength` answers (above 0). For probabilities only: the counts in it may be below 0."""
        if len(above.said) != len(own.said):
            return above
        n = sum(own.counts.right) + sum(own.counts.wrong)
        place = np.arange(self.levels) / (self.levels - 1)
        begun = strength * self._by_level(above.counts)
        right = np.asarray(own.counts.right) + begun - self.prior * place
        wrong = np.asarray(own.counts.wrong) + strength - begun - self.prior * (1.0 - place)
        share = n / (n + strength)
        return replace(
            own,
            counts=replace(own.counts, right=tuple(right.tolist()), wrong=tuple(wrong.tolist())),
            slope=share * own.slope + (1.0 - share) * above.slope,
            shift=share * own.shift + (1.0 - share) * above.shift,
        )

    def error(self, state: Learnt) -> float:
        """Expected calibration error over the answers that still count; 0 before any label."""
        right, wrong = np.asarray(state.counts.right), np.asarray(state.counts.wrong)
        total = float((right + wrong).sum())
        return float(np.abs(np.asarray(state.said) - right).sum()) / total if total > 0.0 else 0.0

    def dump(self, state: Learnt) -> Mapping[str, Any]:
        counts = self._table.dump(state.counts)
        return {"counts": counts, "said": list(state.said), "slope": state.slope, "shift": state.shift}

    def load(self, data: Mapping[str, Any]) -> Learnt:
        """Raises ContractError where `data` is not what `dump` writes; with another number of levels it begins anew."""
        try:
            if len(data["counts"]["right"]) != self.levels:
                return self.initial()
            counts = self._table.load(data["counts"])
            said = tuple(map(float, data["said"]))
            slope, shift = float(data["slope"]), float(data["shift"])
        except (KeyError, TypeError, ValueError) as error:
            raise ContractError(f"a state of calibration cannot be read: {error!r}") from error
        if len(said) != self.levels or not all(map(math.isfinite, (*said, slope, shift))):
            raise ContractError(f"a state of calibration cannot be {data}")
        return Learnt(counts=counts, said=said, slope=slope, shift=shift)


def rising(values: F64, weights: F64) -> F64:
    """`[n]`: the values nearest to these, by weight, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_n), (high, high_weight, high_n) = pools[-2:]
            total = low_weight + high_weight
            pools[-2:] = [((low * low_weight + high * high_weight) / total, total, low_n + high_n)]
    return np.repeat([value for value, _, _ in pools], [n for _, _, n in pools])


def _logit(agreement: F64) -> F64:
    within = np.clip(agreement, _EDGE, 1.0 - _EDGE)
    found: F64 = np.log(within) - np.log1p(-within)
    return found


def _squashed(score: F64) -> F64:
    found: F64 = 1.0 / (1.0 + np.exp(-score))
    return found
