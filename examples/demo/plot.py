"""The run as one picture: weights, errors and latency over time."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.demo.record import Recording
from examples.demo.report import name_of, weights_over_time
from examples.demo.score import Score
from streamserve.core.messages import F64

_WINDOW_S = 3.0
_POINTS = 180
#: With fewer answers a share would say little.
_LEAST_ANSWERS = 20
#: Okabe and Ito's colours: told apart by people who see colours differently, too.
_COLOURS = ("#8C6D31", "#009E73", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9")
_OUTCOME_COLOURS = {
    "ok": "#999999",
    "partial": "#0072B2",
    "default": "#D55E00",
    "expired": "#000000",
    "error": "#D00000",
}


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def write_png(file: Path, score: Score, run: Recording, *, trouble: str) -> None:
    """Draw the run. Needs matplotlib; `trouble`: what happens in the middle third, in words."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (may be missing)
    from matplotlib.figure import Figure  # noqa: PLC0415  (as above)

    figure = Figure(figsize=(11, 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    weights, errors, latency = figure.subplots(3, 1, sharex=True)
    verdict = "every check passed" if score.passed else "a check was missed"
    what = f"{score.requests:,} MNIST images through Kafka, {len(run.models)} models, {score.rate:.0f} requests/s"
    figure.suptitle(f"{what}: {verdict}", fontsize=13)
    _draw_weights(weights, run)
    _draw_errors(errors, run)
    _draw_latency(latency, score, run)
    for axes in (weights, errors, latency):
        axes.axvspan(run.seconds / 3, 2 * run.seconds / 3, color="#D55E00", alpha=0.08, linewidth=0)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, run.seconds)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, markerscale=3)
    top = {"transform": weights.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 9}
    weights.text(run.seconds / 2, 1.02, trouble, color="#A34700", **top)
    latency.set_xlabel("seconds since the first request")
    figure.savefig(file, dpi=110)


def rolling_errors(run: Recording) -> tuple[F64, dict[str, F64]]:
    """Times `[points]`, and by model id (the system: the empty string) the share of wrong answers `[points]`.

    Each point looks back over the last few seconds' requests; NaN where too few of them have an answer.
    """
    window_s = min(_WINDOW_S, run.seconds / 10)
    times_s = np.linspace(window_s, run.seconds, _POINTS)
    answered: dict[str, list[tuple[float, float]]] = {"": [], **{model: [] for model in run.models}}
    for ref, number in run.refs.items():
        request = run.requests[number]
        records = run.terminals.get(ref)
        answered[""].append((request.sent_s, float(not records or records[0].label != request.truth)))
        for model, loss in run.losses.get(ref, {}).items():
            answered[model].append((request.sent_s, loss))
    return times_s, {model: _rolling(found, times_s, window_s) for model, found in answered.items()}


def _rolling(found: Sequence[tuple[float, float]], times_s: F64, window_s: float) -> F64:
    at_s, wrong = np.array(sorted(found) or [(0.0, 0.0)]).T
    sums = np.concatenate([[0.0], wrong.cumsum()])
    first, last = np.searchsorted(at_s, times_s - window_s), np.searchsorted(at_s, times_s)
    counts = (last - first).astype(float)
    shares: F64 = np.divide(
        sums[last] - sums[first], counts, out=np.full(len(times_s), np.nan), where=counts >= _LEAST_ANSWERS
    )
    return shares


def _draw_weights(axes: Any, run: Recording) -> None:
    states = weights_over_time(run)
    times_s = [*(s for s, _ in states), run.seconds]
    for model, colour in _coloured(run.models).items():
        shares = [shares[model] for _, shares in states]
        axes.step(times_s, [*shares, shares[-1]], where="post", color=colour, linewidth=1.6, label=name_of(model))
    axes.set_ylim(0, min(1.0, 1.1 * max(share for _, shares in states for share in shares.values())))
    axes.set_ylabel("weight")


def _draw_errors(axes: Any, run: Recording) -> None:
    times_s, errors = rolling_errors(run)
    for model, colour in _coloured(run.models).items():
        axes.plot(times_s, 100 * errors[model], color=colour, linewidth=1.1)
    axes.plot(times_s, 100 * errors[""], color="black", linewidth=2.6, label="the system")
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 2, 4, 6, 8, 10, 20, 50, 100], ["0", "2", "4", "6", "8", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_ylabel(f"wrong answers, % (last {min(_WINDOW_S, run.seconds / 10):.0f} s)")


def _draw_latency(axes: Any, score: Score, run: Recording) -> None:
    points: dict[str, list[tuple[float, float]]] = {outcome: [] for outcome in _OUTCOME_COLOURS}
    for ref, number in run.refs.items():
        records = run.terminals.get(ref)
        if records and ref in run.appended_ms:
            took_ms = records[0].append_ms - run.appended_ms[ref]
            points[records[0].outcome].append((run.requests[number].sent_s, took_ms))
    for outcome, found in points.items():
        label = f"{outcome} ({len(found):,})"
        at_s, took_ms = np.array(found or [(np.nan, np.nan)]).T
        axes.plot(
            at_s, took_ms, ".", markersize=2.5, alpha=0.5, color=_OUTCOME_COLOURS[outcome], label=label, rasterized=True
        )
    axes.axhline(score.deadline_ms, color="#D00000", linewidth=1, linestyle="--", label="deadline")
    largest = max((took_ms for found in points.values() for _, took_ms in found), default=0.0)
    axes.set_ylim(0, max(1.25 * score.deadline_ms, 1.05 * largest))
    axes.set_ylabel("append to append, ms")


def _coloured(models: Sequence[str]) -> Mapping[str, str]:
    return {model: _COLOURS[index % len(_COLOURS)] for index, model in enumerate(models)}
