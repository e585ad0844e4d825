"""How well and how fast the policies learn: `python -m benchmarks.learning [--only SECTION] [--seeds N]`, no broker.

Sections: `failure` (MNIST, the best of five models fails for a while), `clipper` (the published rules on a stream like
theirs), `speed`, `draws`. Prints each number to reach as held or missed; exit code 1 where one is missed. Rows go to
results/bench/learning.csv.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import chi2

from benchmarks import failure_stream, machine, published_rules
from benchmarks.failure_stream import FAILS_AT, MENDED_AT, MODELS, Stream
from benchmarks.play import F64, Flags, Played, play
from benchmarks.results import append_csv
from streamserve.core.combining import MemberRows, combine
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.selection.base import Distribution, Policy, pick
from streamserve.core.selection.registry import POLICIES
from streamserve.testing.policy_checks import outcome_of

REPOSITORY = Path(__file__).resolve().parent.parent
CSV = REPOSITORY / "results" / "bench" / "learning.csv"
COLUMNS = ("section", "what", "seeds", "value", "deviation", "limit", "held")
_LEARNING = [name for name in POLICIES if name not in ("static", "ab")]
_AFTER = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number; `limit` None: told, not judged."""

    section: str
    what: str
    values: tuple[float, ...]
    limit: float | None = None
    at_least: bool = False

    @property
    def value(self) -> float:
        return float(np.mean(self.values))

    @property
    def held(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


# -- failure -----


def _wrong(stream: Stream, played: Played, answered: Flags | None = None) -> F64:
    """`[queries]`: 1 where what was served is wrong; where nobody answered, too."""
    there = played.asked if answered is None else played.asked & answered
    some = there.any(axis=1)
    said = stream.probabilities[some]
    members = [
        MemberRows(present=there[some, k], labels=said[:, k].argmax(axis=1), probabilities=said[:, k], classes=None)
        for k in range(len(MODELS))
    ]
    combined = combine("mean_probability", np.where(there, played.weights, 0.0)[some], members)
    wrong = np.ones(len(some))
    wrong[some] = np.asarray(combined.labels) != stream.labels[some]
    return wrong


def _points(wrong: F64, stream: Stream) -> float:
    return 100.0 * float(wrong.mean() - stream.oracle.mean())


def failure(seeds: int) -> Iterator[Figure]:
    answers = failure_stream.answers()
    for name, accuracy in zip((*MODELS, f"{MODELS[0]} broken"), answers.accuracies, strict=True):
        yield Figure(section="failure", what=f"accuracy of {name}", values=(accuracy,))
    streams = [failure_stream.stream(answers, seed) for seed in range(seeds)]
    oracle = [100.0 * float(stream.oracle.mean()) for stream in streams]
    yield Figure(section="failure", what="error of the switching oracle, %", values=tuple(oracle))
    limits = {"hedge": 0.3, "leader": 0.86, "exp3": 1.0, "exp3ix": None}
    for name in _LEARNING:
        played = [play(POLICIES[name](), MODELS, stream.losses, seed) for seed, stream in enumerate(streams)]
        wrong = [_wrong(stream, one) for stream, one in zip(streams, played, strict=True)]
        yield from _judged(name, limits.get(name), streams, played, wrong)
    yield from _delayed(seeds)
    yield from _missing(streams)


def _judged(
    name: str, limit: float | None, streams: list[Stream], played: list[Played], wrong: list[F64]
) -> Iterator[Figure]:
    points = tuple(_points(one, stream) for one, stream in zip(wrong, streams, strict=True))
    yield Figure(section="failure", what=f"{name}: error over the oracle, points", values=points, limit=limit)
    if name == "leader":
        asked = tuple(one.evaluations for one in played)
        yield Figure(section="failure", what=f"{name}: models asked a query", values=asked, limit=1.25)
    full = name == "hedge"
    broken = tuple(100.0 * float(one[FAILS_AT : FAILS_AT + _AFTER].mean()) for one in wrong)
    reacts = {True: 10.0, False: 15.0 if name in ("exp3", "exp3ix", "leader") else None}[full]
    yield Figure(section="failure", what=f"{name}: error of the first 500 broken, %", values=broken, limit=reacts)
    if full:
        weight = tuple(float(one.weights[FAILS_AT + 50, 0]) for one in played)
        yield Figure(section="failure", what=f"{name}: failed model's weight after 50 labels", values=weight, limit=0.1)
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


def _delayed(seeds: int) -> Iterator[Figure]:
    """Labels 100 queries late, and states published every 100 outcomes: pseudo-regret on five Bernoulli models."""
    runs = [failure_stream.bernoulli(seed) for seed in range(seeds)]
    for name, most in (("hedge", 1.6), ("exp3ix", 1.3)):

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


# -- clipper -----


def clipper(seeds: int, trials: int = 50) -> Iterator[Figure]:
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


# -- speed and draws -----


def speed(seeds: int) -> Iterator[Figure]:
    del seeds
    offsets, partition = np.arange(500), np.zeros(500, np.int64)
    for name in POLICIES:
        policy: Policy = POLICIES[name]()
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
        made = _times(lambda policy=policy, state=state: policy.distribution(state, MODELS), 300)
        yield Figure(section="speed", what=f"{name}: a new state, µs", values=(float(np.median(made)) * 1e6,))
        if name not in _LEARNING:
            continue
        outcome = outcome_of({MODELS[0]: 1.0}, chosen=MODELS[:1], probability=0.5)
        if name == "hedge":
            outcome = outcome_of(dict.fromkeys(MODELS, 1.0), chosen=MODELS)
        started = time.perf_counter()
        for _ in range(20_000):
            state = policy.learn(state, outcome)
        rate = 20_000 / (time.perf_counter() - started)
        yield Figure(
            section="speed", what=f"{name}: outcomes learnt, /s", values=(rate,), limit=50_000.0, at_least=True
        )


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
        state = policy.learn(state, outcome_of(losses, chosen=MODELS, offset=turn))
    return state, policy.distribution(state, MODELS)


def draws(seeds: int, n: int = 100_000) -> Iterator[Figure]:
    for name in POLICIES:
        policy: Policy = POLICIES[name]()
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


# -- the command -----

SECTIONS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "failure": failure,
    "clipper": clipper,
    "speed": speed,
    "draws": draws,
}


def _table(figures: list[Figure]) -> Table:
    table = Table(title="Learning", title_justify="left")
    for number, column in enumerate(("what", "mean", "sd", "to reach", "")):
        table.add_column(column, justify="left" if number in (0, 4) else "right", no_wrap=True)
    for one in figures:
        wanted = "" if one.limit is None else f"{'>=' if one.at_least else '<='} {one.limit:.4g}"
        verdict = {None: "", True: "held", False: "MISSED"}[one.held]
        deviation = f"{np.std(one.values):.3g}" if len(one.values) > 1 else ""
        table.add_row(f"{one.section}: {one.what}", f"{one.value:.4g}", deviation, wanted, verdict)
    return table


def main() -> int:
    """The command line; 1 where a number is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(SECTIONS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    names = [options.only] if options.only else list(SECTIONS)
    figures = [figure for name in names for figure in SECTIONS[name](options.seeds)]
    Console(width=120).print(_table(figures))
    described = machine.describe(REPOSITORY, machine.Cores(ours=None, peer=None))
    rows = [
        {
            "section": one.section,
            "what": one.what,
            "seeds": len(one.values),
            "value": one.value,
            "deviation": float(np.std(one.values)),
            "limit": one.limit,
            "held": one.held,
        }
        for one in figures
    ]
    append_csv(CSV, described, rows, COLUMNS)
    return 1 if any(one.held is False for one in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
