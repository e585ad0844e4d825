"""Pictures of the sections of `benchmarks.plans`, drawn from their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Row


def draw(section: str, rows: Sequence[Row], folder: Path) -> Path:
    """Draw a section into `plans-SECTION.png` of the folder."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (slow to import)
    from matplotlib.figure import Figure  # noqa: PLC0415  (as above)

    workloads = list(dict.fromkeys(row["workload"] for row in rows if row.get("workload")))
    figure = Figure(figsize=(5.2 * len(workloads), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axis, workload in zip(axes, workloads, strict=True):
        axis.set_title(workload)
        axis.grid(alpha=0.3)
        PLOTS[section](axis, [row for row in rows if row.get("workload") == workload])
    path = folder / f"plans-{section}.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _of(rows: Sequence[Row], model: str, **where: Any) -> list[Row]:
    return [row for row in rows if row["model"] == model and all(row.get(key) == value for key, value in where.items())]


def _line(axis: Any, rows: Sequence[Row], x: str, y: str = "ours", **style: Any) -> None:
    points = [(row[x], row[y]) for row in rows if row.get(y) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def _memory(axis: Any, rows: Sequence[Row]) -> None:
    """MB against the number of models; what is extrapolated is dashed."""
    _line(axis, _of(rows, "plans"), "plans", marker="o", color="C0", label="plans")
    measured = _of(rows, "pickles")
    _line(axis, measured, "plans", marker=".", color="C1", label="a pickle each, one process")
    for name, color, label in (
        ("memory, one process", "C1", "extrapolated"),
        ("memory, a process for each", "C2", "a process each, extrapolated"),
    ):
        for row in _of(rows, name):
            start = measured[-1] if measured and color == "C1" else {"plans": 0, "ours": 0}
            if start["plans"] < row["plans"]:
                axis.plot(
                    [start["plans"], row["plans"]], [start["ours"], row["theirs"]], "--", color=color, label=label
                )
    for row in rows:
        if row["model"].startswith("memory, ") and row["model"].endswith(" processes"):
            axis.plot([row["plans"]], [row["ours"]], "s", color="C3", label=f"plans, {row['processes']} processes")
    axis.set_xlabel("models")
    axis.set_ylabel("MB (proportional set size)")
    axis.set_yscale("log")
    axis.legend(fontsize=7)


def _latency(axis: Any, rows: Sequence[Row]) -> None:
    """Microseconds of single rows: median, tail and worst, hot and cold."""
    names = ("median", "p99", "p99.9", "worst")
    for kind, marker in (("hot", "o"), ("cold", "x")):
        for y, color, who in (("ours", "C0", "plans"), ("theirs", "C1", "scikit-learn")):
            values = [_of(rows, f"{kind}, {name}")[0][y] for name in names]
            axis.plot(names, values, marker=marker, color=color, label=f"{who}, {kind}",
                      linestyle="-" if kind == "hot" else "--")  # fmt: skip
    axis.set_ylabel("us for a row alone")
    axis.set_yscale("log")
    axis.legend(fontsize=7)


def _throughput(axis: Any, rows: Sequence[Row]) -> None:
    """Rows a second against the batch."""
    one = _of(rows, "rows a second, one process")
    _line(axis, one, "batch", marker="o", color="C0", label="plans, one process")
    _line(axis, _of(rows, "rows a second, all cores"), "batch", marker="s", color="C3", label="plans, all cores")
    _line(axis, one, "batch", "theirs", marker="o", color="C1", label="scikit-learn, one process")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("rows of a batch")
    axis.set_ylabel("rows/s")
    axis.legend(fontsize=7)


def _steady(axis: Any, rows: Sequence[Row]) -> None:
    """Memory against the rows answered."""
    points = [(int(row["note"].split()[0]), row["ours"]) for row in _of(rows, "resident")]
    axis.plot(*zip(*points, strict=True), marker=".")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("rows answered")
    axis.set_ylabel("MB of the process")


def _onnx(axis: Any, rows: Sequence[Row]) -> None:
    """Microseconds of a row alone; what does not convert has one bar."""
    for place, row in enumerate(rows):
        axis.barh(place - 0.2, row["ours"], 0.4, color="C0", label="" if place else "plan")
        axis.barh(place + 0.2, row.get("theirs") or 0.0, 0.4, color="C1", label="" if place else "ONNX Runtime")
    axis.set_yticks(range(len(rows)), [row["model"] + ("" if row.get("theirs") else " (no ONNX)") for row in rows])
    axis.set_xlabel("us for a row alone")
    axis.legend(fontsize=7)


def _kafka(axis: Any, rows: Sequence[Row]) -> None:
    """Latency of single rows, and rows a second, against the rate of requests."""
    beside = axis.twinx()
    for color, name in enumerate(("skewed", "end to end, plans", "end to end, pickles")):
        own = _of(rows, name)
        _line(axis, own, "rate_per_s", "p50_ms", marker="o", color=f"C{color}", label=f"{name}, median of one row")
        _line(axis, own, "rate_per_s", "p99_ms", marker="x", color=f"C{color}", linestyle="--", label=f"{name}, p99")
        _line(beside, own, "rate_per_s", marker=".", linestyle=":", color=f"C{color}")
    axis.set_xlabel("requests/s")
    axis.set_ylabel("ms from send to prediction")
    beside.set_ylabel("rows/s answered in time (dotted)")
    axis.set_yscale("log")
    axis.legend(fontsize=7)


def _ablation(axis: Any, rows: Sequence[Row]) -> None:
    """How many times worse it is without each mechanism."""
    names = [f"{row['model']}{', ' + str(row['batch']) + ' rows' if row.get('batch') else ''}" for row in rows]
    axis.barh(names, [row["ratio"] - 1 for row in rows], left=1, color="C0")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("times worse without it (time or memory)")
    axis.tick_params(axis="y", labelsize=6)
    axis.invert_yaxis()


PLOTS: dict[str, Callable[[Any, Sequence[Row]], None]] = {
    "memory": _memory,
    "latency": _latency,
    "throughput": _throughput,
    "steady": _steady,
    "kafka": _kafka,
    "ablation": _ablation,
    "onnx": _onnx,
}
