"""A second opinion on real images: how right it is, how often it is asked, what it saves and what it loses.

A quick model answers first; where its calibrated probability is below the threshold, the costly one is asked, as a
route with `below_threshold = "second_opinion"` does: confidence is learnt from the outcomes, and in force once
published, every 100 of them. Cost is each model's own time for a row, measured in processor time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks import failure_stream
from benchmarks.failure_stream import MODELS
from benchmarks.figures import Figure
from streamserve.core.opinions import evidence_of
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.second import WithSecond
from streamserve.core.selection.static import Static
from streamserve.testing.policy_checks import outcome_of

_QUICK, _COSTLY = 2, 1
_THRESHOLDS = (0.9, 0.95, 0.98)
_PUBLISHED_EVERY = 100
#: The first labels teach what a probability is worth; they are not judged.
_LEARNING = 500

F64 = NDArray[np.float64]


def cascade(seeds: int) -> Iterator[Figure]:
    """The quick model (linear) alone, the costly one (kernel) alone, and one after the other by threshold."""
    found = failure_stream.answers()
    streams = [_stream(found, seed) for seed in range(seeds)]
    alone = {name: [float(said[name].mean()) for _, said in streams] for name in ("quick", "costly")}
    for name, bit in (("quick", _QUICK), ("costly", _COSTLY)):
        what = f"accuracy of {MODELS[bit]} alone"
        yield Figure(section="cascade", what=what, values=tuple(100.0 * one for one in alone[name]))
    quick_us, costly_us = _costs_us()
    yield Figure(section="cascade", what=f"{MODELS[_QUICK]}: µs a row", values=(quick_us,))
    yield Figure(section="cascade", what=f"{MODELS[_COSTLY]}: µs a row", values=(costly_us,))
    for threshold in _THRESHOLDS:
        yield from _at(threshold, streams, alone["costly"], costly_us / quick_us)


def _at(
    threshold: float, streams: list[tuple[F64, dict[str, F64]]], costly: list[float], dearer: float
) -> Iterator[Figure]:
    accuracy, asked, kept, speed_up, loss = [], [], [], [], []
    for (evidence, said), best in zip(streams, costly, strict=True):
        wanted = _asked(threshold, evidence, said)[_LEARNING:]
        quick, second = said["quick"][_LEARNING:], said["costly"][_LEARNING:]
        accuracy.append(100.0 * float(np.where(wanted, second, quick).mean()))
        asked.append(100.0 * float(wanted.mean()))
        kept.append(100.0 * float(quick[~wanted].mean()))
        speed_up.append(dearer / (1.0 + float(wanted.mean()) * dearer))
        loss.append(100.0 * best - accuracy[-1])
    # The bound: an answer that is given without a second opinion is right with the probability that was asked for.
    rows = (
        ("accuracy, %", accuracy, None),
        ("asked for a second opinion, %", asked, None),
        ("right where none was asked, %", kept, 100.0 * threshold - 1.0),
        ("speed-up over the costly model", speed_up, None),
        ("points lost to the costly model", loss, None),
    )
    for what, values, limit in rows:
        yield Figure(
            section="cascade", what=f"threshold {threshold:g}: {what}", values=tuple(values), limit=limit, at_least=True
        )


def _stream(found: failure_stream.Answers, seed: int) -> tuple[F64, dict[str, F64]]:
    """How sure the quick model is of each query, and whether each of the two is right."""
    drawn = np.random.default_rng(seed).integers(0, len(found.labels), failure_stream.QUERIES)
    evidence = evidence_of(found.sound[_QUICK, drawn], np.arange(len(drawn) + 1))
    right = {
        name: (found.sound[bit, drawn].argmax(axis=1) == found.labels[drawn]).astype(float)
        for name, bit in (("quick", _QUICK), ("costly", _COSTLY))
    }
    return evidence, right


def _asked(threshold: float, evidence: F64, said: dict[str, F64]) -> NDArray[np.bool_]:
    """`[queries]`: for which a second opinion is asked."""
    models = (MODELS[_QUICK], MODELS[_COSTLY])
    within = WithSecond(policy=Static(), second=models[1])
    policy = Confident(policy=within, rules=ConfidenceRules(of="probability"), combine="vote")
    state = in_force = policy.initial(models)
    asked = np.zeros(len(evidence), np.bool_)
    for query, sure in enumerate(evidence.tolist()):
        if query % _PUBLISHED_EVERY == 0:
            in_force = state
        asked[query] = bool(policy.confidence(in_force, evidence[query : query + 1])[0] < threshold)
        wrong = [1.0 - float(said[name][query]) for name in ("quick", "costly")]
        outcome = outcome_of(dict(zip(models, wrong, strict=True)), chosen=models[:1])
        members = {model: [int(loss)] for model, loss in zip(models, wrong, strict=True)}
        decision = replace(outcome.decision, agreement=sure, members=members, label=members[models[0]])
        if asked[query]:
            decision = replace(decision, second=models[1], label=members[models[1]])
        state = policy.learn(state, replace(outcome, decision=decision))
    return asked


def _costs_us() -> tuple[float, float]:
    """Processor time of a row, in calls of 64 on one thread: the quick model and the costly one, the best of ten."""
    quick, costly, pixels = failure_stream.fitted((_QUICK, _COSTLY))
    rows = pixels[:64]
    times = []
    for model in (quick, costly):
        taken = []
        with threadpool_limits(1):
            for _ in range(10):
                started = time.process_time()
                model.predict_proba(rows)
                taken.append(time.process_time() - started)
        times.append(min(taken) * 1e6 / len(rows))
    return times[0], times[1]
