"""`kafka`: all models in one pool behind a real Kafka, under PRETZEL's loads.

*Skewed*: models are asked by Zipf's law (exponent 2, ranks drawn once) over both workloads, 500 models at full scale;
half of the requests hold one row and want their answer within a quarter of a second, half hold a hundred and have two
seconds (the paper's Figure 13). *End to end*: requests of one row over the AC models, all equally likely (Figure 14);
the baseline is the same app with pickles behind the runtime `sklearn`, fewer of them. Requests come at Poisson times
that do not wait; latency counts from the call that sends to the moment the prediction is heard. No result cache.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.plan_packed import packed
from benchmarks.plan_questions import AC, SA, rows_for
from benchmarks.plan_rows import WHOLE_SCALE, Run, row
from benchmarks.results import Row

REPOSITORY = Path(__file__).resolve().parent.parent
PARTITIONS = 4
_RATES = (50, 100, 150, 200, 250, 300, 350, 400, 450, 500)
_FEW_RATES = (20,)
_LARGE = 100
_DEADLINE_MS = {1: 250, _LARGE: 2000}
_BODIES = 32
_PICKLES = 20
_BOTH = "SA + AC"
_START_TIMEOUT_S, _LAST_ANSWERS_S = 900.0, 15.0
_CONFIG = """\
[app]
name = "plans"
partitions = {partitions}

[pools.main]
models = [{names}]
cache_bytes = 0
"""
_MODEL = """
[models.{name}]
source = "{source}"
{options}

[routes.{name}]
models = ["{name}"]
input = "{codec}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A model of the pool."""

    name: str
    workload: str
    source: str
    options: str


def kafka(run: Run) -> Iterator[Row]:
    """Skewed load over all plans, then single rows end to end, plans beside pickles."""
    whole = run.scale >= WHOLE_SCALE
    rates, seconds = (_RATES, max(3.0, 10 * min(1.0, run.scale))) if whole else (_FEW_RATES, 2.0)
    plans: list[Asked] = []
    for workload in (SA, AC):
        models = packed(workload, run.scale, run.folder)
        options = f'options = {{ store = "{models.store}" }}'
        plans += [
            Asked(name=f"{workload.lower()}{i}", workload=workload, source=source, options=options)
            for i, source in enumerate(models.plans)
        ]
    with _serving(plans, run.folder / "kafka-plans") as app:
        yield from app.said()
        for rate in rates:
            yield app.play("skewed", rate, seconds, _zipf(len(plans)), sizes=(1, _LARGE), workload=_BOTH)
        own = np.array([each.workload == AC for each in plans], dtype=float)
        ours = {
            rate: app.play("end to end, plans", rate, seconds, own / own.sum(), sizes=(1,), workload=AC)
            for rate in rates
        }
        yield from ours.values()
        yield row("resident after the loads", app.resident_mb(), "MB", workload=_BOTH, plans=len(plans))
    pickles = packed(AC, run.scale, run.folder).pickles[:_PICKLES]
    trusted = 'trust_pickle = true\nruntime = "sklearn"'
    folder = run.folder / "kafka-pickles"
    folder.mkdir(parents=True, exist_ok=True)
    theirs = []
    for i, file in enumerate(pickles):
        source = folder / f"{i}.joblib"
        shutil.copyfile(file, source)
        theirs.append(Asked(name=f"ac{i}", workload=AC, source=str(source), options=trusted))
    with _serving(theirs, folder) as app:
        yield from app.said()
        for rate in rates:
            yield app.play(
                "end to end, pickles", rate, seconds, np.full(len(theirs), 1 / len(theirs)), sizes=(1,), workload=AC
            )


def _zipf(count: int) -> Any:
    """Probabilities of models by 1/rank^2, the ranks dealt out at random."""
    shares = 1.0 / np.arange(1, count + 1) ** 2
    return np.random.default_rng(9).permutation(shares / shares.sum())


@contextmanager
def _serving(models: list[Asked], folder: Path) -> Iterator[_App]:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [_CONFIG.format(partitions=PARTITIONS, names=", ".join(f'"{model.name}"' for model in models))]
    for model in models:
        codec = "oip" if model.workload == SA else "raw"
        parts.append(_MODEL.format(name=model.name, source=model.source, options=model.options, codec=codec))
    config = folder / "plans.toml"
    config.write_text("".join(parts), "utf-8")
    shutil.rmtree(folder / "state", ignore_errors=True)
    started = time.perf_counter()
    up = subprocess.Popen(
        [sys.executable, "-m", "streamserve.cli", "up", str(config), "--json", "--no-spares"],
        cwd=folder,
        env={**os.environ, "STREAMSERVE_STATE": str(folder / "state"), "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=(folder / "up.log").open("wb"),
    )
    late = threading.Timer(_START_TIMEOUT_S, up.kill)
    try:
        assert up.stdout is not None
        late.start()
        said = next((one for line in up.stdout if (one := json.loads(line))["event"] in ("ready", "stopped")), None)
        late.cancel()
        if said is None or said["event"] != "ready":
            raise RuntimeError(f"the pool did not start: {(folder / 'up.log').read_text('utf-8')[-2000:]}")
        threading.Thread(target=lambda: [None for _ in up.stdout or ()], daemon=True).start()
        app = _App(models, said, time.perf_counter() - started)
        yield app
        app.close()
    finally:
        late.cancel()
        up.send_signal(signal.SIGTERM)
        try:
            up.wait(60)
        except subprocess.TimeoutExpired:
            up.kill()
        shutil.rmtree(folder / "state", ignore_errors=True)


class _App:
    """A pool that serves, and its client."""

    def __init__(self, models: list[Asked], ready: dict[str, Any], start_s: float) -> None:
        self._models, self._topics, self._start_s = models, ready["topics"], start_s
        self._processes = [psutil.Process(role["pid"]) for role in ready["roles"]]
        servers = ready["bootstrap_servers"]
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "acks": "all", "log_level": 0})
        reader = {"bootstrap.servers": servers, "group.id": "client", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer(reader)
        self._consumer.assign([TopicPartition(self._topics["predictions"], n, 0) for n in range(PARTITIONS)])
        self._heard: dict[bytes, tuple[float, bytes]] = {}
        self._over = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._bodies = {(workload, size): _bodies(workload, size) for workload in (SA, AC) for size in (1, _LARGE)}
        self._sent = 0

    def _listen(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(1000, 0.05):
                if message.error() is None:
                    headers = dict(message.headers() or ())
                    self._heard.setdefault(headers["ss-id"], (time.perf_counter(), headers["ss-outcome"]))

    def close(self) -> None:
        self._over.set()
        self._listener.join()
        self._consumer.close()

    @property
    def _workload(self) -> str:
        return " + ".join(dict.fromkeys(model.workload for model in self._models))

    def resident_mb(self) -> float:
        """Proportional set size of the app's processes, the broker's left out."""
        return sum(process.memory_full_info().pss for process in self._processes) / 1e6

    def said(self) -> Iterator[Row]:
        """Time until it served, and memory then."""
        about = {"workload": self._workload, "plans": len(self._models)}
        yield row("until all models serve", self._start_s, "s", note="with the broker's start", **about)
        yield row("resident", self.resident_mb(), "MB", note="PSS of the pool's process", **about)

    def play(
        self, name: str, rate: float, seconds: float, shares: Any, *, sizes: tuple[int, ...], workload: str
    ) -> Row:
        """Hold a rate; what became of its requests."""
        draw, count = np.random.default_rng(int(rate)), max(1, int(rate * seconds))
        chosen = draw.choice(len(self._models), size=count, p=shares)
        due = time.perf_counter() + 0.05 + np.cumsum(draw.exponential(1 / rate, count))
        sent: list[tuple[bytes, int, float]] = []
        for i, (model, when) in enumerate(zip(chosen.tolist(), due.tolist(), strict=True)):
            self._producer.poll(0)
            time.sleep(max(0.0, when - time.perf_counter()))
            tag, size = b"%d" % self._sent, sizes[i % len(sizes)]
            self._send(self._models[model], size, tag)
            sent.append((tag, size, time.perf_counter()))
        span_s = time.perf_counter() - float(due[0])
        self._producer.flush(10)
        until = time.monotonic() + _LAST_ANSWERS_S
        while time.monotonic() < until and any(tag not in self._heard for tag, *_ in sent):
            time.sleep(0.05)
        heard = {tag: self._heard.pop(tag, (float("inf"), b"unanswered")) for tag, *_ in sent}
        answered = sum(size for tag, size, _ in sent if heard[tag][1] == b"ok")
        own = np.array([1e3 * (heard[tag][0] - at) for tag, size, at in sent if size == 1])
        in_time = float(np.mean([heard[tag][1] == b"ok" for tag, size, _ in sent if size == 1]))
        p50, p99 = (float(np.percentile(own, share)) for share in (50, 99))
        outcomes = sorted({outcome.decode() for _, outcome in heard.values()})
        note = f"p50 of one row {p50:.1f} ms, p99 {p99:.1f} ms, {100 * in_time:.1f} % ok in time; {', '.join(outcomes)}"
        return row(name, answered / span_s, "rows/s", rate_per_s=rate, p50_ms=p50, p99_ms=p99, note=note,
                   workload=workload, plans=len(self._models))  # fmt: skip

    def _send(self, model: Asked, size: int, tag: bytes) -> None:
        headers = [("ss-route", model.name.encode()), ("ce_id", tag), ("ss-deadline-ms", b"%d" % _DEADLINE_MS[size])]
        if model.workload != SA:
            shape = b"%d,%d" % (size, rows_for(AC, 1).shape[1])
            headers += [("ss-dtype", b"float64"), ("ss-shape", shape)]
        bodies = self._bodies[model.workload, size]
        self._producer.produce(self._topics["requests"], bodies[self._sent % _BODIES], headers=headers)
        self._sent += 1


def _bodies(workload: str, size: int) -> list[bytes]:
    rows = rows_for(workload, 2000)
    found = []
    for i in range(_BODIES):
        start = i * (len(rows) - size) // _BODIES
        part = rows[start : start + size]
        if workload == SA:
            tensor = {"name": "text", "shape": [size], "datatype": "BYTES", "data": list(part)}
            found.append(orjson.dumps({"inputs": [tensor]}))
        else:
            found.append(np.ascontiguousarray(part).tobytes())
    return found
