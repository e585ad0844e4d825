"""What a label or a reward says about each model: a loss in [0, 1].

* Classes (combine rules `vote`, `mean_probability`, `log_probability`, `best`): 0 where the answer equals the label,
  else 1.
* Numbers (combine rule `mean`): `|label - answer| / (|label| + |answer|)`, 0 where both are 0; for vectors both sums go
  over the elements. Symmetric, free of units, never above 1, so no scale has to be configured.
* Many rows: the mean over the rows. One label for a request of many rows holds for each of them.
* A label informs every model that answered; a reward only the one that was served: the model that it names, else the
  only one chosen, with loss `1 - reward`. A default that was served informs nobody. Where the served answer was drawn
  among those of several (combine rule `drawn`), a reward informs every model that gave just that answer.
  A second opinion, where one came, is what was served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from streamserve.core.records import Decision, FeedbackRecord, Label
from streamserve.core.values import unchanging

_REWARD_OUTCOMES = ("ok", "partial")

Loss = Callable[[Label, Label], float]


@unchanging()
class Unusable:
    """Feedback that teaches nothing because it is wrong: why, for a person."""

    reason: str
    """A word for a metric or a header."""
    detail: str


def losses_of(
    combine: str, decision: Decision, members: Mapping[str, Label], feedback: FeedbackRecord
) -> Mapping[str, float] | Unusable:
    """Model id -> loss. `members`: model id -> its answers, a list with one value per row (late answers included)."""
    if not feedback.has_label and feedback.reward is None:
        return Unusable(reason="no_label_no_reward", detail="feedback holds neither a label nor a reward")
    if feedback.reward is not None and not 0.0 <= feedback.reward <= 1.0:
        return Unusable(reason="bad_reward", detail=f"the reward must be a number from 0 to 1, not {feedback.reward}")
    named = None if feedback.model is None else _asked(feedback.model, _all_asked(decision))
    if named == "":
        asked = ", ".join(_all_asked(decision))
        return Unusable(reason="unknown_model", detail=f"model {feedback.model} was not asked; asked: {asked}")
    if not feedback.has_label:
        return _reward_losses(combine, decision, members, feedback.reward, named)
    if not members:  # nobody answered (expired, error): a label informs nobody
        return {}
    answers = {model: rows for model, rows in members.items() if named in (None, model) and _is_rows(rows)}
    return _label_losses(combine, decision, answers, feedback.label)


def _all_asked(decision: Decision) -> tuple[str, ...]:
    return decision.chosen if decision.second is None else (*decision.chosen, decision.second)


def _asked(name: str, chosen: Sequence[str]) -> str:
    """The chosen model of this id, or of this name without a version; empty where there is none."""
    return next((model for model in chosen if name in (model, model.rpartition("@")[0])), "")


def _reward_losses(
    combine: str, decision: Decision, members: Mapping[str, Label], reward: float | None, named: str | None
) -> Mapping[str, float]:
    if reward is None or decision.outcome not in _REWARD_OUTCOMES:
        return {}
    if combine == "drawn" and named is None:
        return {model: 1.0 - reward for model, rows in members.items() if rows == decision.label}
    if decision.second in members and named is None:
        return {decision.second: 1.0 - reward} if decision.second is not None else {}
    served = named or (decision.chosen[0] if len(decision.chosen) == 1 else None)
    return {served: 1.0 - reward} if served is not None and served in members else {}


def _label_losses(
    combine: str, decision: Decision, answers: Mapping[str, list[Label]], label: Label
) -> Mapping[str, float] | Unusable:
    rows = max((len(answer) for answer in answers.values()), default=decision.rows)
    vectors = any(isinstance(row, list) for answer in answers.values() for row in answer)
    labels = label_rows(label, rows, vectors)
    if labels is None:
        return Unusable(reason="label_rows", detail=f"the request has {rows} rows: give one label, or a list of {rows}")
    numeric = combine == "mean"
    flat = [value for row in labels for value in _flat(row)]
    if numeric and not all(_is_finite(value) for value in flat):
        return Unusable(reason="label_not_number", detail="this route's models answer numbers; the label is none")
    answered = [value for answer in answers.values() for row in answer for value in _flat(row)]
    if not numeric and answered and not ({_kind(value) for value in flat} & {_kind(value) for value in answered}):
        detail = f"the label is {_kind(flat[0]) if flat else 'empty'}, the models answer {_kind(answered[0])}"
        return Unusable(reason="label_kind", detail=detail)
    loss: Loss = _distance if numeric else _differs
    return {
        model: math.fsum(map(loss, labels, answer)) / rows for model, answer in answers.items() if len(answer) == rows
    }


def label_rows(label: Label, rows: int, vectors: bool) -> list[Label] | None:
    """The label as one value per row; None where it does not fit. `vectors`: a row's answer is itself a list."""
    listed = isinstance(label, list)
    per_row = listed and len(label) == rows and (not vectors or all(isinstance(row, list) for row in label))
    if per_row:
        return list(label)
    return [label] * rows if rows and listed == vectors else None


def apart(combine: str, one: Label, other: Label) -> float:
    """How far two answers to one row are apart, by the rule of the route: the loss of one if the other were the label.

    In [0, 1], and symmetric. Numbers that are none (null, text) are apart unless they are the same.
    """
    if combine != "mean" or not all(_is_finite(value) for value in (*_flat(one), *_flat(other))):
        return _differs(one, other)
    return _distance(one, other)


def _differs(label: Label, answer: Label) -> float:
    return 0.0 if label == answer else 1.0


def _distance(label: Label, answer: Label) -> float:
    truths, guesses = _flat(label), _flat(answer)
    if len(truths) != len(guesses) or not all(_is_finite(guess) for guess in guesses):
        return 1.0
    # Scaled by the largest, so that sums of numbers near the end of the range of floats stay finite.
    largest = max((abs(value) for value in (*truths, *guesses)), default=0.0)
    if largest == 0.0:
        return 0.0
    truths = [truth / largest for truth in truths]
    guesses = [guess / largest for guess in guesses]
    apart = math.fsum(abs(truth - guess) for truth, guess in zip(truths, guesses, strict=True))
    size = math.fsum(abs(value) for value in (*truths, *guesses))
    return min(1.0, apart / size)


def _flat(value: Label) -> list[Label]:
    if not isinstance(value, list):
        return [value]
    return [leaf for element in value for leaf in _flat(element)]


def _is_rows(rows: Label) -> bool:
    return isinstance(rows, list) and bool(rows)


def _is_finite(value: Label) -> bool:
    if isinstance(value, int):
        return abs(value) < 1 << 1023  # JSON has integers that no float holds
    return isinstance(value, float) and math.isfinite(value)


def _kind(value: Label) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    return "null" if value is None else "an object"
