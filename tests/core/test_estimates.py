"""Off-policy estimates: intervals that cover, weights that are right, refusals where the log says too little."""

from __future__ import annotations

import numpy as np
import pytest

from streamserve.core.evaluation.estimates import (
    LEAST_EFFECTIVE,
    Estimate,
    Logged,
    direct,
    doubly_robust,
    evaluate,
)

K, N = 5, 2_000
WORTH = np.array([0.92, 0.88, 0.84, 0.78, 0.65])


def log_of(seed: int, logging: np.ndarray, wanted: np.ndarray, n: int = N) -> Logged:
    """n decisions drawn from `logging`, with Bernoulli rewards."""
    random = np.random.default_rng(seed)
    actions = random.choice(K, n, p=logging)
    rewards = (random.random(n) < WORTH[actions]).astype(float)
    return Logged(actions=actions, probabilities=logging[actions], rewards=rewards, wanted=np.tile(wanted, (n, 1)))


def covered(found: Estimate, truth: float) -> bool:
    return found.low <= truth <= found.high


EXPLORING = np.full(K, 0.02) + np.array([0.9, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("name", "logging", "wanted"),
    [
        ("near", np.full(K, 1 / K), np.array([0.5, 0.2, 0.1, 0.1, 0.1])),
        (
            "one model, logged by a tenth exploring",
            np.full(K, 0.04) + np.array([0.8, 0, 0, 0, 0]),
            np.array([0, 0, 1.0, 0, 0]),
        ),
        ("uniform, logged by a tenth exploring", EXPLORING / EXPLORING.sum(), np.full(K, 1 / K)),
    ],
)
def test_intervals_cover_in_92_to_98_of_100_of_300_runs(name: str, logging: np.ndarray, wanted: np.ndarray) -> None:
    truth, hits = float((wanted * WORTH).sum()), {"ips": 0, "snips": 0, "dr": 0}
    for seed in range(300):
        for found in evaluate(log_of(seed, logging, wanted)).estimates:
            hits[found.name] += covered(found, truth)
    shares = {one: count / 300 for one, count in hits.items()}
    print(name, shares)
    assert all(0.92 <= share <= 0.98 for share in shares.values()), shares


def test_a_log_that_says_too_little_is_refused() -> None:
    logging = np.array([0.99, 0.01 / 4, 0.01 / 4, 0.01 / 4, 0.01 / 4])
    found = evaluate(log_of(1, logging, np.array([0, 1.0, 0, 0, 0])))
    assert found.effective < LEAST_EFFECTIVE
    assert found.estimates == ()
    assert "2000 decisions count as" in found.refused
    assert evaluate(log_of(1, logging, np.array([0, 1.0, 0, 0, 0]), n=0)).refused


def test_what_was_never_logged_is_told() -> None:
    logging = np.array([0.5, 0.5, 0.0, 0.0, 0.0])
    found = evaluate(log_of(1, logging, np.array([0.25, 0.25, 0.5, 0, 0])))
    assert found.unsupported == pytest.approx(0.5)
    assert evaluate(log_of(1, logging, logging)).unsupported == 0.0


def test_the_policy_that_logged_earns_what_it_earned() -> None:
    logging = np.full(K, 1 / K)
    log = log_of(3, logging, logging)
    found = evaluate(log)
    assert found.effective == pytest.approx(N)
    for estimate in found.estimates:
        assert estimate.value == pytest.approx(log.rewards.mean(), abs=2e-3)


def test_all_rewards_known_is_replay() -> None:
    found = direct(np.array([1.0, 0.0, 1.0, 1.0]))
    assert (found.name, found.value) == ("replay", 0.75)
    assert found.low < 0.75 < found.high


def test_features_make_the_doubly_robust_interval_narrower() -> None:
    random = np.random.default_rng(5)
    x = random.normal(size=(N, 1))
    actions = random.integers(0, K, N)
    worth = np.clip(0.5 + 0.45 * x[:, 0] * (actions - 2) / 2, 0, 1)
    log = Logged(
        actions=actions,
        probabilities=np.full(N, 1 / K),
        rewards=(random.random(N) < worth).astype(float),
        wanted=np.tile([0, 0, 0, 0, 1.0], (N, 1)),
    )
    plain, informed = doubly_robust(log), doubly_robust(log, x)
    assert informed.high - informed.low < 0.95 * (plain.high - plain.low)


def test_impossible_logs_are_refused() -> None:
    good = log_of(1, np.full(K, 1 / K), np.full(K, 1 / K), n=3)
    with pytest.raises(ValueError, match="above 0"):
        Logged(actions=good.actions, probabilities=np.zeros(3), rewards=good.rewards, wanted=good.wanted)
    with pytest.raises(ValueError, match="finite"):
        Logged(actions=good.actions, probabilities=good.probabilities, rewards=np.full(3, np.nan), wanted=good.wanted)
    with pytest.raises(ValueError, match="same length"):
        Logged(actions=good.actions, probabilities=np.ones(2), rewards=good.rewards, wanted=good.wanted)
