"""Policies that draw one model: each one's own rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta

from streamserve.core.admission import Admission
from streamserve.core.epochs import EpochTable
from streamserve.core.messages import PROBABILITY_ONE, Requests
from streamserve.core.selection.ab import AB
from streamserve.core.selection.base import Policy, draw
from streamserve.core.selection.beta import chances_of_being_largest
from streamserve.core.selection.epsilon_greedy import EpsilonGreedy
from streamserve.core.selection.exp3ix import Exp3IX, implicit_exploration
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.rewards import RewardSums, initial_rewards
from streamserve.core.selection.sums import LossSums, events_held
from streamserve.core.selection.thompson import Thompson
from streamserve.core.selection.ucb import UCB
from streamserve.testing.policy_checks import outcome_of
from tests.core.kit import app, route

ABC = ("a@1", "b@1", "c@1")


def sums(counts: tuple[float, ...], rewards: tuple[float, ...]) -> RewardSums:
    return RewardSums(models=ABC, counts=counts, rewards=rewards, events=1)


@given(st.lists(st.tuples(st.integers(-1, 10_000), st.integers(0, 1 << 44)), min_size=2, max_size=20), st.integers())
def test_one_request_draws_as_among_many(places: list[tuple[int, int]], salt: int) -> None:
    partition, offsets = np.array([p for p, _ in places]), np.array([o for _, o in places])
    alone = [int(draw(partition[i : i + 1], offsets[i : i + 1], salt)[0]) for i in range(len(places))]
    assert draw(partition, offsets, salt).tolist() == alone


# -- ab -----


def requests(keys: list[bytes | None], partition: int = 0, first: int = 0) -> Requests:
    n = len(keys)
    return Requests(
        partition=np.full(n, partition, np.int64),
        offsets=np.arange(first, first + n),
        append_ms=np.full(n, 1_000),
        keys=keys,
        values=[b""] * n,
        headers=[()] * n,
    )


def chosen(policy: Policy, asked: Requests, name: str = "r") -> list[int]:
    rules = app(route(ABC, name=name, policy=policy))
    return Admission(rules, EpochTable(rules)).admit(asked).choice.chosen.tolist()


def test_ab_gives_a_key_the_same_model_wherever_its_requests_stand() -> None:
    keys: list[bytes | None] = [f"user-{number}".encode() for number in range(2_000)]
    first = chosen(AB(), requests(keys))
    assert chosen(AB(), requests(keys, partition=5, first=77_000)) == first
    assert chosen(AB(), requests(keys[::-1])) == first[::-1]
    assert chosen(AB(), requests(keys), name="other") != first  # experiments of other routes split otherwise


def test_ab_splits_keys_and_places_by_the_shares() -> None:
    policy = AB(shares={"a": 70, "b": 30, "c": 0})
    n = 20_000
    for keys in ([f"user-{number}".encode() for number in range(n)], [None] * n):
        drawn = chosen(policy, requests(list(keys)))
        assert set(drawn) == {1, 2}
        assert abs(drawn.count(1) / n - 0.7) < 4 * math.sqrt(0.7 * 0.3 / n)


def test_ab_without_stickiness_or_without_a_key_goes_by_place() -> None:
    same: list[bytes | None] = [b"user"] * 500
    assert len(set(chosen(AB(), requests(same)))) == 1
    assert len(set(chosen(AB(sticky_by_key=False), requests(same)))) == 3
    assert len(set(chosen(AB(), requests([None] * 500)))) == 3
    assert len(set(chosen(AB(), requests([b""] * 500)))) == 1  # an empty key is a key


def test_ab_of_a_route_beside_others() -> None:
    """The choice of a sticky route does not depend on whether other routes are in the fetch."""
    rules = app(route(ABC, name="r", policy=AB()), route(ABC, name="s"))
    keys: list[bytes | None] = [f"user-{number % 7}".encode() for number in range(100)]
    mixed = requests(keys)
    headers = [(("ss-route", b"r" if number % 2 else b"s"),) for number in range(100)]
    mixed = Requests(
        partition=mixed.partition,
        offsets=mixed.offsets,
        append_ms=mixed.append_ms,
        keys=keys,
        values=mixed.values,
        headers=headers,
    )
    admitted = Admission(rules, EpochTable(rules)).admit(mixed).choice.chosen.tolist()
    assert admitted[1::2] == chosen(AB(), requests(keys))[1::2]


# -- leader -----


def test_leader_asks_the_best_alone_and_all_for_the_shadowed_share() -> None:
    found = Leader(shadow=0.05).distribution(sums((50.0, 60.0, 70.0), (40.0, 57.0, 50.0)), ABC)
    assert found.masks.tolist() == [0b010, 0b111]
    assert found.probabilities.tolist() == [PROBABILITY_ONE - 214748365, 214748365]
    assert found.weights.tolist() == [0.0, 1.0, 0.0]  # also a shadowed request is answered by the leader


def test_a_model_with_few_answers_does_not_lead_by_luck() -> None:
    state = sums((200.0, 2.0, 200.0), (180.0, 2.0, 120.0))
    assert Leader().distribution(state, ABC).masks[0] == 0b001
    assert Leader(prior=0.0).distribution(state, ABC).masks[0] == 0b010


def test_leader_learns_from_served_and_shadowed_answers() -> None:
    policy = Leader(half_life_events=None)
    state = policy.learn(policy.initial(ABC), outcome_of({"a@1": 1.0}, chosen=("a@1",), probability=0.95))
    state = policy.learn(state, outcome_of(dict.fromkeys(ABC, 0.25), chosen=ABC, probability=0.05))
    assert (state.counts, state.rewards, state.events) == ((2.0, 1.0, 1.0), (0.75, 0.75, 0.75), 2)


# -- epsilon_greedy, exp3ix, ucb -----


def test_epsilon_greedy_explores_with_exactly_epsilon() -> None:
    found = EpsilonGreedy(epsilon=0.3).distribution(sums((9.0, 9.0, 9.0), (1.0, 8.0, 1.0)), ABC)
    assert np.allclose(found.probabilities / PROBABILITY_ONE, [0.1, 0.8, 0.1], atol=1e-9)
    tied = EpsilonGreedy(epsilon=0.0).distribution(sums((9.0, 9.0, 9.0), (8.0, 8.0, 1.0)), ABC)
    assert (tied.masks.tolist(), tied.probabilities.tolist()) == ([1, 2], [PROBABILITY_ONE // 2] * 2)


def test_exp3ix_divides_by_the_logged_probability_and_the_implicit_exploration_of_its_memory() -> None:
    drawn = outcome_of({"a": 1.0}, chosen=("a",), probability=0.125)
    for half_life, events, held in ((None, 0, 1.0), (None, 99, 100.0), (1.0, 10**6, 3.0)):
        policy = Exp3IX(eta=0.5, gamma=0.0, half_life_events=half_life)
        state = policy.learn(LossSums(models=("a", "b"), losses=(0.0, 0.0), events=events), drawn)
        assert state.losses == (pytest.approx(1.0 / (0.125 + math.sqrt(math.log(3.0) / (4.0 * held)))), 0.0)


def test_the_bias_of_exp3ix_is_far_below_its_losses_once_it_has_learnt() -> None:
    """Of five models, as it comes: what is added to a probability is below a hundredth."""
    held = events_held(LossSums(models=ABC, losses=(0.0,) * 3, events=20_000), Exp3IX().half_life_events)
    assert 0.004 < implicit_exploration(5, held) < 0.01


def test_ucb_tries_each_model_first_and_then_the_highest_bound() -> None:
    policy = UCB(width=0.5, half_life_events=None)
    assert policy.distribution(sums((3.0, 0.0, 0.0), (3.0, 0.0, 0.0)), ABC).masks.tolist() == [2, 4]
    state = sums((100.0, 10.0, 90.0), (80.0, 7.0, 70.0))
    bounds = [s / n + math.sqrt(0.5 * math.log(200.0) / n) for n, s in zip(state.counts, state.rewards, strict=True)]
    best = int(np.argmax(bounds))
    assert policy.distribution(state, ABC).masks.tolist() == [1 << best]
    assert best == 1  # a lower mean, but less is known of it


@pytest.mark.parametrize("policy", [UCB(half_life_events=1.0), Thompson(half_life_events=1.0), Leader()], ids=repr)
def test_what_has_been_forgotten_is_as_if_it_had_never_been(policy: Any) -> None:
    """100,000 outcomes about one model: the others' sums shrink to nothing and can be asked again."""
    state = policy.learn(policy.initial(ABC), outcome_of(dict.fromkeys(ABC, 0.5), chosen=ABC))
    alone = outcome_of({"a@1": 0.5}, chosen=("a@1",), probability=0.5)
    for _ in range(100_000):
        state = policy.learn(state, alone)
    assert all(math.isfinite(value) for value in (*state.counts, *state.rewards))
    assert int(policy.distribution(state, ABC).probabilities.sum()) == PROBABILITY_ONE


# -- thompson -----


def exact(a: list[float], b: list[float]) -> list[float]:
    def chance(i: int) -> float:
        others = [j for j in range(len(a)) if j != i]
        low, high = beta.ppf([1e-12, 1 - 1e-12], a[i], b[i])
        return float(
            quad(
                lambda x: beta.pdf(x, a[i], b[i]) * math.prod(beta.cdf(x, a[j], b[j]) for j in others),
                low,
                high,
                limit=400,
                epsabs=1e-8,
            )[0]
        )

    return [chance(i) for i in range(len(a))]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        ([1.0, 50.0], [1.0, 10.0]),
        ([900.0, 880.0, 840.0, 5.0], [100.0, 120.0, 160.0, 1.0]),
        ([1.0, 1.0], [1e6, 1.0]),
        ([900_000.0, 900_500.0], [100_000.0, 99_800.0]),
        ([1e7, 2.0], [1.0, 1.0]),
    ],
)
def test_chances_agree_with_the_integral(a: list[float], b: list[float]) -> None:
    assert np.allclose(chances_of_being_largest(a, b), exact(a, b), atol=1e-3)


@given(
    st.lists(st.tuples(st.floats(1.0, 1e8), st.floats(1.0, 1e8)), min_size=1, max_size=8),
)
def test_chances_are_probabilities_whatever_the_counts(counts: list[tuple[float, float]]) -> None:
    found = chances_of_being_largest([a for a, _ in counts], [b for _, b in counts])
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert abs(found.sum() - 1.0) < 1e-12


def test_thompson_keeps_its_floor() -> None:
    found = Thompson(gamma=0.03).distribution(sums((1e5, 1e5, 1e5), (9e4, 1e4, 1e4)), ABC)
    assert np.allclose(found.probabilities / PROBABILITY_ONE, [0.98, 0.01, 0.01], atol=1e-9)
    assert Thompson().distribution(initial_rewards(ABC), ABC).probabilities.max() < PROBABILITY_ONE // 3 + 2
