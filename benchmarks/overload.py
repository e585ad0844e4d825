"""`python -m benchmarks.overload`: far more requests than the model can answer.

One fused process with one model that works `a + b n` ms for n rows (about 1,900 rows/s), deadline 200 ms, one request a
row, Poisson arrivals that never wait. First the load at which most is answered in time is looked for; then 2, 5 and 10
times the capacity are held, each followed by a light load that tells how soon all is well again. A request is answered
in time when its prediction is in the log (by the broker's clock) within 200 ms of the call that sent it.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks import job, machine, usage
from benchmarks.broker import bench_broker
from benchmarks.driver import OpenLoop, Task, Watched, say
from benchmarks.ending import unwind_on_sigterm
from benchmarks.measure import environment
from benchmarks.results import append_csv
from streamserve.errors import StreamserveError

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "results" / "bench"
CSV = RESULTS / "overload.csv"
FIXED_MS, ROW_MS = 2.0, 0.5
CAPACITY_PER_S = 1_900.0
DEADLINE_MS = 200
LIGHT_SHARE = 0.5
SEARCHED = (0.8, 0.9, 1.0, 1.1)
TIMES = (2.0, 5.0, 10.0)
GOOD_SHARE = 0.9
BACK_MS = 2_000
PARTITIONS = 4

_MODEL = f'''"""A model that works: so many milliseconds of one core, outside the interpreter's lock."""

import hashlib
import time

import numpy as np

from streamserve.runtimes import Outputs


def predict(rows):
    until = time.perf_counter() + ({FIXED_MS} + {ROW_MS} * len(rows)) / 1_000
    while time.perf_counter() < until:
        hashlib.pbkdf2_hmac("sha256", b"work", b"salt", 200)  # some 0.1 ms
    return Outputs(labels=np.zeros(len(rows), np.int64))
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One rate, held."""

    name: str
    rate_per_s: float
    seconds: float


def phases(seconds: float) -> list[Phase]:
    light = LIGHT_SHARE * CAPACITY_PER_S
    found = [Phase(name="warm", rate_per_s=light, seconds=5.0)]
    found += [Phase(name=f"{share:.1f}x", rate_per_s=share * CAPACITY_PER_S, seconds=seconds / 3) for share in SEARCHED]
    for times in TIMES:
        found.append(Phase(name=f"{times:.0f}x", rate_per_s=times * CAPACITY_PER_S, seconds=seconds))
        found.append(Phase(name=f"after {times:.0f}x", rate_per_s=light, seconds=6.0))
    return found


# -- the driver's process --------------------------------------------------------------------------------------------


def request_values(count: int) -> list[bytes]:
    form = b'{"id":"%08d","inputs":[{"name":"x","shape":[1,2],"datatype":"FP64","data":[%d.5,1.0]}]}'
    return [form % (index, index) for index in range(count)]


def drive(task: Task, plan: Sequence[Phase]) -> list[dict[str, Any]]:
    """Play the phases one after the other, and say what became of each one's requests."""
    values = request_values(sum(int(phase.rate_per_s * phase.seconds) for phase in plan) + 4_000)
    say("ready")
    watched = Watched(**orjson.loads(sys.stdin.buffer.readline()))
    loop = OpenLoop(task, watched, values)
    loop.warm(seconds=2.0)
    loop.settle()
    played: list[tuple[Phase, int, int, dict[str, Any]]] = []
    for phase in plan:
        first, before = loop.sent, watched.sample()
        loop.send(int(phase.rate_per_s * phase.seconds), phase.rate_per_s)
        after = watched.sample()
        figures = {
            "sent_late_ms": 1_000 * loop.late_s,
            "driver_cores": (after.driver_cpu_s - before.driver_cpu_s) / (after.at_s - before.at_s),
            "foreign_cores": usage.foreign_cores(before, after),
            "rss_mib": after.peer_rss_mib,
        }
        if not phase.name.endswith("x") or phase.name in {f"{times:.0f}x" for times in SEARCHED}:
            loop.settle()
        played.append((phase, first, loop.sent, figures))
    loop.settle()
    loop.close()
    return _account(loop, played)


def _account(loop: OpenLoop, played: Sequence[tuple[Phase, int, int, dict[str, Any]]]) -> list[dict[str, Any]]:
    sent = loop.sent
    # The broker stamps in milliseconds of the epoch, the loop in seconds of its own clock.
    offset_s = time.time() - time.perf_counter()
    took_ms = np.full(sent, np.inf)
    outcomes = np.full(sent, "", object)
    counts = np.zeros(sent, np.int64)
    for message in loop.received.messages:
        body = orjson.loads(message.value())
        index = int(body["id"])
        counts[index] += 1
        outcomes[index] = body["parameters"]["outcome"]
        took_ms[index] = message.timestamp()[1] - 1_000 * (loop.sent_at_s[index] + offset_s)
    answered = np.isin(outcomes, ("ok", "partial"))
    good = answered & (took_ms <= DEADLINE_MS)
    rows = []
    for phase, first, last, figures in played:
        part = slice(first, last)
        at_ms = 1_000 * (loop.sent_at_s[part] - loop.sent_at_s[first])
        settled = took_ms[part][~answered[part] & np.isfinite(took_ms[part])]
        bad_at_ms = at_ms[~good[part]]
        rows.append(
            {
                "phase": phase.name,
                "offered_per_s": (last - first) / phase.seconds,
                "goodput_per_s": int(good[part].sum()) / phase.seconds,
                "requests": last - first,
                "missing": int((counts[part] == 0).sum()),
                "twice": int((counts[part] > 1).sum()),
                "p50_ms": _percentile(took_ms[part][good[part]], 50),
                "p99_ms": _percentile(took_ms[part][good[part]], 99),
                "refused_p50_ms": _percentile(settled, 50),
                "refused_p99_ms": _percentile(settled, 99),
                "last_bad_ms": float(bad_at_ms.max()) if len(bad_at_ms) else 0.0,
                **{
                    name: int((outcomes[part] == name).sum())
                    for name in ("ok", "partial", "default", "expired", "error")
                },
                **figures,
            }
        )
    return rows


def _percentile(values: np.ndarray, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else float("nan")


# -- the run ---------------------------------------------------------------------------------------------------------


def config_of(app: str) -> str:
    return f"""\
[app]
name = "{app}"
partitions = {PARTITIONS}
max_deadline_ms = 60000

[pools.main]
models = ["busy"]
processes = 1
cache_bytes = 0

[models.busy]
version = "1"
source = "busy:predict"

[routes.{job.ROUTE}]
models = ["busy"]
policy = {{ name = "static" }}
combine = "vote"
deadline_ms = {DEADLINE_MS}
"""


def run(seconds: float, bootstrap_servers: str | None, console: Console) -> list[dict[str, Any]]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="overload-", dir=RESULTS))
    try:
        with bench_broker(folder / "broker", bootstrap_servers, console.print) as servers:
            return _measure(folder, servers, phases(seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(folder: Path, servers: str, plan: list[Phase]) -> list[dict[str, Any]]:
    app = f"overload-{int(time.time())}"
    (folder / "busy.py").write_text(_MODEL, encoding="utf-8")
    config = folder / "streamserve.toml"
    config.write_text(config_of(app), encoding="utf-8")
    program = shutil.which("streamserve", path=str(Path(sys.executable).parent)) or "streamserve"
    variables = environment({"STREAMSERVE_BROKER__BOOTSTRAP_SERVERS": servers}, REPOSITORY)
    subprocess.run(
        (program, "topics", "create", str(config)),
        env=variables,
        cwd=folder,
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )
    task = Task(
        bootstrap_servers=servers,
        requests_topic=f"{app}.requests.v1",
        answers_topic=f"{app}.predictions.v1",
        partitions=PARTITIONS,
        seed=11,
        requests=0,
        steps=(),
        model_files=(),
        deadline_ms=DEADLINE_MS,
    )
    log = folder / "worker.log"
    with log.open("wb") as output:
        command = (program, "worker", str(config), "--pool", "main")
        worker = subprocess.Popen(command, env=variables, cwd=folder, stdout=output, stderr=output)
    asked = orjson.dumps({"task": asdict(task), "phases": [asdict(phase) for phase in plan]}).decode()
    driver = subprocess.Popen(
        (sys.executable, "-m", "benchmarks.overload", "--drive", asked),
        env=variables,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        return _listen(driver, worker.pid, servers)
    except StreamserveError as error:
        raise StreamserveError(f"{error}. The end of the worker's log:\n{log.read_text()[-2_000:]}") from None
    finally:
        for process in (driver, worker):
            process.terminate()
            process.wait(20)


def _listen(driver: subprocess.Popen[bytes], worker_pid: int, servers: str) -> list[dict[str, Any]]:
    assert driver.stdin is not None
    assert driver.stdout is not None
    for line in driver.stdout:
        said = orjson.loads(line)
        if said["event"] == "ready":
            broker_pids = usage.listener_pids(int(servers.rpartition(":")[2]))
            driver.stdin.write(orjson.dumps({"peer_pids": [worker_pid], "broker_pids": broker_pids}) + b"\n")
            driver.stdin.flush()
        elif said["event"] == "result":
            rows: list[dict[str, Any]] = said["rows"]
            return rows
    raise StreamserveError("the load driver ended without a result")


def report(console: Console, rows: list[dict[str, Any]]) -> bool:
    """The table and the verdicts; False where a point is missed."""
    table = Table(title=f"Capacity about {CAPACITY_PER_S:,.0f}/s, deadline {DEADLINE_MS} ms")
    columns = (
        ("offered/s", "offered_per_s", ",.0f"),
        ("goodput/s", "goodput_per_s", ",.0f"),
        ("p50 ms", "p50_ms", ".0f"),
        ("p99 ms", "p99_ms", ".0f"),
        ("expired", "expired", ",d"),
        ("told after p50", "refused_p50_ms", ".0f"),
        ("p99", "refused_p99_ms", ".0f"),
        ("none", "missing", "d"),
        ("twice", "twice", "d"),
        ("last miss ms", "last_bad_ms", ".0f"),
        ("RSS MiB", "rss_mib", ".0f"),
        ("sent late ms", "sent_late_ms", ".0f"),
    )
    table.add_column("phase")
    for title, _, _ in columns:
        table.add_column(title, justify="right")
    for row in rows:
        cells = ("" if row[name] is None else format(row[name], form) for _, name, form in columns)
        table.add_row(row["phase"], *cells)
    console.print(table)
    by_name = {row["phase"]: row for row in rows}
    best = max(row["goodput_per_s"] for row in rows if row["phase"] in {f"{share:.1f}x" for share in SEARCHED})
    reached = True
    for times in TIMES:
        share = by_name[f"{times:.0f}x"]["goodput_per_s"] / best
        back_ms = by_name[f"after {times:.0f}x"]["last_bad_ms"]
        held = share >= GOOD_SHARE and back_ms <= BACK_MS
        reached &= held
        console.print(
            f"{times:.0f}x: goodput {share:.2f} of the best load's (at least {GOOD_SHARE}), normal again after "
            f"{back_ms / 1000:.1f} s (at most {BACK_MS / 1000:.0f}): {'held' if held else 'MISSED'}",
            highlight=False,
        )
    clean = not any(row["missing"] or row["twice"] for row in rows)
    console.print(f"every request has exactly one record: {'held' if clean else 'MISSED'}", highlight=False)
    return reached and clean


def main() -> int:
    """0: all held. 1: a point was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each overload (default 30)")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="use this broker instead of one of our own")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        gc.disable()  # a collection in the middle would be charged to the peer
        sys.setswitchinterval(0.0005)
        asked = orjson.loads(options.drive)
        task = Task(**{**asked["task"], "steps": (), "model_files": ()})
        say("result", rows=drive(task, [Phase(**phase) for phase in asked["phases"]]))
        return 0
    unwind_on_sigterm()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    try:
        rows = run(options.seconds, options.bootstrap_servers, console)
    except StreamserveError as error:
        console.print(str(error), markup=False, highlight=False)
        return 1
    described: dict[str, Any] = dict(machine.describe(REPOSITORY, machine.Cores(ours=None, peer=None)))
    append_csv(CSV, described, rows, tuple(rows[0]))
    return 0 if report(console, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
