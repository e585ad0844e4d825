"""The same stream, played by river's policies and by ours: regret within noise of theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from river import bandit, proba

from benchmarks.play import play
from streamserve.core.selection.base import Policy
from streamserve.core.selection.thompson import Thompson
from streamserve.core.selection.ucb import UCB

RIGHT = np.array([0.92, 0.88, 0.84, 0.78, 0.65])
MODELS = tuple(f"m{place}@1" for place in range(len(RIGHT)))
QUERIES, SEEDS = 4_000, 8


def stream(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((QUERIES, len(RIGHT))) >= RIGHT).astype(float)


def ours(policy: Policy, seed: int) -> float:
    played = play(policy, MODELS, stream(seed), seed)
    return float((RIGHT.max() - RIGHT[played.asked.argmax(axis=1)]).sum())


def theirs(policy: Any, seed: int) -> float:
    losses, arms, regret = stream(seed), list(range(len(RIGHT))), 0.0
    for query in range(QUERIES):
        arm = policy.pull(arms)
        policy.update(arm, 1.0 - losses[query, arm])
        regret += RIGHT.max() - RIGHT[arm]
    return regret


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mine", "peer"),
    [
        (
            lambda: Thompson(gamma=0.0, half_life_events=None),
            lambda seed: bandit.ThompsonSampling(reward_obj=proba.Beta(seed=seed), seed=seed),
        ),
        # river's bound is mean + delta * sqrt(2 ln(n) / n_arm); ours mean + sqrt(width * ln(n) / n_arm).
        (lambda: UCB(width=0.5, half_life_events=None), lambda seed: bandit.UCB(delta=0.5, seed=seed)),
        (lambda: UCB(width=2.0, half_life_events=None), lambda seed: bandit.UCB(delta=1.0, seed=seed)),
    ],
    ids=["thompson", "ucb half", "ucb one"],
)
def test_regret_is_that_of_river_within_noise(mine: Callable[[], Policy], peer: Callable[[int], Any]) -> None:
    """Means over 8 seeds differ by less than three standard errors of their difference."""
    left = np.array([ours(mine(), seed) for seed in range(SEEDS)])
    right = np.array([theirs(peer(seed), seed) for seed in range(SEEDS)])
    noise = 3.0 * math.sqrt((left.var(ddof=1) + right.var(ddof=1)) / SEEDS)
    assert abs(left.mean() - right.mean()) <= noise, (
        f"ours {left.mean():.1f}, river's {right.mean():.1f}, +- {noise:.1f}"
    )
    print(f"ours {left.mean():.1f}, river's {right.mean():.1f}, noise {noise:.1f}")
