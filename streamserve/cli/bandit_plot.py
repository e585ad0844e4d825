"""The report of `streamserve bandit evaluate` as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamserve.cli.pictures import figure_of, save, short

_SERVED, _COLOURS = "#999999", {"replay": "#0072B2", "ips": "#D55E00", "snips": "#E69F00", "dr": "#009E73"}


def write_plot(file: Path, reports: Sequence[dict[str, Any]]) -> None:
    """Draw each policy's estimates with their intervals, beside what was served. Needs matplotlib.

    `reports`: as printed by `--json`, all of one route. Raises UnusableInput where the file cannot be written.
    """
    rows = list(_rows(reports))
    figure, axes = figure_of((9, 1.6 + 0.34 * len(rows)))
    axes.set_title(
        f"what policies would have earned on route {reports[0]['route']}: reward, 95 % interval", fontsize=10
    )
    for place, (_, colour, one) in enumerate(rows):
        if one is None:
            axes.text(0.5, place, "refused: the log says too little", va="center", ha="center",
                      transform=axes.get_yaxis_transform(), color=_SERVED, fontsize=8)  # fmt: skip
            continue
        axes.plot([one["low"], one["high"]], [place, place], color=colour, linewidth=2)
        axes.plot([one["value"]], [place], "o", color=colour)
        axes.annotate(f"{one['value']:.4f}", (one["value"], place), (0, 5), textcoords="offset points", ha="center",
                      fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.8)
    served = reports[0]["served_there"] or reports[0]["served"]
    if served:
        axes.axvline(served["value"], color=_SERVED, linestyle=":", linewidth=1)
    save(figure, file)


def _rows(reports: Sequence[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Name, colour and figures of each line; None instead of figures where nothing could be said."""
    rows: list[tuple[str, str, dict[str, Any] | None]] = [
        (reports[0][key]["name"], _SERVED, reports[0][key]) for key in ("served", "served_there") if reports[0][key]
    ]
    for report in reports:
        name = short(report["policy"])
        rows += [(f"{name}: {one['name']}", _COLOURS.get(one["name"], _SERVED), one) for one in report["estimates"]]
        if not report["estimates"]:
            rows.append((name, _SERVED, None))
    return rows
