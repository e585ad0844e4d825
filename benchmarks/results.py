"""Measured rows of one run, medians and paired ratios over them, and the CSV that they are appended to."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

#: Above this the row is marked: somebody else took that much of the machine during it.
FOREIGN_CORES_LIMIT = 0.3

MACHINE_COLUMNS = (
    "date",
    "commit",
    "cpu",
    "cores",
    "pinned",
    "system",
    "python",
    "aiokafka",
    "scikit-learn",
    "numpy",
    "bytewax",
    "confluent-kafka",
)
MEASURED_COLUMNS = (
    "section",
    "peer",
    "run",
    "offered_per_s",
    "requests",
    "answers",
    "rate_per_s",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "growth",
    "backlog_s",
    "sent_late_ms",
    "cpu_s_per_1000",
    "rss_start_mib",
    "rss_mib",
    "foreign_cores",
    "missing",
    "duplicates",
    "wrong",
    "not_ok",
)
COLUMNS = MACHINE_COLUMNS + MEASURED_COLUMNS

Row = dict[str, Any]


def loudness(rows: list[Row]) -> float:
    """Most cores that somebody else used during one of the rows."""
    return max((float(row.get("foreign_cores") or 0.0) for row in rows), default=0.0)


def quietest(measure: Callable[[], list[Row]], repeats: int) -> list[Row]:
    """Measure, again while it was loud, at most `1 + repeats` times; the quietest counts, whatever its figures."""
    best = measure()
    for _ in range(repeats):
        if loudness(best) <= FOREIGN_CORES_LIMIT:
            break
        best = min(best, measure(), key=loudness)
    return best


@dataclass(slots=True)
class Results:
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, section: str, peer: str, run: int, measured: Row) -> Row:
        row = {"section": section, "peer": peer, "run": run, **measured}
        unknown = row.keys() - set(MEASURED_COLUMNS)
        if unknown:
            raise ValueError(f"no column for {', '.join(sorted(unknown))}")
        self.rows.append(row)
        return row

    def by_run(self, section: str, peer: str, metric: str, offered_per_s: float | None = None) -> dict[int, float]:
        """Run number -> value, where it was measured."""
        return {
            row["run"]: float(row[metric])
            for row in self.rows
            if (row["section"], row["peer"], row.get("offered_per_s")) == (section, peer, offered_per_s)
            and row.get(metric) is not None
        }

    def median(self, section: str, peer: str, metric: str, offered_per_s: float | None = None) -> float | None:
        values = self.by_run(section, peer, metric, offered_per_s).values()
        return median(values) if values else None

    def ratio(
        self, section: str, peer: str, other: str, metric: str, offered_per_s: float | None = None
    ) -> float | None:
        """Median over the runs of `peer` / `other` of the same run: what disturbed one mostly disturbed both."""
        own = self.by_run(section, peer, metric, offered_per_s)
        theirs = self.by_run(section, other, metric, offered_per_s)
        ratios = [own[run] / theirs[run] for run in own.keys() & theirs.keys() if theirs[run]]
        return median(ratios) if ratios else None

    def peers(self, section: str) -> list[str]:
        return list(dict.fromkeys(row["peer"] for row in self.rows if row["section"] == section))

    def rates(self, section: str) -> list[float]:
        return sorted({row["offered_per_s"] for row in self.rows if row["section"] == section})

    def wrong(self) -> list[Row]:
        """Rows whose figures mean nothing: answers missing, doubled or wrong, or not all `ok` in a drain."""
        return [
            row
            for row in self.rows
            if any(row.get(name) for name in ("missing", "duplicates", "wrong"))
            or (row["section"] == "drain" and row.get("not_ok"))
        ]

    def late(self) -> list[Row]:
        """Open loops with answers that were not `ok`; their latencies already pay for it."""
        return [row for row in self.rows if row["section"] != "drain" and row.get("not_ok")]


def append_csv(path: Path, machine: Row, rows: list[Row], measured: Sequence[str] = MEASURED_COLUMNS) -> None:
    """Append; a file with other columns is put aside under the name `….old.csv` first."""
    columns = (*MACHINE_COLUMNS, *measured)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open(encoding="utf-8", newline="") as existing:
            header = next(csv.reader(existing), [])
        if header != list(columns):
            path.replace(path.with_suffix(".old.csv"))
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in {**machine, **row}.items()})


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
