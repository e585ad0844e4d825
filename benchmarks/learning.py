"""How well and how fast the policies learn: `python -m benchmarks.learning [--only SECTION]`.

Sections: `failure` (MNIST, the best of five models fails for a while), `confidence` (of an ensemble's answers there),
`cascade` (a second opinion where a quick model is not sure), `clipper` (the published rules on a stream like theirs),
`speed`, `draws`, `contexts` (a million keyed ones), `keyed` (how well they decide). Prints each number to reach as held
or missed; exit code 1 where one is missed. Rows go to results/bench/learning.csv.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.figures import Figure
from benchmarks.learning_cascade import cascade
from benchmarks.learning_contexts import contexts
from benchmarks.learning_keyed import keyed
from benchmarks.learning_quality import LEARNING, clipper, confidence, failure
from benchmarks.learning_speed import draws, speed
from benchmarks.results import append_csv

REPOSITORY = Path(__file__).resolve().parent.parent
CSV = REPOSITORY / "results" / "bench" / "learning.csv"
COLUMNS = ("section", "what", "seeds", "value", "deviation", "limit", "held")

SECTIONS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "failure": failure,
    "confidence": confidence,
    "cascade": cascade,
    "clipper": clipper,
    "speed": speed,
    "draws": draws,
    "contexts": contexts,
    "keyed": keyed,
}
_BY_POLICY = {"failure": failure, "clipper": clipper}


def _table(figures: list[Figure]) -> Table:
    table = Table(title="Learning", title_justify="left")
    for number, column in enumerate(("what", "mean", "sd", "to reach", "")):
        table.add_column(column, justify="left" if number in (0, 4) else "right", no_wrap=number > 0)
    for one in figures:
        wanted = "" if one.limit is None else f"{'>=' if one.at_least else '<='} {one.limit:.4g}"
        verdict = {None: "", True: "held", False: "MISSED"}[one.held]
        deviation = f"{np.std(one.values):.3g}" if len(one.values) > 1 else ""
        table.add_row(f"{one.section}: {one.what}", f"{one.value:.4g}", deviation, wanted, verdict)
    return table


def _figures(section: str | None, seeds: int, policy: str | None) -> list[Figure]:
    if policy is not None:
        chosen = [section] if section else list(_BY_POLICY)
        return [figure for name in chosen for figure in _BY_POLICY[name](seeds, (policy,))]
    names = [section] if section else list(SECTIONS)
    return [figure for name in names for figure in SECTIONS[name](seeds)]


def main() -> int:
    """The command line; 1 where a number is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(SECTIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--policy", choices=LEARNING, help="sections `failure` and `clipper` of this one alone")
    options = parser.parse_args()
    if options.policy and options.only not in (None, *_BY_POLICY):
        parser.error(f"--policy goes with the sections {', '.join(_BY_POLICY)}")
    figures = _figures(options.only, options.seeds, options.policy)
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
