"""`python -m benchmarks.soak`: an app for minutes or hours under load; memory, files, threads and latency stay flat.

Two pools, an aggregator and a learner on a Kafka of its own under `up`, Poisson requests, every label fed back. Every
few seconds each process's memory, open files and threads are noted (the supervisor's too), and the latencies of what
was answered since. Kept as `results/bench/soak.csv`, as it goes on, and `soak.png`; Ctrl-C ends it with what there is.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.ending import unwind_on_sigterm

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "results" / "bench"
PARTITIONS = 4
NOTE_EVERY_S = 5.0
#: Caches fill, allocators settle and the join's window of a minute comes to its end before flat can be asked for.
SKIPPED_SHARE = 0.2
SKIPPED_S = 90.0
#: At the end the last requests get so long to be answered.
LAST_ANSWERS_S = 10.0
MOST_GROWTH = 0.05
MOST_GROWTH_MIB = 8.0
MOST_LATENCY_GROWTH = 1.5
COLUMNS = ("process", "at_s", "sent", "answered", "p50_ms", "p99_ms", "rss_mib", "open_files", "threads")

_MODELS = '''"""Two small models of one label."""

import numpy as np


def left(batch):
    return (batch[:, 0] > 0.5).astype(np.int64)


def right(batch):
    return (batch.mean(axis=1) > 0.5).astype(np.int64)
'''
#: What fills is small enough to be full before flat is asked for.
_CONFIG = f"""\
[app]
name = "soak"
partitions = {PARTITIONS}

[bounds]
learnt_states = 200

[pools.left]
models = ["left"]
cache_bytes = 2000000

[pools.right]
models = ["right"]
cache_bytes = 2000000

[models.left]
source = "soak_models:left"

[models.right]
source = "soak_models:right"

[learn]
join_window_ms = 60000

[routes.soak]
models = ["left", "right"]
policy = {{ name = "hedge", eta = 0.3, half_life_events = 350 }}
deadline_ms = 500
default = -1
"""


@dataclass(kw_only=True)
class Traffic:
    """Sends at Poisson times, hears predictions, and feeds each one's label back."""

    servers: str
    topics: dict[str, str]
    rate_per_s: float
    sent: int = 0
    answered: int = 0
    taught: int = 0
    failed: str = ""
    latencies_ms: list[float] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    sending_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._sent_at = np.zeros(1 << 16)
        self._producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 2, "acks": "all", "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "soak-driver",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(self.topics["predictions"], n, 0) for n in range(PARTITIONS)])
        self._threads = [
            threading.Thread(target=self._watched, args=(run,), daemon=True) for run in (self._send, self._hear)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more, wait for the last answers, end."""
        self.sending_over.set()
        until = time.monotonic() + LAST_ANSWERS_S
        while self.answered < self.sent and not self.failed and time.monotonic() < until:
            time.sleep(0.1)
        self.stopping.set()
        for thread in self._threads:
            thread.join(30)
        self._producer.flush(10)
        self._consumer.close()

    def _watched(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001  (whatever it is: the soak is to say so, not to look flat)
            self.failed = self.failed or f"the load ended: {error!r}"

    def _send(self) -> None:
        random = np.random.default_rng(3)
        due = time.perf_counter()
        while not self.sending_over.is_set():
            due += random.exponential(1 / self.rate_per_s)
            time.sleep(max(0.0, due - time.perf_counter()))
            row = random.random(4).round(3).tolist()
            body = {"id": str(self.sent), "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP64", "data": row}]}
            self._sent_at[self.sent % len(self._sent_at)] = time.perf_counter()
            self._producer.produce(self.topics["requests"], orjson.dumps(body))
            self._producer.poll(0)
            self.sent += 1

    def _hear(self) -> None:
        while not self.stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is not None:
                    continue
                body = orjson.loads(message.value())
                number = int(body["id"])
                self.latencies_ms.append(1_000 * (time.perf_counter() - self._sent_at[number % len(self._sent_at)]))
                self.answered += 1
                ref = dict(message.headers())["ss-ref"]
                label = orjson.dumps({"id": body["id"], "label": number % 2})
                self._producer.produce(
                    self.topics["feedback"], label, headers=[("ss-ref", ref)], partition=message.partition()
                )
                self.taught += 1


def _note(processes: dict[str, psutil.Process], traffic: Traffic, at_s: float) -> list[dict[str, Any]]:
    heard, traffic.latencies_ms = traffic.latencies_ms, []
    latency = np.array(heard) if heard else np.array([np.nan])
    common = {
        "at_s": round(at_s, 1),
        "sent": traffic.sent,
        "answered": traffic.answered,
        "p50_ms": float(np.percentile(latency, 50)),
        "p99_ms": float(np.percentile(latency, 99)),
    }
    rows = []
    for name, process in processes.items():
        with process.oneshot():
            figures = {
                "rss_mib": process.memory_info().rss / (1 << 20),
                "open_files": process.num_fds(),
                "threads": process.num_threads(),
            }
        rows.append({"process": name, **common, **figures})
    return rows


def run(seconds: float, rate_per_s: float, console: Console, keep: Callable[[list[dict[str, Any]]], None]) -> str:
    """`keep` is given each look's rows. What went wrong; empty where nothing did."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=RESULTS))
    (folder / "soak_models.py").write_text(_MODELS, encoding="utf-8")
    config = folder / "soak.toml"
    config.write_text(_CONFIG, encoding="utf-8")
    up = subprocess.Popen(
        [sys.executable, "-m", "streamserve.cli", "up", str(config), "--json", "--no-spares"],
        cwd=folder,
        env={**os.environ, "STREAMSERVE_STATE": str(folder / "state"), "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=(folder / "up.log").open("wb"),
    )
    try:
        assert up.stdout is not None
        ready = next(said for line in up.stdout if (said := json.loads(line))["event"] in ("ready", "stopped"))
        if ready["event"] != "ready":
            raise SystemExit((folder / "up.log").read_text()[-2_000:])
        threading.Thread(target=lambda: [None for _ in up.stdout or ()], daemon=True).start()
        processes = {role["name"]: psutil.Process(role["pid"]) for role in ready["roles"]}
        processes["up"] = psutil.Process(up.pid)
        traffic = Traffic(servers=ready["bootstrap_servers"], topics=ready["topics"], rate_per_s=rate_per_s)
        traffic.start()
        try:
            _look_on(seconds, processes, traffic, console, keep)
        except KeyboardInterrupt:
            console.print("ended before its time", highlight=False)
        except psutil.NoSuchProcess as gone:
            return f"process {gone.pid} of {', '.join(f'{n} ({p.pid})' for n, p in processes.items())} ended"
        traffic.stop()
        lost = traffic.sent - traffic.answered
        return traffic.failed or (f"{lost} of {traffic.sent} requests were not answered" if lost else "")
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _look_on(
    seconds: float,
    processes: dict[str, psutil.Process],
    traffic: Traffic,
    console: Console,
    keep: Callable[[list[dict[str, Any]]], None],
) -> None:
    began = time.monotonic()
    while (at_s := time.monotonic() - began) < seconds and not traffic.failed:
        time.sleep(min(NOTE_EVERY_S, seconds - at_s))
        rows = _note(processes, traffic, time.monotonic() - began)
        keep(rows)
        console.print(
            f"{rows[-1]['at_s']:7.0f} s  answered {traffic.answered:,} of {traffic.sent:,}  "
            f"p50 {rows[-1]['p50_ms']:.1f} ms  p99 {rows[-1]['p99_ms']:.1f} ms",
            highlight=False,
        )


def verdicts(rows: list[dict[str, Any]]) -> list[tuple[str, float, float, bool]]:
    """(what, first, last, flat): medians of the first and the last third, once the start is over."""
    last_s = max(row["at_s"] for row in rows)
    skipped_s = max(SKIPPED_SHARE * last_s, min(SKIPPED_S, last_s / 2))
    kept = [row for row in rows if row["at_s"] >= skipped_s]
    found = []
    for process in sorted({row["process"] for row in kept}):
        own = [row for row in kept if row["process"] == process]
        third = max(1, len(own) // 3)
        for name in ("rss_mib", "open_files", "threads"):
            first, last = (float(np.median([row[name] for row in part])) for part in (own[:third], own[-third:]))
            room = MOST_GROWTH_MIB if name == "rss_mib" else 2.0
            found.append((f"{process} {name}", first, last, last <= first * (1 + MOST_GROWTH) + room))
    own = [row for row in kept if row["process"] == kept[0]["process"]]
    third = max(1, len(own) // 3)
    for name in ("p50_ms", "p99_ms"):
        first, last = (float(np.nanmedian([row[name] for row in part])) for part in (own[:third], own[-third:]))
        found.append((name, first, last, last <= first * MOST_LATENCY_GROWTH))
    return found


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    import matplotlib  # noqa: PLC0415  (slow to import, and only for the picture)

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  (as above)

    figure, axes = plt.subplots(4, 1, figsize=(9, 11), sharex=True)
    for axis, name, words in zip(
        axes, ("rss_mib", "open_files", "threads"), ("resident MiB", "open files", "threads"), strict=False
    ):
        for process in sorted({row["process"] for row in rows}):
            own = [row for row in rows if row["process"] == process]
            axis.plot([row["at_s"] for row in own], [row[name] for row in own], label=process)
        axis.set_ylabel(words)
        axis.set_ylim(bottom=0)
    axes[0].legend(ncols=3, fontsize=8)
    first = rows[0]["process"]
    own = [row for row in rows if row["process"] == first]
    for name in ("p50_ms", "p99_ms"):
        axes[3].plot([row["at_s"] for row in own], [row[name] for row in own], label=name)
    axes[3].set_ylabel("latency, ms")
    axes[3].set_xlabel("seconds")
    axes[3].set_yscale("log")
    axes[3].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> int:
    """0: all flat, and every request answered. 1: not so."""
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10; hours are welcome)")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second (default 200)")
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=120)
    rows: list[dict[str, Any]] = []
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "soak.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()

        def keep(found: list[dict[str, Any]]) -> None:
            rows.extend(found)
            writer.writerows(found)
            file.flush()

        trouble = run(60 * options.minutes, options.rate, console, keep)
    if not rows:
        raise SystemExit(trouble or "ended before anything was noted")
    plot(rows, RESULTS / "soak.png")
    table = Table(title=f"{options.minutes:g} minutes at {options.rate:g}/s: medians of the first and the last third")
    for title in ("what", "first", "last", ""):
        table.add_column(title, justify="left" if title == "what" else "right")
    found = verdicts(rows)
    for what, first, last, flat in found:
        table.add_row(what, f"{first:.1f}", f"{last:.1f}", "flat" if flat else "GREW")
    console.print(table)
    console.print("written: soak.csv, soak.png", highlight=False)
    if trouble:
        console.print(trouble, highlight=False)
    return 0 if not trouble and all(flat for *_, flat in found) else 1


if __name__ == "__main__":
    sys.exit(main())
