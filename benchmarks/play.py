"""Playing a policy over a stream of known losses, as the learner and the roles would, without a broker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Policy, pick, salt_of
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
) -> Played:
    """Each query is decided by the state published last; its losses are learnt `delay` queries later.

    `told`: `[queries, models, classes]`, `labels`: `[queries]`, for policies that learn from probabilities.

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
