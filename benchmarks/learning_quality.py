"""How well the policies learn: the failure stream, confidence on it, and Clipper's experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks import failure_stream, published_rules
from benchmarks.failure_stream import FAILS_AT, MENDED_AT, MODELS, Stream
from benchmarks.figures import Figure
from benchmarks.play import F64, Flags, Played, play
from streamserve.core.calibrating import METHODS, Method
from streamserve.core.combining import MemberRows, combine
from streamserve.core.confidence import Calibration, QuantileTracking, calibration_error, levels_of
from streamserve.core.selection.base import reads_probabilities
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.registry import POLICIES
from streamserve.testing.policy_checks import outcome_of

#: Without those whose choice depends on features: this stream has none.
LEARNING = [name for name in POLICIES if name not in ("static", "ab", "linucb", "squarecb")]
_AFTER = 500
_JUST_BROKEN = slice(FAILS_AT, FAILS_AT + 100)


# -- failure -----


def _played(name: str, stream: Stream, seed: int) -> Played:
    policy = POLICIES[name]()
    if name == "exp4":
        return play(policy, MODELS, stream.losses, seed, served=stream.probabilities.argmax(axis=2))
    if not reads_probabilities(policy):
        return play(policy, MODELS, stream.losses, seed)
    return play(policy, MODELS, stream.losses, seed, told=stream.probabilities, labels=stream.labels)


def _wrong(stream: Stream, played: Played, answered: Flags | None = None, *, rule: str = "mean_probability") -> F64:
    """`[queries]`: 1 where what was served is wrong; where nobody answered, too."""
    there = played.asked if answered is None else played.asked & answered
    some = there.any(axis=1)
    said = stream.probabilities[some]
    members = [
        MemberRows(present=there[some, k], labels=said[:, k].argmax(axis=1), probabilities=said[:, k], classes=None)
        for k in range(len(MODELS))
    ]
    combined = combine(rule, np.where(there, played.weights, 0.0)[some], members)
    wrong = np.ones(len(some))
    wrong[some] = np.asarray(combined.labels) != stream.labels[some]
    return wrong


def _points(wrong: F64, stream: Stream) -> float:
    return 100.0 * float(wrong.mean() - stream.oracle.mean())


def failure(seeds: int, policies: Sequence[str] = ()) -> Iterator[Figure]:
    """`policies`: these alone; empty: all."""
    answers = failure_stream.answers()
    for name, accuracy in zip((*MODELS, f"{MODELS[0]} broken"), answers.accuracies, strict=True):
        yield Figure(section="failure", what=f"accuracy of {name}", values=(accuracy,))
    streams = [failure_stream.stream(answers, seed) for seed in range(seeds)]
    oracle = [100.0 * float(stream.oracle.mean()) for stream in streams]
    yield Figure(section="failure", what="error of the switching oracle, %", values=tuple(oracle))
    limits = {"stack": -0.5, "hedge": 0.3, "leader": 0.86, "exp3": 1.0, "exp3ix": None, "exp4": 1.0}
    for name in policies or LEARNING:
        played = [_played(name, stream, seed) for seed, stream in enumerate(streams)]
        rule = "log_probability" if name == "stack" else "mean_probability"
        wrong = [_wrong(stream, one, rule=rule) for stream, one in zip(streams, played, strict=True)]
        yield from _judged(name, limits.get(name), streams, played, wrong)
    yield from _delayed(seeds, policies)
    if not policies or "hedge" in policies:
        yield from _missing(streams)


def _judged(
    name: str, limit: float | None, streams: list[Stream], played: list[Played], wrong: list[F64]
) -> Iterator[Figure]:
    points = tuple(_points(one, stream) for one, stream in zip(wrong, streams, strict=True))
    yield Figure(section="failure", what=f"{name}: error over the oracle, points", values=points, limit=limit)
    if name == "leader":
        asked = tuple(one.evaluations for one in played)
        yield Figure(section="failure", what=f"{name}: models asked a query", values=asked, limit=1.25)
    full = name in ("hedge", "stack")
    broken = tuple(100.0 * float(one[FAILS_AT : FAILS_AT + _AFTER].mean()) for one in wrong)
    reacts = {True: 10.0, False: 15.0 if name in ("exp3", "exp3ix", "exp4", "leader") else None}[full]
    yield Figure(section="failure", what=f"{name}: error of the first 500 broken, %", values=broken, limit=reacts)
    if name == "hedge":
        weight = tuple(float(one.weights[FAILS_AT + 50, 0]) for one in played)
        yield Figure(section="failure", what=f"{name}: failed model's weight after 50 labels", values=weight, limit=0.1)
    if full:
        mended = tuple(
            100.0
            * float(
                one[MENDED_AT : MENDED_AT + _AFTER].mean() - stream.losses[MENDED_AT : MENDED_AT + _AFTER, 1].mean()
            )
            for one, stream in zip(wrong, streams, strict=True)
        )
        yield Figure(
            section="failure", what=f"{name}: first 500 mended, points over the second", values=mended, limit=1.0
        )


def _delayed(seeds: int, policies: Sequence[str]) -> Iterator[Figure]:
    """Labels 100 queries late, and states published every 100 outcomes: pseudo-regret on five Bernoulli models."""
    runs = [failure_stream.bernoulli(seed) for seed in range(seeds)]
    for name, most in (("hedge", 1.6), ("exp3ix", 1.3)):
        if policies and name not in policies:
            continue

        def regret(delay: int, every: int, name: str = name) -> tuple[float, ...]:
            return tuple(
                _regret(play(POLICIES[name](), MODELS, losses, seed, delay=delay, published_every=every), expected)
                for seed, (losses, expected) in enumerate(runs)
            )

        at_once, late = regret(0, 1), regret(100, 1)
        yield Figure(section="failure", what=f"{name}: Bernoulli regret", values=at_once)
        yield Figure(section="failure", what=f"{name}: Bernoulli regret, published every 100", values=regret(0, 100))
        ratio = float(np.mean(late) / np.mean(at_once))
        yield Figure(section="failure", what=f"{name}: regret at 100 late / none late", values=(ratio,), limit=most)


def _regret(played: Played, expected: F64) -> float:
    """Wrong answers more than by the best model at each query, in expectation over the draws by weight."""
    shares = played.weights / played.weights.sum(axis=1, keepdims=True)
    return float(((shares * expected).sum(axis=1) - expected.min(axis=1)).sum())


def _missing(streams: list[Stream]) -> Iterator[Figure]:
    """Each answer is missing with probability 0.2: it neither counts nor teaches."""
    costs = []
    for seed, stream in enumerate(streams):
        there = np.random.default_rng(1_000 + seed).random(stream.losses.shape) >= 0.2
        policy = POLICIES["hedge"]()
        all_there = _wrong(stream, play(policy, MODELS, stream.losses, seed)).mean()
        some = _wrong(stream, play(policy, MODELS, stream.losses, seed, answers=there), there).mean()
        costs.append(100.0 * float(some - all_there))
    yield Figure(section="failure", what="hedge: cost of 20 % missing, points", values=tuple(costs), limit=0.8)


# -- confidence -----


def confidence(seeds: int) -> Iterator[Figure]:
    """Calibration and conformal sets of hedge's answers on the failure stream."""
    answers = failure_stream.answers()
    errors, broken, coverage, worst, sizes, worst_sizes = [], [], [], [], [], []
    calibration, tracking = Calibration(levels=len(MODELS) + 1), QuantileTracking(miss=0.05, step=0.02)
    for seed in range(seeds):
        stream = failure_stream.stream(answers, seed)
        played = play(POLICIES["hedge"](), MODELS, stream.losses, seed)
        mixed = (stream.probabilities * played.weights[:, :, None]).sum(axis=1)
        answer = mixed.argmax(axis=1)
        right = (answer == stream.labels).astype(float)
        levels = levels_of(stream.probabilities.argmax(axis=2) == answer[:, None])
        said = _said(calibration, levels.tolist(), right)
        errors.append(calibration_error(said, right))
        broken.append(calibration_error(said[FAILS_AT:MENDED_AT], right[FAILS_AT:MENDED_AT]))
        held, size = _sets(tracking, mixed, stream)
        windows = held.reshape(-1, _AFTER).mean(axis=1)
        coverage.append(100.0 * abs(float(held.mean()) - 0.95))
        worst.append(100.0 * (0.95 - float(windows.min())))
        sizes.append(float(size[:FAILS_AT].mean()))
        worst_sizes.append(float(size[FAILS_AT : FAILS_AT + _AFTER].mean()))
    found = (
        ("calibration error", errors, 0.02),
        ("calibration error while broken", broken, 0.02),
        ("coverage, points from 95", coverage, 0.5),
        ("worst 500, points below 95", worst, 2.5),
        ("classes in a set before", sizes, None),
        ("classes in a set, first 500 broken", worst_sizes, None),
    )
    for what, values, limit in found:
        yield Figure(section="confidence", what=what, values=tuple(values), limit=limit)
    yield from _in_predictions(seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How a route learns confidence and tells it."""

    of: Literal["agreement", "probability"] = "agreement"
    method: Method = "counts"
    published_every: int = 100
    sets: bool = False
    """Its sets are told of, too: they depend on `published_every` alone."""

    def __str__(self) -> str:
        return f"{self.method} of {self.of}, every {self.published_every}"


_WAYS = (
    _Way(sets=True),
    *(_Way(method=method) for method in METHODS if method != "counts"),
    _Way(of="probability"),
    _Way(of="probability", published_every=10, sets=True),
)


def _in_predictions(seeds: int) -> Iterator[Figure]:
    """The same as predictions tell it: learnt from outcomes, published every so many, said by what is in force."""
    answers = failure_stream.answers()
    streams = [failure_stream.stream(answers, seed) for seed in range(seeds)]
    for way in _WAYS:
        limit = 0.02 if way.method == "counts" else None
        told = [_told(way, stream) for stream in streams]
        errors = [calibration_error(said, right) for said, right, _ in told]
        broken = [calibration_error(said[FAILS_AT:MENDED_AT], right[FAILS_AT:MENDED_AT]) for said, right, _ in told]
        found = [
            ("calibration error", errors, limit),
            ("calibration error while broken", broken, limit),
            ("right above wrong, share", [ranked(said, right) for said, right, _ in told], None),
        ]
        if way.sets:
            held = [in_set for _, _, in_set in told]
            windows = [one.reshape(-1, _AFTER).mean(axis=1).min() for one in held]
            found += [
                ("coverage, points from 95", [100.0 * abs(one.mean() - 0.95) for one in held], 0.5),
                ("worst 500, points below 95", [100.0 * (0.95 - low) for low in windows], 2.5),
                ("coverage, first 100 broken, %", [100.0 * one[_JUST_BROKEN].mean() for one in held], None),
            ]
        for what, values, most in found:
            named = f"{way}: {what}"
            yield Figure(section="confidence", what=named, values=tuple(map(float, values)), limit=most)


def ranked(said: F64, right: F64) -> float:
    """Area under the ROC curve: how often a right answer was said to be surer than a wrong one; ties count half."""
    _, place, count = np.unique(said, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2.0)[place]
    n_right, n_wrong = right.sum(), len(right) - right.sum()
    return float((rank[right > 0.0].sum() - n_right * (n_right + 1) / 2.0) / (n_right * n_wrong))


def _told(way: _Way, stream: Stream) -> tuple[F64, F64, F64]:
    """Of each query: the probability that was said, whether the answer was right, whether its set held the truth."""
    rules = ConfidenceRules(of=way.of, method=way.method, coverage=0.95)
    policy = Confident(policy=POLICIES["hedge"](), rules=rules, combine="mean_probability")
    n, classes = len(stream.labels), tuple(map(str, range(stream.probabilities.shape[2])))
    said, right, held = np.empty(n), np.empty(n), np.empty(n)
    state = in_force = policy.initial(MODELS)
    weights = policy.distribution(in_force, MODELS).weights
    answers, all_losses = stream.probabilities.argmax(axis=2), stream.losses.tolist()
    for query, label in enumerate(stream.labels.tolist()):
        if query % way.published_every == 0:
            in_force, weights = state, policy.distribution(state, MODELS).weights
        mixed = weights @ stream.probabilities[query]
        answer = int(mixed.argmax())
        learnt_of = float(mixed.max() if way.of == "probability" else weights[answers[query] == answer].sum())
        said[query] = policy.confidence(in_force, np.array([learnt_of]))[0]
        right[query] = answer == label
        within = policy.classes(in_force, mixed[None, :])
        held[query] = within is not None and within[0, label]
        outcome = outcome_of(dict(zip(MODELS, all_losses[query], strict=True)), chosen=MODELS, offset=query)
        decision = replace(
            outcome.decision, label=[answer], agreement=learnt_of, combined=[mixed.tolist()], classes=classes
        )
        state = policy.learn(state, replace(outcome, decision=decision, label=label))
    return said, right, held


def _said(calibration: Calibration, levels: list[int], right: F64) -> F64:
    """What was said of each answer before its label came."""
    state, said = calibration.initial(), np.empty(len(levels))
    for query, level in enumerate(levels):
        said[query] = calibration.probabilities(state)[level]
        state = calibration.learn(state, level, 1.0 - right[query])
    return said


def _sets(tracking: QuantileTracking, mixed: F64, stream: Stream) -> tuple[F64, F64]:
    """Whether each query's set held the truth, and how many classes were in it."""
    state, n = tracking.initial(), len(mixed)
    held, size = np.empty(n), np.empty(n)
    for query, label in enumerate(stream.labels.tolist()):
        within = tracking.classes(state, mixed[query : query + 1])[0]
        held[query], size[query] = within[label], within.sum()
        state = tracking.learn(state, 1.0 - float(mixed[query, label]))
    return held, size


# -- clipper -----


def clipper(seeds: int, policies: Sequence[str] = (), trials: int = 50) -> Iterator[Figure]:
    """`policies`: these alone; empty: all."""
    del seeds  # this experiment has a number of trials of its own
    sound = published_rules.trials(10, 77, fails=False)
    yield Figure(section="clipper", what="error of the majority vote", values=(published_rules.majority_error(sound),))
    found = published_rules.trials(trials, 1)
    until = published_rules.MENDED_AT
    theirs = {}
    for rule in (published_rules.exp3, published_rules.exp4):
        errors, shares = rule(found, 2)
        theirs[rule.__name__] = float(errors[:, :until].mean())
        yield Figure(
            section="clipper", what=f"published {rule.__name__}: error at 10,000", values=(theirs[rule.__name__],)
        )
        yield Figure(
            section="clipper",
            what=f"published {rule.__name__}: share of the mended at 11,000",
            values=(float(shares[:, -1].mean()),),
        )
    models = tuple(f"m{place}@1" for place in range(len(published_rules.ERRORS)))
    for name, against in (("hedge", "exp4"), ("leader", "exp3"), ("exp3", "exp3"), ("exp3ix", "exp3")):
        if policies and name not in policies:
            continue
        errors, shares = [], []
        for trial, losses in enumerate(found.losses):
            played = play(POLICIES[name](), models, losses, trial)
            errors.append(float(_voted(found.said[trial], played)[:until].mean()))
            shares.append(float(played.weights[-200:, -1].mean()))
        yield Figure(section="clipper", what=f"{name}: error at 10,000", values=tuple(errors), limit=theirs[against])
        limit = 0.3 if name in ("hedge", "leader") else None
        yield Figure(
            section="clipper",
            what=f"{name}: share of the mended at 11,000",
            values=tuple(shares),
            limit=limit,
            at_least=True,
        )


def _voted(said: np.ndarray[tuple[int, int], np.dtype[np.int64]], played: Played) -> F64:
    """`[queries]`: 1 where the class with the most weight is not class 0."""
    votes = np.stack([np.where(said == one, played.weights, 0.0).sum(axis=1) for one in range(10)], axis=1)
    wrong: F64 = (votes.argmax(axis=1) != 0).astype(float)
    return wrong
