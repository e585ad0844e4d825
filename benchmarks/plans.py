"""White-box plans beside scikit-learn in the same run: time, memory, loading, throughput; PRETZEL's experiments.

    python -m benchmarks.plans [--scale 0.1] [--only SECTION] [--results FOLDER]

Sections: `text`, `tables`: times of single models on real snippets and on columns. `sharing`: many heads over one
featuriser. Then, over PRETZEL's two workloads (`benchmarks/plan_workloads.py`), 250 models each at scale 1: `memory`
(against the number of models, and loading), `latency` (cold and hot), `throughput` (batches, cores), `steady` (a
million rows), `onnx` (converted by skl2onnx), `ablation` (each mechanism off), `engines` (the loop,
the thread, or both; overload; a thread of one's own), `kafka` (one pool behind a real Kafka).
Models are generated and packed one at a time, once for all sections; `--folder` keeps them for the next run.
`--memory-gib` is what the models of a baseline may take together (80 % of what is free). Rows are appended to
`plans.csv`; every section of PRETZEL's also draws `plans-SECTION.png` from its rows.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import threadpoolctl

from benchmarks import machine
from benchmarks.plan_ablation import ablation
from benchmarks.plan_engines import engines
from benchmarks.plan_kafka import kafka
from benchmarks.plan_latency import latency, steady, throughput
from benchmarks.plan_memory import memory
from benchmarks.plan_onnx import onnx
from benchmarks.plan_plots import PLOTS, draw
from benchmarks.plan_rows import DIFFERENT, MEASURED, Run
from benchmarks.plan_sharing import sharing
from benchmarks.plan_times import tables, text
from benchmarks.results import Row, append_csv

SECTIONS: dict[str, Callable[[Run], Iterator[Row]]] = {
    "text": text,
    "tables": tables,
    "sharing": sharing,
    "memory": memory,
    "latency": latency,
    "throughput": throughput,
    "steady": steady,
    "onnx": onnx,
    "ablation": ablation,
    "engines": engines,
    "kafka": kafka,
}
_SHARE_OF_MEMORY = 0.8


def main(arguments: list[str]) -> int:
    """Run the sections; the exit code: 1 where an answer differed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=SECTIONS)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--folder", type=Path, help="where packed plans are kept; left out: until the end of the run")
    parser.add_argument("--memory-gib", type=float, help="of a baseline's models; left out: 80 %% of what is free")
    asked = parser.parse_args(arguments)
    threadpoolctl.threadpool_limits(1)
    free = _SHARE_OF_MEMORY * psutil.virtual_memory().available
    most_bytes = int(asked.memory_gib * (1 << 30)) if asked.memory_gib else int(free)
    about = machine.describe(Path(__file__).parent, machine.Cores(ours=None, peer=None))
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamserve-plans-")))
        run = Run(scale=asked.scale, folder=folder, most_bytes=most_bytes)
        for name, section in SECTIONS.items():
            if asked.only not in {None, name}:
                continue
            own: list[Row] = []
            for row in section(run):
                own.append({"section": name, **row})
                print(_line(own[-1]), flush=True)
            append_csv(asked.results / "plans.csv", about, own, MEASURED)
            if name in PLOTS:
                print(f"drawn: {draw(name, own, asked.results)}", flush=True)
            rows += own
    missed = [row for row in rows if row.get("reached") == "MISSED"]
    for row in missed:
        print(f"MISSED {row['wanted']}: {_line(row)}")
    return 1 if any(row.get("note") == DIFFERENT for row in rows) else 0


def _line(row: Row) -> str:
    def number(value: Any) -> str:
        return "" if value is None else f"{value:,.2f}"

    where = " ".join(str(row[name]) for name in ("section", "workload") if row.get(name))
    what = f"{where:24} {row['model']:34} {row.get('plans', ''):>4} {row.get('batch', ''):>5}"
    ratio = "" if row.get("ratio") is None else f"x {row['ratio']:.1f}"
    figures = f"{number(row['ours']):>12} {number(row.get('theirs')):>12} {row['unit']:8} {ratio:>8}"
    return f"{what} {figures} {row.get('reached', ''):6} {row.get('note', '')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
