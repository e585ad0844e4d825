"""Confidence around a policy: what was learnt of how often its answers are right is a part of its state.

So it is published, in force and the same in every role exactly as what the policy itself has learnt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from streamserve.core.calibrating import Calibrating, Learnt, Method
from streamserve.core.confidence import QuantileTracking, Tracked
from streamserve.core.losses import apart, label_rows
from streamserve.core.messages import F64, Flags
from streamserve.core.records import Decision, Label, OutcomeRecord
from streamserve.core.selection.around import Around, frozen_models
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.pooling import decided_by_features, features_read, pooled
from streamserve.core.selection.second import WithSecond
from streamserve.core.selection.stack import column_of
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError, ContractError

STATE_VERSION = 1
#: Steps of 5 %, where confidence is learnt from probabilities.
_STEPS = 21
#: Answers of the level above that a context's confidence begins with, at least. From n answers of its own, drawn
#: towards S others, chance has a standard deviation of at most 1 / (4 sqrt(S)): .025, so .02 on the average.
_LEAST_STRENGTH = 100.0
_ANSWERS = ("ok", "partial", "default")


@unchanging()
class ConfidenceRules:
    """How confidence is learnt. Raises ConfigError on impossible parameters."""

    of: Literal["agreement", "probability"] = "agreement"
    """What confidence is learnt from: the members' weighted agreement, or the answer's highest probability."""
    method: Method = "counts"
    half_life_events: float = 350.0
    prior: float = 5.0
    coverage: float = 0.0
    """Share of truths that a set or an interval is to hold; 0: there are none."""
    step: float = 0.02
    """How far a threshold moves at a miss, in units of the score."""
    scale: float = 1.0
    """One unit of the score, where answers are numbers."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.coverage < 1.0:
            raise ConfigError(f"confidence: coverage must be from 0 to below 1, not {self.coverage!r}")
        if not (math.isfinite(self.scale) and self.scale > 0.0):
            raise ConfigError(f"confidence: scale must be above 0, not {self.scale!r}")

    @property
    def tracking(self) -> QuantileTracking | None:
        return QuantileTracking(miss=1.0 - self.coverage, step=self.step) if self.coverage else None


@unchanging()
class ConfidentState:
    """What a policy has learnt, and how sure its answers are; immutable."""

    policy: Any
    learnt: Learnt
    tracked: Tracked
    held: float = 0.0
    """Decayed number of truths that were in their set, ..."""
    sized: float = 0.0
    """... sum of the sizes of these sets (classes; for numbers the length of the interval), ..."""
    judged: float = 0.0
    """... and number of sets."""
    second: Learnt
    """Of second opinions, all at one level: how often they are right where a first answer was not sure."""


@unchanging()
class Confident(Around):
    """A policy that also learns how sure the answers under it are. Its name and its choices are the policy's own."""

    rules: ConfidenceRules
    combine: str
    """The route's rule: how an answer is judged."""

    # -- the policy's part ---------------------------------------------------------------------------------------

    def initial(self, models: Sequence[str]) -> ConfidentState:
        calibrating, tracking = self._calibrating(models), self.rules.tracking or QuantileTracking()
        return ConfidentState(
            policy=self.policy.initial(models),
            learnt=calibrating.initial(),
            tracked=tracking.initial(),
            second=self._with(2).initial(),
        )

    def distribution(self, state: ConfidentState, models: Sequence[str]) -> Distribution:
        return self.policy.distribution(state.policy, models)

    @property
    def features(self) -> int:
        return features_read(self.policy)

    def distribution_at(self, state: ConfidentState, models: Sequence[str], features: Sequence[float]) -> Distribution:
        return decided_by_features(self.policy, state.policy, models, features)

    def pooled(self, states: Sequence[ConfidentState], strength: float) -> ConfidentState:
        """Confidence begins with that of the level above. Sets, and what second opinions are worth, are of all contexts
        together."""
        learnt = states[0].learnt
        for state in states[1:]:
            learnt = self._with(len(learnt.said)).pooled(learnt, state.learnt, max(strength, _LEAST_STRENGTH))
        own = pooled(self.policy, [state.policy for state in states], strength)
        return replace(states[0], policy=own, learnt=learnt)

    def learn(self, state: ConfidentState, outcome: OutcomeRecord) -> ConfidentState:
        learnt = self.policy.learn(state.policy, outcome)
        judged = self._judged(state, outcome)
        if learnt is state.policy:
            return judged
        return replace(judged, policy=learnt)

    def dump(self, state: ConfidentState) -> Mapping[str, Any]:
        own = {} if state.policy is None else self.policy.dump(state.policy)
        tracking = self.rules.tracking or QuantileTracking()
        confidence = {
            "v": STATE_VERSION,
            "levels": len(state.learnt.said),
            "calibration": self._with(len(state.learnt.said)).dump(state.learnt),
            "tracking": tracking.dump(state.tracked),
            "held": state.held,
            "sized": state.sized,
            "judged": state.judged,
        }
        if state.second != self._with(2).initial():
            confidence["second"] = self._with(2).dump(state.second)
            confidence["second_of"] = self._second
        return {**own, "confidence": confidence}

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> ConfidentState:
        """A state that the policy alone has written begins confidence anew. Raises ContractError."""
        initial = self.initial(models)
        own = {key: value for key, value in data.items() if key != "confidence"}
        policy = None if initial.policy is None else self.policy.load(own, models)
        found = data.get("confidence")
        if found is None:
            return replace(initial, policy=policy)
        tracking = self.rules.tracking or QuantileTracking()
        try:
            if found["v"] != STATE_VERSION:
                raise ContractError(f"a state of confidence has version {found['v']!r}, read is {STATE_VERSION}")
            sums = [float(found[key]) for key in ("held", "sized", "judged")]
            learnt = self._calibrating(models).load(found["calibration"])
            tracked = tracking.load(found["tracking"])
            # Another model has to earn it; states of older releases do not say whose it is.
            is_ours = "second" in found and found.get("second_of", self._second) == self._second
            second = self._with(2).load(found["second"]) if is_ours else initial.second
        except (KeyError, TypeError, ValueError) as error:
            raise ContractError(f"a state of confidence cannot be read: {error!r}") from error
        if not all(math.isfinite(value) and value >= 0.0 for value in sums):
            raise ContractError(f"a state of confidence cannot be {found}")
        held, sized, judged = sums
        return ConfidentState(
            policy=policy, learnt=learnt, tracked=tracked, held=held, sized=sized, judged=judged, second=second
        )

    # -- what is said of answers ---------------------------------------------------------------------------------

    def confidence(self, state: ConfidentState, agreement: F64) -> F64:
        """`[n]`: the probability that answers with these agreements are right; NaN stays NaN."""
        known = np.isfinite(agreement)
        said = self._with(len(state.learnt.said)).probabilities(state.learnt, np.where(known, agreement, 0.0))
        return np.where(known, said, np.nan)

    def confidence_of_second(self, state: ConfidentState) -> float:
        """The probability that a second opinion is right."""
        return float(self._with(2).probabilities(state.second, np.ones(1))[0])

    def classes(self, state: ConfidentState, probabilities: F64) -> Flags | None:
        """`[rows, classes]`: which classes are in each row's set; None where no coverage is asked for."""
        tracking = self.rules.tracking
        return None if tracking is None else tracking.classes(state.tracked, probabilities)

    def interval(self, state: ConfidentState, answers: F64) -> tuple[F64, F64] | None:
        """`[rows]` each: ends of the intervals around numbers; None where no coverage is asked for."""
        tracking = self.rules.tracking
        return None if tracking is None else tracking.interval(state.tracked, answers, self.rules.scale)

    def frozen(self, state: ConfidentState) -> Mapping[str, Any]:
        return frozen_models(self.policy, state.policy)

    def report(self, state: ConfidentState) -> Mapping[str, float]:
        """What is exported: `calibration_error`, and with sets `coverage` and `set_size`, over what still counts."""
        found = {"calibration_error": self._with(len(state.learnt.said)).error(state.learnt)}
        if self.rules.tracking is not None and state.judged > 0.0:
            found |= {"coverage": state.held / state.judged, "set_size": state.sized / state.judged}
        return found

    # -- learning ------------------------------------------------------------------------------------------------

    @property
    def _second(self) -> str | None:
        return self.policy.second if isinstance(self.policy, WithSecond) else None

    def _calibrating(self, models: Sequence[str]) -> Calibrating:
        return self._with(_STEPS if self.rules.of == "probability" else len(models) + 1)

    def _with(self, levels: int) -> Calibrating:
        rules = self.rules
        return Calibrating(
            levels=levels, method=rules.method, half_life_events=rules.half_life_events, prior=rules.prior
        )

    def _judged(self, state: ConfidentState, outcome: OutcomeRecord) -> ConfidentState:
        """A label judges the answer; a default that was given has judged nothing, what it withheld has. Where a second
        opinion was asked, each of the two is judged."""
        decision = outcome.decision
        answer = decision.first_answer
        if not outcome.has_label or decision.agreement is None or answer is None or decision.outcome not in _ANSWERS:
            return state
        vectors = any(isinstance(row, list) for row in answer)
        labels = label_rows(outcome.label, len(answer), vectors)
        if not labels:
            return state
        loss = math.fsum(apart(self.combine, row, label) for row, label in zip(answer, labels, strict=True))
        calibrating = self._with(len(state.learnt.said))
        learnt = calibrating.learn(state.learnt, decision.agreement, loss / len(labels))
        state = state if learnt is state.learnt else replace(state, learnt=learnt)
        if decision.second is not None and decision.second != self._second:
            return state  # of a version of the route that had another one
        if decision.second is not None:
            own = outcome.losses.get(decision.second, -1.0)
            second = self._with(2).learn(state.second, 1.0, own)
            return state if second is state.second else replace(state, second=second)
        for score, size in self._scores(state, decision, answer, labels):
            state = self._scored(state, score, size)
        return state

    def _scored(self, state: ConfidentState, score: float, size: float) -> ConfidentState:
        tracking = self.rules.tracking
        if tracking is None or not (math.isfinite(score) and math.isfinite(size)):
            return state
        decay = 0.5 ** (1.0 / self.rules.half_life_events)
        return replace(
            state,
            tracked=tracking.learn(state.tracked, score),
            held=decay * state.held + (score <= state.tracked.threshold),
            sized=decay * state.sized + size,
            judged=decay * state.judged + 1.0,
        )

    def _scores(
        self, state: ConfidentState, decision: Decision, answer: Sequence[Label], labels: Sequence[Label]
    ) -> list[tuple[float, float]]:
        """For each row: the truth's score, and the size of the set as it would be now."""
        if self.rules.tracking is None:
            return []
        if self.combine == "mean":
            length = 2.0 * max(state.tracked.threshold, 0.0) * self.rules.scale
            return [
                (abs(row - label) / self.rules.scale, length)
                for row, label in zip(answer, labels, strict=True)
                if _is_number(row) and _is_number(label)
            ]
        found = []
        for row, label in zip(decision.combined or (), labels, strict=False):
            column = column_of(label, decision.classes)
            truth = row[column] if 0 <= column < len(row) else 0.0
            within = sum(1.0 - probability <= state.tracked.threshold for probability in row)
            found.append((1.0 - truth, float(max(within, 1))))
        return found


def _is_number(value: Label) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
