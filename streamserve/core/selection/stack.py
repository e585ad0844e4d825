"""Online stacking: one weight a model on its log-probabilities, by stochastic gradient descent on the log loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from streamserve.core.combining import LEAST_PROBABILITY
from streamserve.core.losses import label_rows
from streamserve.core.messages import F64
from streamserve.core.records import Label, OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import all_of
from streamserve.core.selection.inheriting import Heir, towards
from streamserve.core.selection.sums import STATE_VERSION, check_rate, check_version
from streamserve.core.values import unchanging
from streamserve.errors import ContractError

_Rows = list[list[float]]
#: A step's gradient is cut to this in each weight: one surprise moves little.
_STEEPEST = 3.0
#: Of all weights together; the largest share then is 10,000.
_LEAST_TOTAL = 0.01
#: Models that are always right would otherwise gain weight for ever, a little each time.
_FURTHEST = 100.0


class StackWeights(NamedTuple):
    """One weight a model, finite. One below 0 takes away what other models have in common with this one."""

    models: tuple[str, ...]
    weights: tuple[float, ...]
    events: int = 0


@unchanging()
class Stack:
    """Asks all models; weighs their log-probabilities so that the log loss of the mixture falls.

    The mixture gives class c `softmax(sum_i w_i log p_i(c))` (combine rule `log_probability`), each p_i at least
    `LEAST_PROBABILITY`. A label y moves each weight by `-rate * (E[log p_i] - log p_i(y))`, the expectation under the
    mixture, cut to +-3. Members that are missing, or told no probabilities, stay where they
    are, and the others stand in for them in proportion. A label that is none of the classes teaches nothing, nor does a
    reward. Raises ConfigError on impossible parameters.
    """

    when_to_use: ClassVar[str] = "All models may be asked, all give probabilities, and labels come: the most accurate."
    reads_probabilities: ClassVar[bool] = True

    rate: float = 0.01

    def __post_init__(self) -> None:
        check_rate(self.name, "rate", self.rate)

    @property
    def name(self) -> str:
        return "stack"

    def initial(self, models: Sequence[str]) -> StackWeights:
        return StackWeights(models=tuple(models), weights=(1.0 / len(models),) * len(models))

    def distribution(self, state: StackWeights, models: Sequence[str]) -> Distribution:
        found = state if state.models == tuple(models) else self.load(self.dump(state), models)
        total = math.fsum(found.weights)
        # Where the models take each other away altogether there is no mixture to speak of.
        usable = total > _LEAST_TOTAL
        shares = [weight / total for weight in found.weights] if usable else [1.0 / len(models)] * len(models)
        return all_of(shares)

    def learn(self, state: StackWeights, outcome: OutcomeRecord) -> StackWeights:
        told = self._told(state, outcome)
        if told is None:
            return state
        places, logs, columns = told
        weights = state.weights
        mine: Sequence[float] = weights
        if len(places) < len(weights):
            mine = [weights[place] for place in places]
            if (here := math.fsum(mine)) > _LEAST_TOTAL:
                scale = math.fsum(weights) / here
                mine = [scale * weight for weight in mine]
        slopes = _slopes(np.array(mine), logs, columns)
        if len(places) < len(weights):
            found = dict(zip(places, slopes, strict=True))
            slopes = [found.get(place, 0.0) for place in range(len(weights))]
        step, most = self.rate / len(columns), _STEEPEST * len(columns)
        moved = [
            weight - step * (slope if -most <= slope <= most else math.copysign(most, slope))
            for weight, slope in zip(weights, slopes, strict=True)
        ]
        if max(moved) > _FURTHEST or min(moved) < -_FURTHEST:
            moved = [min(max(weight, -_FURTHEST), _FURTHEST) for weight in moved]
        return StackWeights(state.models, tuple(moved), state.events + 1)

    def pooled(self, states: Sequence[StackWeights], strength: float) -> StackWeights:
        """Weighted means: a level counts for the outcomes that it has learnt from, the one above it for `strength`."""
        pool, seen = states[0], float(states[0].events)
        for state in states[1:]:
            own = state if state.models == pool.models else self.load(self.dump(state), pool.models)
            above = min(strength, seen)
            total = own.events + above
            share = own.events / total if total > 0.0 else 0.0
            weights = tuple(share * a + (1.0 - share) * b for a, b in zip(own.weights, pool.weights, strict=True))
            pool, seen = StackWeights(models=pool.models, weights=weights, events=own.events), total
        return pool

    def dump(self, state: StackWeights) -> Mapping[str, Any]:
        return {
            "v": STATE_VERSION,
            "weights": dict(zip(state.models, state.weights, strict=True)),
            "events": state.events,
        }

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> StackWeights:
        """A model that `data` lacks enters with the mean weight of the others."""
        check_version(data)
        try:
            known = {str(model): float(weight) for model, weight in data["weights"].items()}
            events = int(data["events"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"a learnt state cannot be read: {error!r}; written by another version?") from error
        if not all(abs(weight) <= _FURTHEST for weight in known.values()):
            raise ContractError(f"a learnt state holds a weight that is not finite, or too large: {known}")
        kept = [known[model] for model in models if model in known]
        mean = math.fsum(kept) / len(kept) if kept else 1.0 / len(models)
        return StackWeights(
            models=tuple(models), weights=tuple(known.get(model, mean) for model in models), events=events
        )

    def inherited(self, data: Mapping[str, Any], model: str, heir: Heir) -> Mapping[str, Any]:
        return towards(data, "weights", model, heir)

    def _told(self, state: StackWeights, outcome: OutcomeRecord) -> tuple[list[int], F64, list[int]] | None:
        """Places of the members that told probabilities, their logarithms (`[models, rows, classes]`), and the rows'
        true columns."""
        decision, losses = outcome.decision, outcome.losses
        if not outcome.has_label:
            return None
        told, places, given = decision.probabilities, [], []
        for place, model in enumerate(state.models):
            rows = told.get(model)
            if rows is not None and 0.0 <= losses.get(model, -1.0) <= 1.0:
                places.append(place)
                given.append(rows)
        labels = label_rows(outcome.label, len(given[0]), vectors=False) if given else None
        columns = [column_of(label, decision.classes) for label in labels or ()]
        if not columns or -1 in columns:
            return None
        logs = _logs_of(given, len(columns), len(decision.classes))
        return None if logs is None else (places, logs, columns)


def _slopes(weights: F64, logs: F64, columns: Sequence[int]) -> list[float]:
    """`[models]`: the slopes of the log loss in each weight, summed over rows; `logs`: `[models, rows, classes]`.

    Arrays this small cost by the call: `dot` is a third of `@`, the sum of a list a quarter of that of an array.
    """
    total: list[float] | None = None
    for row, column in enumerate(columns):
        mine = logs[:, row]
        scores = weights.dot(mine)
        scores -= max(scores.tolist())
        above = np.exp(scores, scores)
        above /= sum(above.tolist())
        above[column] -= 1.0  # what the mixture gives each class, less what the label does
        slopes: list[float] = mine.dot(above).tolist()
        total = slopes if total is None else [one + other for one, other in zip(total, slopes, strict=True)]
    return total or []


def _logs_of(given: Sequence[_Rows], n: int, width: int) -> F64 | None:
    """`[models, n, width]`: logarithms; None where a model's are not n lists of `width` numbers from 0 to 1."""
    try:
        numbers = np.array(given)
    except ValueError:  # lists of different lengths
        return None
    if numbers.dtype.kind not in "fiub" or numbers.shape != (len(given), n, width):
        return None
    # Where the least and the most stand is found in a third of the time that their values are.
    least, most = numbers.item(numbers.argmin()), numbers.item(numbers.argmax())
    if not (least >= 0.0 and most <= 1.0):  # NaN is neither, and stands where both are looked for
        return None
    logs: F64 = np.log(numbers if least >= LEAST_PROBABILITY else np.maximum(numbers, LEAST_PROBABILITY))
    return logs


def column_of(label: Label, classes: Sequence[str]) -> int:
    """Where the class of this label stands; -1: it is none of them."""
    text = str(label)
    if text in classes:
        return classes.index(text)
    if isinstance(label, int | float) and not isinstance(label, bool):
        for column, name in enumerate(classes):
            if _is_number(name, label):
                return column
    return -1


def _is_number(text: str, number: float) -> bool:
    try:
        return float(text) == number
    except ValueError:
        return False
