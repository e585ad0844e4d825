"""White-box plans beside scikit-learn in the same run: time of one row and of batches, memory and loading of many.

    python -m benchmarks.plans [--scale 0.1] [--only SECTION] [--results results/plans.csv]

`text`: PRETZEL's sentiment pipeline (characters 3, words 1-2, logistic regression) on real snippets. `tables`: scaler,
forests, boosting over 40 columns. `sharing`: many heads over one featuriser, and 16 logistic pipelines over the same
columns, run together and one by one. `density`: `250 * scale` sentiment pipelines that share 7 word and 6 character
vocabularies as in PRETZEL's Figure 3, each with weights of its own, vocabularies filled up to `1,000,000 * scale`
n-grams; packed, then loaded by a process of its own that touches every page. The baseline unpickles some pipelines and
takes the increment for each; what it would hold with all is marked extrapolated. `structured`: the same for
`250 * scale` pipelines over 40 columns that end in ensembles, with shared parts and with none. Rows are appended to a
CSV.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import threadpoolctl

from benchmarks import machine
from benchmarks.plan_density import density
from benchmarks.plan_sharing import sharing
from benchmarks.plan_structured import structured
from benchmarks.plan_times import tables, text
from benchmarks.results import Row, append_csv

MEASURED = (
    "section",
    "model",
    "batch",
    "plans",
    "ours",
    "theirs",
    "ratio",
    "unit",
    "note",
)
SECTIONS: dict[str, Callable[[float, Path], Iterator[Row]]] = {
    "text": text,
    "tables": tables,
    "sharing": sharing,
    "density": density,
    "structured": structured,
}


def main(arguments: list[str]) -> int:
    """Run the sections; the exit code: 1 where an answer differed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=SECTIONS)
    parser.add_argument("--results", type=Path, default=Path("results/plans.csv"))
    asked = parser.parse_args(arguments)
    threadpoolctl.threadpool_limits(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="streamserve-plans-") as folder:
        for name, section in SECTIONS.items():
            if asked.only in {None, name}:
                for row in section(asked.scale, Path(folder)):
                    rows.append({"section": name, **row})
                    print(_line(rows[-1]), flush=True)
    about = machine.describe(Path(__file__).parent, machine.Cores(ours=None, peer=None))
    append_csv(asked.results, about, rows, MEASURED)
    return 1 if any(row.get("note") == "DIFFERENT" for row in rows) else 0


def _line(row: Row) -> str:
    def number(value: Any) -> str:
        return "" if value is None else f"{value:,.2f}"

    what = f"{row['section']:8} {row['model']:32} {row.get('batch', ''):>6}"
    ratio = "" if row.get("ratio") is None else f"x {row['ratio']:.1f}"
    figures = f"{number(row['ours']):>12} {number(row.get('theirs')):>12} {row['unit']:8} {ratio:>8}"
    return f"{what} {figures}  {row.get('note', '')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
