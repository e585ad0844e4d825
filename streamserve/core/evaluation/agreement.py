"""A candidate model's answers beside those that were given: agreement, accuracy, who is right where they differ. Pure.

All is counted request by request, and every comparison is over the same requests on both sides: those that both
answered, and of these, for accuracy, those with a usable label. How far answers are from each other and from a label is
what learning calls the loss (`streamserve.core.losses`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamserve.core.losses import Unusable, apart, losses_of
from streamserve.core.records import Decision, FeedbackRecord, Label
from streamserve.core.values import unchanging

SERVED = "served"
"""What callers got; no model has this name, since a model's id holds an `@`."""
_CANDIDATE = "candidate"
#: Kinds of refusal that are told apart; the rest are counted together.
_MOST_REFUSALS = 20
OTHER_REFUSALS = "other words"


@unchanging()
class Replayed:
    """One request: what the candidate says of it now, and what was said and found out then."""

    ref: str
    id: str
    answer: list[Label] | None
    """The candidate's, one value a row; None where it refused the request."""
    refusal: str = ""
    decision: Decision | None = None
    """The terminal record; None where there is none to be found."""
    label: Label = None
    has_label: bool = False
    """A label may be null; this says that there is one."""


@dataclass(slots=True, kw_only=True)
class Versus:
    """The candidate against one other that answered, over the requests that both answered."""

    requests: int = 0
    agree: int = 0
    """Requests on which no row is further apart than the tolerance."""
    rows: int = 0
    rows_agree: int = 0
    labelled: int = 0
    """Requests with a usable label."""
    loss: float = 0.0
    """Sum of its losses on the labelled."""
    candidate_loss: float = 0.0
    """Sum of the candidate's on the same."""
    better: int = 0
    """Labelled requests on which the candidate's loss is lower."""
    worse: int = 0
    """On which it is higher."""

    @property
    def agreement(self) -> float | None:
        """Share of requests."""
        return self.agree / self.requests if self.requests else None

    @property
    def accuracy(self) -> float | None:
        """1 minus its mean loss."""
        return 1.0 - self.loss / self.labelled if self.labelled else None

    @property
    def candidate_accuracy(self) -> float | None:
        """1 minus the candidate's mean loss, on the same requests."""
        return 1.0 - self.candidate_loss / self.labelled if self.labelled else None


@dataclass(slots=True, kw_only=True)
class Refused:
    """Requests that the candidate refused in the same words."""

    requests: int
    first: str
    """The ref of the first."""


@dataclass(slots=True)
class Comparison:
    """Takes requests one by one. `combine`: the route's rule; `tolerance`: how far apart two answers may be and agree.

    Its size depends on the number of models, never on that of requests.
    """

    combine: str
    tolerance: float = 0.0
    requests: int = 0
    answered: int = 0
    """By the candidate."""
    refusals: dict[str, Refused] = field(default_factory=dict)
    versus: dict[str, Versus] = field(default_factory=dict)
    """By `SERVED` and by model id."""
    unanswered: dict[str, int] = field(default_factory=dict)
    """Outcome of terminal records without an answer -> requests."""
    without_prediction: int = 0
    labelled: int = 0
    """Requests with a usable label that the candidate answered."""
    candidate_loss: float = 0.0
    """Sum over those."""
    unusable_labels: dict[str, int] = field(default_factory=dict)
    disagreements: int = 0

    @property
    def accuracy(self) -> float | None:
        """The candidate's, on every labelled request that it answered: 1 minus its mean loss."""
        return 1.0 - self.candidate_loss / self.labelled if self.labelled else None

    def add(self, one: Replayed) -> bool:
        """Count it. Whether it is to be listed: the candidate refused it, or disagrees with the served answer."""
        self.requests += 1
        decision = one.decision
        others: dict[str, list[Label]] = {}
        if decision is None:
            self.without_prediction += 1
        else:
            others = {name: rows for name, rows in decision.members.items() if isinstance(rows, list)}
            if isinstance(decision.label, list):
                others[SERVED] = decision.label
            else:
                self.unanswered[decision.outcome] = self.unanswered.get(decision.outcome, 0) + 1
        if one.answer is None:
            self._refused(one)
            return True
        self.answered += 1
        served_differs = False
        for name, rows in others.items():
            agrees = self._agree(self._versus(name), one.answer, rows)
            served_differs |= name == SERVED and not agrees
        if one.has_label:
            self._judge(one, one.answer, others)
        self.disagreements += served_differs
        return served_differs

    def _versus(self, name: str) -> Versus:
        return self.versus.setdefault(name, Versus())

    def _refused(self, one: Replayed) -> None:
        full = one.refusal not in self.refusals and len(self.refusals) >= _MOST_REFUSALS
        words = OTHER_REFUSALS if full else one.refusal
        self.refusals.setdefault(words, Refused(requests=0, first=one.ref)).requests += 1

    def _agree(self, versus: Versus, answer: list[Label], other: list[Label]) -> bool:
        rows = max(len(answer), len(other))
        alike = sum(
            apart(self.combine, mine, theirs) <= self.tolerance for mine, theirs in zip(answer, other, strict=False)
        )
        agrees = alike == rows
        versus.requests += 1
        versus.agree += agrees
        versus.rows += rows
        versus.rows_agree += alike
        return agrees

    def _judge(self, one: Replayed, answer: list[Label], others: Mapping[str, list[Label]]) -> None:
        whole = {name: rows for name, rows in others.items() if len(rows) == len(answer)}
        answers = {_CANDIDATE: answer, **whole}
        losses = losses_of(self.combine, _decision(len(answer)), answers, _feedback(one.label))
        if isinstance(losses, Unusable) or _CANDIDATE not in losses:
            reason = losses.reason if isinstance(losses, Unusable) else "label_rows"
            self.unusable_labels[reason] = self.unusable_labels.get(reason, 0) + 1
            return
        mine = losses[_CANDIDATE]
        self.labelled += 1
        self.candidate_loss += mine
        for name in whole:
            if name in losses:
                versus, theirs = self._versus(name), losses[name]
                versus.labelled += 1
                versus.loss += theirs
                versus.candidate_loss += mine
                versus.better += mine < theirs
                versus.worse += mine > theirs


def _decision(rows: int) -> Decision:
    """Only its number of rows counts for a label."""
    return Decision(
        id="",
        route="",
        outcome="",
        epoch=-1,
        probability=1.0,
        off_epoch=False,
        chosen=(),
        label=None,
        members={},
        rows=rows,
    )


def _feedback(label: Any) -> FeedbackRecord:
    return FeedbackRecord(partition=0, offset=0, append_ms=0, ref=None, id=None, label=label, has_label=True)
