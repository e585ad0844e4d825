"""How fast the policies decide and learn, and whether what is drawn is what is logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from benchmarks.failure_stream import MODELS
from benchmarks.figures import Figure
from benchmarks.play import F64
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution, Policy, pick, reads_probabilities
from streamserve.core.selection.pooling import ReadsFeatures
from streamserve.core.selection.registry import POLICIES
from streamserve.core.selection.watched import Watched, tally_of
from streamserve.testing.policy_checks import outcome_of

_LEARNING = [name for name in POLICIES if name not in ("static", "ab")]
_PUBLISHED_EVERY = 100
#: Eight numbers come with each request.
_FEATURES = "0.1,0.9,0.4,0.2,0.7,0.3,0.8,0.5"
_FEATURED: dict[str, Policy] = {name: POLICIES[name](features=8) for name in ("linucb", "squarecb")}


def speed(seeds: int) -> Iterator[Figure]:
    del seeds
    offsets, partition = np.arange(500), np.zeros(500, np.int64)
    for name in POLICIES:
        policy = _FEATURED.get(name) or POLICIES[name]()
        state, found = _learnt(policy)
        one = _times(lambda found=found: pick(found, partition[:1], offsets[:1], 7), 2_000)
        yield Figure(
            section="speed",
            what=f"{name}: decide one, p99 µs",
            values=(float(np.quantile(one, 0.99)) * 1e6,),
            limit=50.0,
        )
        many = _times(lambda found=found: pick(found, partition, offsets, 7), 500)
        yield Figure(
            section="speed",
            what=f"{name}: decide 500, µs each",
            values=(float(np.median(many)) * 1e6 / 500,),
            limit=1.0,
        )
        made = _times(lambda policy=policy, state=state: _distribution(policy, state), 300)
        what = "a new request" if name in _FEATURED else "a new state"  # features decide each request anew
        yield Figure(section="speed", what=f"{name}: {what}, µs", values=(float(np.median(made)) * 1e6,))
        if name not in _LEARNING:
            continue
        outcome = outcome_of({MODELS[0]: 1.0}, chosen=MODELS[:1], probability=0.5)
        if name in ("hedge", "stack", "exp4"):
            outcome = outcome_of(dict.fromkeys(MODELS, 1.0), chosen=MODELS)
        if name == "stack":
            outcome = _with_ten_classes(outcome)
        if name == "exp4":
            outcome = _with_a_reward(outcome)
        if name in _FEATURED:
            outcome = replace(outcome, decision=replace(outcome.decision, context=_FEATURES))
        alone, watched = _rates(policy, state, outcome)
        yield Figure(section="speed", what=f"{name}: learnt unwatched, /s a core", values=(alone,))
        yield Figure(
            section="speed",
            what=f"{name}: outcomes learnt, /s a core",
            values=(watched,),
            limit=50_000.0,
            at_least=True,
        )


def _rates(policy: Policy, state: object, outcome: OutcomeRecord) -> tuple[float, float]:
    """Outcomes a second of processor time that the policy learns by itself, and as every route has it: watched,
    and the figures read every 100.

    Of one core: what others take of it is not ours. In turn, so that both find the machine alike.
    """
    around = Watched(policy=policy, combine="log_probability" if reads_probabilities(policy) else "mean_probability")
    watched = around.load(policy.dump(state), MODELS)
    taken = [0.0, 0.0]
    for _ in range(20_000 // _PUBLISHED_EVERY):
        started = time.thread_time()
        for _ in range(_PUBLISHED_EVERY):
            state = policy.learn(state, outcome)
        between = time.thread_time()
        for _ in range(_PUBLISHED_EVERY):
            watched = around.learn(watched, outcome)
        tally_of(watched)  # as when it is published
        taken[0] += between - started
        taken[1] += time.thread_time() - between
    return 20_000 / taken[0], 20_000 / taken[1]


def _with_a_reward(outcome: OutcomeRecord) -> OutcomeRecord:
    """The same, but only a reward came, for an answer that three of the models gave."""
    losses = {model: outcome.losses[model] for model in MODELS[:3]}
    members = {model: [int(model not in losses)] for model in MODELS}
    decision = replace(outcome.decision, members=members, served_probability=0.7)
    return replace(outcome, decision=decision, losses=losses, has_label=False, label=None)


def _distribution(policy: Policy, state: object) -> Distribution:
    if isinstance(policy, ReadsFeatures):
        return policy.distribution_at(state, MODELS, tuple(map(float, _FEATURES.split(","))))
    return policy.distribution(state, MODELS)


def _with_ten_classes(outcome: OutcomeRecord) -> OutcomeRecord:
    """The same, each model having given ten classes something, as on real images."""
    rows = [[0.55, *[0.05] * 9]]
    told = dict.fromkeys(outcome.decision.chosen, rows)
    decision = replace(outcome.decision, probabilities=told, classes=tuple(map(str, range(10))))
    return replace(outcome, decision=decision)


def _times(call: Callable[[], object], n: int) -> F64:
    """Seconds of each of n calls, after some that do not count. What others do to the machine is in it."""
    for _ in range(50):
        call()
    taken = np.empty(n)
    for turn in range(n):
        started = time.perf_counter()
        call()
        taken[turn] = time.perf_counter() - started
    return taken


def _learnt(policy: Policy) -> tuple[object, Distribution]:
    """A state after 300 outcomes of models of different quality."""
    state = policy.initial(MODELS)
    for turn in range(300):
        losses = {model: float(turn * (place + 1) % 7 < place) for place, model in enumerate(MODELS)}
        outcome = outcome_of(losses, chosen=MODELS, offset=turn)
        if isinstance(policy, ReadsFeatures):
            outcome = replace(outcome, decision=replace(outcome.decision, context=_FEATURES))
        state = policy.learn(state, outcome)
    return state, _distribution(policy, state)


def draws(seeds: int, n: int = 100_000) -> Iterator[Figure]:
    for name in POLICIES:
        policy = _FEATURED.get(name) or POLICIES[name]()
        _, found = _learnt(policy)
        if len(found.masks) == 1:
            continue
        chances = []
        for seed in range(seeds):
            masks, _ = pick(found, np.full(n, seed), np.arange(n), 11)
            expected = found.probabilities / PROBABILITY_ONE * n
            counts = np.array([(masks == mask).sum() for mask in found.masks])
            statistic = float(((counts - expected) ** 2 / expected).sum())
            chances.append(float(chi2.sf(statistic, len(expected) - 1)))
        yield Figure(
            section="draws",
            what=f"{name}: least p of χ², drawn and logged",
            values=(min(chances),),
            limit=0.001,
            at_least=True,
        )
