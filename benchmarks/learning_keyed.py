"""How well keyed contexts decide: keys of eight segments, each with another best model, and 100 feedbacks a key.

Five models as dialects are: each is right most often in the segments that are its own. All answer; `hedge` weighs them.
States are kept and published as `streamserve bandit evaluate` plays them. Errors are expected ones, over the draw of a
model by its weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.failure_stream import MODELS
from benchmarks.figures import Figure
from benchmarks.play import F64
from streamserve.core.contexts import ContextRule
from streamserve.core.evaluation.states import PlayedStates
from streamserve.core.records import OutcomeRecord
from streamserve.core.routes import Route
from streamserve.core.selection.hedge import Hedge
from streamserve.testing.policy_checks import outcome_of

SEGMENTS, KEYS, EACH = 8, 120, 100
LEARNT_FROM = 80
_OWN, _OTHERS = 0.12, (0.2, 0.3)
_KEYS = ContextRule(source="key", keyed=True)
_NONE = "no contexts"
_SETUPS: dict[str, tuple[ContextRule | None, Hedge]] = {
    _NONE: (None, Hedge()),
    "keys": (_KEYS, Hedge()),
    "segments and keys": (_KEYS, Hedge()),
    "keys, eta 0.6": (_KEYS, Hedge(eta=0.6)),
    "segments and keys, pooling 100": (replace(_KEYS, pooling=100.0), Hedge()),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Keyed:
    """One run: requests of all keys, mixed."""

    keys: NDArray[np.int64]
    """`[requests]`"""
    turns: NDArray[np.int64]
    """`[requests]`: how many requests of its key came before."""
    segments: NDArray[np.int64]
    """`[requests]`: of the key."""
    expected: F64
    """`[requests, models]`: error of each model."""
    losses: F64
    """`[requests, models]`: drawn from it."""


def keyed(seeds: int) -> Iterator[Figure]:
    """Of a key without feedback, and of one with 80."""
    runs = [stream(seed) for seed in range(seeds)]
    oracle = [float(run.expected.min(axis=1).mean()) for run in runs]
    yield _figure("error of the best model of each segment, %", oracle)
    fixed = [float(run.expected.mean(axis=0).min()) for run in runs]
    yield _figure("error of the best model of all, %", fixed)
    errors = {name: [errors_of(run, name) for run in runs] for name in _SETUPS}
    for name, found in errors.items():
        yield _figure(f"{name}: error, %", [float(one.mean()) for one in found])
        if name == _NONE:
            continue
        if _SETUPS[name][1] == _SETUPS[_NONE][1]:
            unseen = [
                float((one - alone)[run.turns == 0].mean())
                for run, one, alone in zip(runs, found, errors[_NONE], strict=True)
            ]
            yield _figure(f"{name}: first request of a key, points over no contexts", unseen, 0.0)
        learnt = [
            float((one - run.expected.min(axis=1))[run.turns >= LEARNT_FROM].mean())
            for run, one in zip(runs, found, strict=True)
        ]
        yield _figure(f"{name}: after 80 feedbacks, points over the segment's best", learnt, 1.5)


def _figure(what: str, values: list[float], limit: float | None = None) -> Figure:
    return Figure(section="keyed", what=what, values=tuple(100.0 * value for value in values), limit=limit)


def stream(seed: int) -> Keyed:
    """The run of this seed."""
    rng = np.random.default_rng(seed)
    by_segment = rng.uniform(*_OTHERS, (SEGMENTS, len(MODELS)))
    by_segment[np.arange(SEGMENTS), np.arange(SEGMENTS) % len(MODELS)] = _OWN
    keys = rng.permutation(np.repeat(np.arange(KEYS), EACH))
    order = np.argsort(keys, kind="stable")
    turns = np.empty_like(keys)
    turns[order] = np.tile(np.arange(EACH), KEYS)
    segments = keys % SEGMENTS
    expected = by_segment[segments]
    losses = (rng.random(expected.shape) < expected).astype(float)
    return Keyed(keys=keys, turns=turns, segments=segments, expected=expected, losses=losses)


def errors_of(run: Keyed, name: str) -> F64:
    """`[requests]`: expected error of what decided each."""
    rule, policy = _SETUPS[name]
    route = Route(name="r", models=MODELS, policy=policy, combine="vote", deadline_ms=100, learns=True, contexts=rule)
    states, errors = PlayedStates(route), np.empty(len(run.keys))
    prefix = "s{}" if name.startswith("segments") else ""
    rows = zip(run.keys.tolist(), run.segments.tolist(), run.losses.tolist(), strict=True)
    for place, (key, segment, losses) in enumerate(rows):
        outcome = _outcome(place, f"{prefix.format(segment)}//{key}", losses)
        errors[place] = states.distribution(outcome).weights @ run.expected[place]
        states.learn(outcome)
    return errors


def _outcome(place: int, context: str, losses: list[float]) -> OutcomeRecord:
    outcome = outcome_of(dict(zip(MODELS, losses, strict=True)), chosen=MODELS, offset=place)
    return replace(outcome, decision=replace(outcome.decision, context=context))
