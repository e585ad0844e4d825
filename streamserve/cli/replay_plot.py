"""The report of `streamserve replay` as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamserve.cli.pictures import figure_of, save, short
from streamserve.client.candidate import CallTimes

#: Okabe and Ito's colours: told apart by people who see colours differently, too.
_THEIRS, _MINE, _BETTER, _WORSE = "#999999", "#0072B2", "#009E73", "#D55E00"


def write_plot(file: Path, report: dict[str, Any], times: CallTimes) -> None:
    """Draw agreement, accuracy beside each other's, who is right, and the times of the calls. Needs matplotlib."""
    figure, ((agreement, accuracy), (judged, calls)) = figure_of((11, 7), 2, 2)
    whole = "" if report["complete"] else " (NOT WHOLE)"
    figure.suptitle(f"{report['model']} on {report['requests']:,} requests of route {report['route']}{whole}")
    names = [short(one["name"]) for one in report["versus"]]
    places = range(len(names))
    _draw_agreement(agreement, report["versus"], places)
    _draw_accuracy(accuracy, report["versus"], places)
    _draw_judged(judged, report["versus"], places)
    for axes in (agreement, accuracy, judged):
        axes.set_yticks(list(places), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
    _draw_calls(calls, report["calls"], times)
    save(figure, file)


def _draw_agreement(axes: Any, versus: list[dict[str, Any]], places: range) -> None:
    axes.set_title("agreement with each, % of requests", fontsize=10)
    axes.set_xlim(0, 115)
    axes.barh(places, [100 * (one["agreement"] or 0.0) for one in versus], color=_MINE, height=0.6)
    for place, one in zip(places, versus, strict=True):
        axes.text(100 * (one["agreement"] or 0.0) + 1, place, f"{100 * (one['agreement'] or 0.0):.1f}", va="center")


def _draw_accuracy(axes: Any, versus: list[dict[str, Any]], places: range) -> None:
    axes.set_title("accuracy on the same labelled requests, %", fontsize=10)
    axes.set_xlim(0, 115)
    for offset, key, colour, words in ((-0.2, "accuracy", _THEIRS, "its"), (0.2, "candidate_accuracy", _MINE, "ours")):
        known = [(place, one[key]) for place, one in zip(places, versus, strict=True) if one[key] is not None]
        label = "the other's" if words == "its" else "the candidate's"
        axes.barh(
            [place + offset for place, _ in known],
            [100 * share for _, share in known],
            color=colour,
            height=0.38,
            label=label,
        )
        for place, share in known:
            axes.text(100 * share + 1, place + offset, f"{100 * share:.1f}", va="center", fontsize=8)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.3), ncols=2, frameon=False, fontsize=8)


def _draw_judged(axes: Any, versus: list[dict[str, Any]], places: range) -> None:
    axes.set_title("labelled requests on which the candidate is worse, better", fontsize=10)
    most = max((max(one["better"], one["worse"]) for one in versus), default=0) or 1
    axes.set_xlim(-1.25 * most, 1.25 * most)
    axes.barh(places, [one["better"] for one in versus], color=_BETTER, height=0.6)
    axes.barh(places, [-one["worse"] for one in versus], color=_WORSE, height=0.6)
    for place, one in zip(places, versus, strict=True):
        axes.text(one["better"] + 0.02 * most, place, f"{one['better']:,}", va="center", fontsize=8)
        axes.text(-one["worse"] - 0.02 * most, place, f"{one['worse']:,}", va="center", ha="right", fontsize=8)
    axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set_xticks([])


def _draw_calls(axes: Any, calls: dict[str, Any], times: CallTimes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415  (may be missing, and slow)

    axes.set_title(f"{calls['batches']:,} model calls by their time, ms", fontsize=10)
    bins = list(times.batch.bins())
    if not bins:
        axes.text(0.5, 0.5, "no call went well", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    middles, counts = zip(*bins, strict=True)
    least, most = 0.8 * middles[0], 1.25 * middles[-1]
    edges = [least * (most / least) ** (i / 40) for i in range(41)]
    axes.hist(middles, bins=edges, weights=counts, color=_THEIRS)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _place: f"{ms:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(
        f"solid: p50 {calls['batch_p50_ms']:.3g} ms; dashed: p99 {calls['batch_p99_ms']:.3g} ms", fontsize=9
    )
    for key, style in (("batch_p50_ms", "-"), ("batch_p99_ms", "--")):
        axes.axvline(calls[key], color=_WORSE, linestyle=style)
