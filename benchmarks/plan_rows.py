"""Rows of `benchmarks.plans`: what a section is given, and what it yields."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import Row

MEASURED = (
    "section",
    "workload",
    "model",
    "batch",
    "plans",
    "processes",
    "rate_per_s",
    "p50_ms",
    "p99_ms",
    "ours",
    "theirs",
    "ratio",
    "unit",
    "wanted",
    "reached",
    "load",
    "note",
)
DIFFERENT = "DIFFERENT"
#: Below it a run is only to see that all is well: large ensembles are small, there are few processes and calls.
WHOLE_SCALE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What sections of one run share."""

    scale: float
    folder: Path
    """For packed plans and whatever else is large."""
    most_bytes: int
    """Memory that the models of a baseline may take together."""


def row(
    model: str,
    ours: float,
    unit: str,
    *,
    theirs: float | None = None,
    more_is_better: bool = False,
    wanted: str = "",
    note: str = "",
    **where: Any,
) -> Row:
    """One figure, beside the baseline's where there is one; `ratio` is how many times better ours is.

    `wanted` is `ours` or `ratio`, `<=` or `>=`, and a number: `reached` says whether it holds.
    """
    ratio = None if theirs is None else (ours / theirs if more_is_better else theirs / ours)
    found: Row = {"model": model, "ours": ours, "theirs": theirs, "ratio": ratio, "unit": unit, "note": note, **where}
    if wanted:
        what, sign, limit = wanted.split()
        value = float(found[what])
        held = value >= float(limit) if sign == ">=" else value <= float(limit)
        found |= {"wanted": wanted, "reached": "yes" if held else "MISSED"}
    return {**found, "load": os.getloadavg()[0]}
