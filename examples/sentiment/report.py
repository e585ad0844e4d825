"""The report for a person, the same as JSON, and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text as Words

from examples.sentiment.record import CONTEXTS, Recording, Text
from examples.sentiment.score import BEST, ORACLE, SHOWN, Score, judged_of, over_time

_SLICES = 5
_WINDOW = 400
#: Okabe and Ito's colours: told apart by people who see colours differently, too.
_COLOURS = ("#009E73", "#0072B2", "#999999", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31")


def show(console: Console, score: Score, run: Recording) -> None:
    """Print everything that a reader wants to know of a run."""
    console.print()
    console.print(
        f"{score.texts:,} texts in {score.seconds:.0f} s, each asked of three routes; {score.judged:,} judged, "
        f"{score.members:,} of them with all four pipelines; "
        f"{score.labels_learnt:,} of {score.labels_sent:,} labels learnt from; {score.repeated} records twice",
        highlight=False,
    )
    console.print(_domains(score, run))
    console.print(_times(score, run))
    console.print(_checks(score))


def write_json(file: Path, score: Score, run: Recording) -> None:
    """Everything of the report, and the accuracy over time."""
    window = window_of(score)
    judged = judged_of(run)
    series = {}
    for name in _names(run):
        at_s, shares = over_time(judged, name, window)
        series[name] = [[round(s, 2), round(share, 4)] for s, share in zip(at_s, shares, strict=True)]
    body = {"passed": score.passed, **asdict(score), "window": window, "over_time": series}
    file.write_text(json.dumps(body, indent=1), encoding="utf-8")


def window_of(score: Score) -> int:
    """Texts that a rolling accuracy looks back over."""
    return max(1, min(_WINDOW, score.judged // 4))


def write_png(file: Path, score: Score, run: Recording) -> None:
    """Draw the run: one panel for all texts, one for each domain. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (may be missing)
    from matplotlib.figure import Figure  # noqa: PLC0415  (as above)

    figure = Figure(figsize=(12, 9), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplot_mosaic([["all", "all"], *_pairs(sorted(score.by_domain))])
    verdict = "every check passed" if score.passed else "a check was missed"
    figure.suptitle(f"{score.texts:,} texts of {len(score.by_domain)} domains through Kafka: {verdict}", fontsize=13)
    judged = judged_of(run)
    for panel, axes in grid.items():
        texts = judged if panel == "all" else [text for text in judged if text.domain == panel]
        _draw(axes, texts, run, max(1, window_of(score) if panel == "all" else window_of(score) // 2))
        axes.set_title("all domains" if panel == "all" else panel, fontsize=10)
    grid["all"].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    figure.supylabel("right answers, % (rolling)")
    figure.supxlabel("seconds since the first text")
    figure.savefig(file, dpi=110)


def _draw(axes: Any, texts: list[Text], run: Recording, window: int) -> None:
    labels = {**dict(SHOWN), **{model: _bare(model) for model in run.models}}
    for (name, label), colour in zip(labels.items(), _COLOURS, strict=True):
        at_s, shares = over_time(texts, name, window)
        style = {"linewidth": 2.6 if name == CONTEXTS else 1.2, "linestyle": "--" if label.endswith(")") else "-"}
        axes.plot(at_s, [100 * share for share in shares], color=colour, label=label, **style)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, run.seconds)
    axes.set_ylim(50, 100)


def _pairs(names: list[str]) -> list[list[str]]:
    return [[*names[at : at + 2], *names[at : at + 1]][:2] for at in range(0, len(names), 2)]


def _names(run: Recording) -> list[str]:
    return [*(name for name, _ in SHOWN), *run.models]


def _bare(model: str) -> str:
    return model.rpartition("@")[0] or model


def _domains(score: Score, run: Recording) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="right answers", title_justify="left", title_style="bold")
    table.add_column("")
    for domain in score.by_domain:
        table.add_column(domain, justify="right")
    table.add_column("all", justify="right", style="bold")
    for model in run.models:
        table.add_row(f"{_bare(model)} alone", *_row(score, model))
    table.add_row(f"best of the four in hindsight ({_bare(score.best)})", *_row(score, BEST))
    table.add_row("best of the four per domain, in hindsight", *_row(score, ORACLE))
    table.add_section()
    for name, label in SHOWN:
        table.add_row(label, *_row(score, name), style="bold" if name == CONTEXTS else "")
    return table


def _row(score: Score, name: str) -> list[str]:
    return [*(f"{found[name]:.1%}" for found in score.by_domain.values()), f"{score.accuracy[name]:.1%}"]


def _times(score: Score, run: Recording) -> Table:
    """Accuracy in each fifth of the run, by domain, against each pipeline."""
    judged = judged_of(run)
    table = Table(box=box.SIMPLE_HEAD, title="over time", title_justify="left", title_style="bold")
    table.add_column("")
    for part in range(_SLICES):
        table.add_column(
            f"{part * score.seconds / _SLICES:.0f}-{(part + 1) * score.seconds / _SLICES:.0f} s", justify="right"
        )
    rows = [(None, name, label) for name, label in SHOWN]
    rows += [(None, model, f"{_bare(model)} alone") for model in run.models]
    rows += [(domain, CONTEXTS, f"contexts, {domain}") for domain in score.by_domain]
    for domain, name, label in rows:
        texts = [text for text in judged if domain in (None, text.domain)]
        table.add_row(label, *_fifths(texts, name, score.seconds))
    return table


def _fifths(texts: list[Text], name: str, seconds: float) -> list[str]:
    found = []
    for part in range(_SLICES):
        mine = [text for text in texts if part <= _SLICES * text.sent_s / seconds < part + 1]
        mine = [text for text in mine if name in text.answers or name in text.losses]
        _, shares = over_time(mine, name, len(mine)) if mine else ([], [])
        found.append(f"{shares[0]:.1%}" if shares else "-")
    return found


def _checks(score: Score) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="checks", title_justify="left", title_style="bold")
    for heading in ("", "found", "wanted", ""):
        table.add_column(heading)
    for check in score.checks:
        verdict = Words("PASS", style="green") if check.passed else Words("MISS", style="bold red")
        table.add_row(check.name, check.figure, check.limit, verdict)
    return table
