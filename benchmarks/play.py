"""Playing a policy over a stream of known losses, as the learner and the roles would, without a broker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamserve.core.combining import MemberRows, combine, served_probability
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Policy, draw, pick, salt_of
from streamserve.testing.policy_checks import outcome_of

F64 = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """What a policy chose on one stream."""

    asked: Flags
    """`[queries, models]`"""
    weights: F64
    """`[queries, models]`: in the combination; 0 for those not asked."""

    @property
    def evaluations(self) -> float:
        """Models asked, a query."""
        return float(self.asked.sum(axis=1).mean())

    @property
    def served(self) -> NDArray[np.int64]:
        """`[queries]`: the model with the most weight."""
        return self.weights.argmax(axis=1)


def play(
    policy: Policy,
    models: tuple[str, ...],
    losses: F64,
    seed: int,
    *,
    answers: Flags | None = None,
    published_every: int = 1,
    delay: int = 0,
    told: F64 | None = None,
    labels: NDArray[np.int64] | None = None,
    served: NDArray[np.int64] | None = None,
) -> Played:
    """Each query is decided by the state published last; its losses are learnt `delay` queries later.

    `told`: `[queries, models, classes]`, `labels`: `[queries]`, for policies that learn from probabilities.

    `served`: `[queries, models]`, what each model says, for policies that draw which answer serves (then its weight in
    what is returned is 1): they learn from the reward of that answer alone.

    `losses`: `[queries, models]`. `answers`: `[queries, models]`, false where a model would not answer; None: all do.
    """
    n, k = losses.shape
    asked, weights = np.zeros((n, k), np.bool_), np.zeros((n, k))
    state, partition, salt = policy.initial(models), np.array([seed]), salt_of("benchmark", policy.name)
    rows = losses.tolist()
    distribution = policy.distribution(state, models)
    waiting: deque[OutcomeRecord] = deque()
    for query, row in enumerate(rows):
        if query % published_every == 0:
            distribution = policy.distribution(state, models)
        masks, drawn = pick(distribution, partition, np.array([query]), salt)
        mask = int(masks[0])
        chosen = [bit for bit in range(k) if mask >> bit & 1]
        asked[query, chosen] = True
        weights[query, chosen] = distribution.weights[chosen]
        seen = chosen if answers is None else [bit for bit in chosen if answers[query, bit]]
        outcome = outcome_of(
            {models[bit]: row[bit] for bit in seen},
            chosen=[models[bit] for bit in chosen],
            probability=int(drawn[0]) / PROBABILITY_ONE,
            offset=query,
        )
        if served is not None:
            outcome, weights[query] = _rewarded(outcome, served[query], weights[query], models)
        if told is not None and labels is not None:
            outcome = _telling(outcome, told[query, seen], int(labels[query]), [models[bit] for bit in seen])
        waiting.append(outcome)
        if len(waiting) > delay:
            state = policy.learn(state, waiting.popleft())
    return Played(asked=asked, weights=weights)


def _telling(outcome: OutcomeRecord, probabilities: F64, label: int, models: list[str]) -> OutcomeRecord:
    """The outcome as a route makes it whose policy learns from probabilities."""
    rows = {model: [row] for model, row in zip(models, probabilities.tolist(), strict=True)}
    classes = tuple(map(str, range(probabilities.shape[-1])))
    return replace(outcome, label=label, decision=replace(outcome.decision, probabilities=rows, classes=classes))


def _rewarded(
    outcome: OutcomeRecord, said: NDArray[np.int64], weights: F64, models: tuple[str, ...]
) -> tuple[OutcomeRecord, F64]:
    """The outcome of one drawn answer that was rewarded, and all weight on the model that was drawn."""
    place = np.array([outcome.offset], np.int64)
    drawn = draw(np.zeros(1, np.int64), place, salt_of("benchmark", "served")) / PROBABILITY_ONE
    members = [
        MemberRows(present=np.ones(1, np.bool_), labels=said[k : k + 1], probabilities=None, classes=None)
        for k in range(len(models))
    ]
    shares, there = weights[None, :], np.ones((1, len(models)), np.bool_)
    answer = combine("drawn", shares, members, drawn)
    probability = served_probability(shares, answer.agrees, there, np.array([0, 1]))
    alike = [model for model, agrees in zip(models, answer.agrees[0].tolist(), strict=True) if agrees]
    decision = replace(
        outcome.decision,
        members={model: [one] for model, one in zip(models, said.tolist(), strict=True)},
        served_probability=float(probability[0]),
    )
    one = np.zeros(len(models))
    one[models.index(alike[0])] = 1.0  # whichever of them was drawn, the answer is the same
    losses = {model: outcome.losses[model] for model in alike}
    return replace(outcome, decision=decision, losses=losses, has_label=False, label=None), one
