"""Off-policy evaluation: from what was logged with exact probabilities, what another policy would have earned.

Sources: IPS, Horvitz and Thompson (1952); SNIPS, Swaminathan and Joachims (2015); doubly robust, Dudik, Langford and Li
(2011), cross-fitted as in Chernozhukov et al. (2018); effective sample size, Kish (1965). Intervals: normal, at 95 % by
default, by the delta method for SNIPS. Weights are neither clipped nor switched off: far from the log that gives
intervals that miss.
"""

from __future__ import annotations

import math

import numpy as np

from streamserve.core.messages import F64, I64
from streamserve.core.values import unchanging

#: Fewer effective samples than this say nothing.
LEAST_EFFECTIVE = 30.0
#: Quantile of the normal distribution for an interval of 95 %.
Z_95 = 1.959963984540054
_RIDGE = 1.0


@unchanging(eq=False)
class Logged:
    """n decisions with one action each, as they were logged."""

    actions: I64
    """`[n]`: which of the K actions was taken."""
    probabilities: F64
    """`[n]`: with which probability, above 0."""
    rewards: F64
    """`[n]`: in [0, 1]."""
    wanted: F64
    """`[n, K]`: the probability of each action under the policy that is asked about."""

    def __post_init__(self) -> None:
        n = len(self.actions)
        if not (len(self.probabilities) == len(self.rewards) == len(self.wanted) == n):
            raise ValueError("actions, probabilities, rewards and wanted must be of the same length")
        if n and not (self.probabilities.min() > 0.0 and np.isfinite(self.rewards).all()):
            raise ValueError("probabilities must be above 0 and rewards finite")

    @property
    def weights(self) -> F64:
        """`[n]`: how much more often the policy asked about would have taken the action that was taken."""
        found: F64 = self.wanted[np.arange(len(self.actions)), self.actions] / self.probabilities
        return found


@unchanging()
class Estimate:
    """A mean reward and its interval."""

    name: str
    value: float
    low: float
    high: float


@unchanging()
class Evaluation:
    """All that the log says about a policy."""

    n: int
    effective: float
    """`(sum w)^2 / sum w^2`: how many decisions of the policy itself would say as much."""
    largest_weight: float
    unsupported: float
    """Share of what the policy would do that was never logged at all: no estimate knows what it is worth."""
    estimates: tuple[Estimate, ...]
    """Empty where the log says too little."""
    refused: str
    """Why there are no estimates, in words; empty where there are."""


def evaluate(logged: Logged, z: float = Z_95) -> Evaluation:
    """IPS, SNIPS and doubly robust estimates; refused where the effective sample size is below 30."""
    n, weights = len(logged.actions), logged.weights
    squares = float((weights**2).sum())
    effective = float(weights.sum()) ** 2 / squares if squares > 0.0 else 0.0
    seen = np.bincount(logged.actions, minlength=logged.wanted.shape[1]) > 0
    unsupported = float(logged.wanted[:, ~seen].sum() / n) if n else 1.0
    refused = ""
    if effective < LEAST_EFFECTIVE:
        refused = (
            f"the log says too little about this policy: {n} decisions count as {effective:.1f} of its own, "
            f"{LEAST_EFFECTIVE:.0f} are needed; take more time, or a policy nearer to the one that served"
        )
    return Evaluation(
        n=n,
        effective=effective,
        largest_weight=float(weights.max()) if n else 0.0,
        unsupported=unsupported,
        estimates=() if refused else (ips(logged, z), snips(logged, z), doubly_robust(logged, z=z)),
        refused=refused,
    )


def ips(logged: Logged, z: float = Z_95) -> Estimate:
    """`mean(w r)`."""
    return _normal("ips", logged.weights * logged.rewards, z)


def snips(logged: Logged, z: float = Z_95) -> Estimate:
    """`sum(w r) / sum(w)`, its interval by the delta method."""
    weights, rewards, n = logged.weights, logged.rewards, len(logged.actions)
    total = float(weights.sum())
    value = float((weights * rewards).sum()) / total
    deviation = math.sqrt(float((weights**2 * (rewards - value) ** 2).sum())) / total * math.sqrt(n / max(n - 1, 1))
    return Estimate(name="snips", value=value, low=value - z * deviation, high=value + z * deviation)


def doubly_robust(logged: Logged, features: F64 | None = None, z: float = Z_95) -> Estimate:
    """`mean(q(pi) + w (r - q(a)))` with a ridge regression q of the rewards of each action, fitted on the other half.

    `features`: `[n, d]`; None: a constant, so that q is each action's (shrunk) mean reward.
    """
    n, k = logged.wanted.shape
    x = np.ones((n, 1)) if features is None else np.column_stack([np.ones(n), features])
    predicted = np.zeros((n, k))
    half = np.arange(n) % 2 == 0
    for mine in (half, ~half):
        predicted[mine] = x[mine] @ _ridge(x[~mine], logged.actions[~mine], logged.rewards[~mine], k)
    taken = predicted[np.arange(n), logged.actions]
    terms = (logged.wanted * predicted).sum(axis=1) + logged.weights * (logged.rewards - taken)
    return _normal("dr", terms, z)


def direct(rewards: F64, z: float = Z_95) -> Estimate:
    """Exact replay: every action's reward is known, so these are the rewards of the policy itself."""
    return _normal("replay", rewards, z)


def _ridge(x: F64, actions: I64, rewards: F64, k: int) -> F64:
    """`[d, K]`: coefficients; an action without rewards gets the mean of all."""
    d = x.shape[1]
    mean = float(rewards.mean()) if len(rewards) else 0.0
    found = np.zeros((d, k))
    for action in range(k):
        mine = actions == action
        penalty = _RIDGE * np.eye(d)
        found[:, action] = np.linalg.solve(x[mine].T @ x[mine] + penalty, x[mine].T @ (rewards[mine] - mean))
    found[0] += mean
    return found


def _normal(name: str, terms: F64, z: float) -> Estimate:
    n, value = len(terms), float(terms.mean())
    deviation = math.sqrt(float(((terms - value) ** 2).sum()) / max(n - 1, 1) / n)
    return Estimate(name=name, value=value, low=value - z * deviation, high=value + z * deviation)
