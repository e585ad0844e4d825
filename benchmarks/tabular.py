"""`python -m benchmarks.tabular`: streamserve beside an echo loop, a hand-written loop and Bytewax, on one broker.

The work is one row of 20 features as OIP JSON through StandardScaler + LogisticRegression. Broker and load driver share
one core, the peer has another alone; peers run in turn, and runs are interleaved so that a disturbance meets them all.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import job, machine, report
from benchmarks.broker import bench_broker
from benchmarks.driver import Step
from benchmarks.ending import unwind_on_sigterm
from benchmarks.measure import Bench, MeasurementFailed, measure_drain, measure_live
from benchmarks.peers.catalogue import ENSEMBLE, PEERS, Peer
from benchmarks.results import FOREIGN_CORES_LIMIT, Results, Row, append_csv, loudness, quietest
from benchmarks.targets import RATES_PER_S, honesty
from streamserve.errors import StreamserveError

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "results" / "bench"
CSV = RESULTS / "tabular.csv"
SECTIONS = ("drain", "latency", "sustained")
SUSTAINED_SHARE = 0.8
SUSTAINED_MAX_PER_S = 20_000.0
REPORT_WIDTH = 120
#: A cold JVM is slower than a warm one for whoever comes first; these are played and thrown away.
WARM_UP_DRAIN_S = 2.0
WARM_UP_STEP = Step(rate_per_s=2_000, seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    peers: tuple[Peer, ...]
    sections: tuple[str, ...]
    runs: int
    drain_runs: int
    repeats: int
    """How often a measurement that somebody else's load disturbed is made again."""
    drain_s: float
    step_s: float
    sustained_s: float
    bootstrap_servers: str | None
    keep: bool


def _names(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def _peer_names(text: str) -> tuple[str, ...]:
    return _names(text, tuple(peer.name for peer in PEERS))


def _section_names(text: str) -> tuple[str, ...]:
    return _names(text, SECTIONS)


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def read_options(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of each: figures for orientation only")
    parser.add_argument("--only", type=_peer_names, metavar="PEER,...", help="these peers only")
    parser.add_argument("--sections", type=_section_names, default=SECTIONS, help="drain,latency,sustained")
    parser.add_argument("--seconds", type=_positive, help="length of a drain, about (default 5; quick 2)")
    parser.add_argument("--step-seconds", type=_positive, help="length of one open loop (default 6; quick 4)")
    parser.add_argument("--sustained-seconds", type=_positive, help="length of the held rate (default 60; quick 15)")
    parser.add_argument(
        "--repeats", type=int, default=1, help="repeats of a disturbed measurement (default 1; quick 0)"
    )
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="use this broker instead of one of our own")
    parser.add_argument("--keep", action="store_true", help="keep configurations and logs of each measurement")
    given = parser.parse_args(arguments)
    return Options(
        peers=tuple(peer for peer in PEERS if given.only is None or peer.name in given.only),
        sections=given.sections,
        runs=1 if given.quick else 5,
        drain_runs=1 if given.quick else 3,
        repeats=0 if given.quick else given.repeats,
        drain_s=given.seconds or (2.0 if given.quick else 5.0),
        step_s=given.step_seconds or (4.0 if given.quick else 6.0),
        sustained_s=given.sustained_seconds or (15.0 if given.quick else 60.0),
        bootstrap_servers=given.bootstrap_servers,
        keep=given.keep,
    )


class Run:
    """All measurements of one command, in order, each in topics of its own."""

    def __init__(self, bench: Bench, options: Options, console: Console) -> None:
        self._bench = bench
        self._options = options
        self._console = console
        self._numbers = itertools.count(1)
        self.results = Results()

    def _app(self, peer: Peer) -> str:
        return f"bench-{next(self._numbers):03d}-{peer.name}"

    def _peers(self, section: str) -> Iterator[Peer]:
        return (peer for peer in self._options.peers if section in peer.sections)

    def _note(self, section: str, peer: Peer, run: int, measured: list[Row]) -> None:
        for row in measured:
            self.results.add(section, peer.name, run, row)
            rate = f" at {row['offered_per_s']:,.0f}/s" if "offered_per_s" in row else ""
            what = (
                f"p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.1f} ms"
                if "p50_ms" in row
                else f"{row['rate_per_s']:,.0f} requests/s"
            )
            loud = " (loud)" if loudness([row]) > FOREIGN_CORES_LIMIT else ""
            self._console.print(f"{section} {run}: {peer.name}{rate}: {what}{loud}", highlight=False)

    def _fail(self, section: str, peer: Peer, run: int, error: MeasurementFailed) -> None:
        self.results.failures.append(f"{section} {peer.name} run {run}: {error}")
        self._console.print(f"{section} {run}: {peer.name}: failed", highlight=False)

    def warm_up(self) -> None:
        echo = next(peer for peer in PEERS if peer.name == "echo")
        measure_drain(self._bench, echo, self._app(echo), WARM_UP_DRAIN_S)
        measure_live(self._bench, echo, self._app(echo), (WARM_UP_STEP,))

    def _record(self, section: str, peer: Peer, run: int, measure: Callable[[], list[Row]]) -> None:
        try:
            measured = quietest(measure, self._options.repeats)
        except MeasurementFailed as error:
            self._fail(section, peer, run, error)
        else:
            self._note(section, peer, run, measured)

    def _drain(self, peer: Peer, run: int) -> None:
        seconds = self._options.drain_s
        self._record("drain", peer, run, lambda: [measure_drain(self._bench, peer, self._app(peer), seconds)])

    def _live(self, section: str, peer: Peer, run: int, steps: tuple[Step, ...]) -> None:
        self._record(section, peer, run, lambda: measure_live(self._bench, peer, self._app(peer), steps))

    def drain(self) -> None:
        for run in range(1, self._options.drain_runs + 1):
            for peer in self._peers("drain"):
                self._drain(peer, run)

    def latency(self) -> None:
        steps = tuple(Step(rate_per_s=rate, seconds=self._options.step_s) for rate in RATES_PER_S)
        for run in range(1, self._options.runs + 1):
            for peer in self._peers("latency"):
                self._live("latency", peer, run, steps)

    def sustained(self) -> None:
        """At 80 % of what streamserve drained in this run, at most 20,000/s; the hand-written loop at the same rate."""
        drained = self.results.median("drain", "fused", "rate_per_s") or SUSTAINED_MAX_PER_S / SUSTAINED_SHARE
        rate = min(SUSTAINED_MAX_PER_S, round(SUSTAINED_SHARE * drained, -2))
        # A tenth is skipped: caches fill and allocators settle before "flat" can be asked for.
        step = Step(rate_per_s=rate, seconds=self._options.sustained_s, skip_s=self._options.sustained_s / 10)
        for peer in self._peers("sustained"):
            self._live("sustained", peer, 1, (step,))

    def play(self) -> None:
        self.warm_up()
        for section in self._options.sections:
            {"drain": self.drain, "latency": self.latency, "sustained": self.sustained}[section]()


def run_all(options: Options, console: Console) -> Results:
    cores = machine.choose_cores()
    cores.pin_this_process()
    if not cores.pinned:
        console.print("Nothing can be pinned to a core here: figures are for orientation only.")
    RESULTS.mkdir(parents=True, exist_ok=True)
    # Not the system's temporary folder: where that is memory, the broker's log would be too.
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=RESULTS))
    try:
        models = tuple(job.train_models(folder, ENSEMBLE))
        with bench_broker(folder / "broker", options.bootstrap_servers, console.print) as bootstrap_servers:
            bench = Bench(
                folder=folder,
                repository=REPOSITORY,
                bootstrap_servers=bootstrap_servers,
                cores=cores,
                model_files=models,
            )
            run = Run(bench, options, console)
            try:
                run.play()
            finally:
                append_csv(CSV, dict(machine.describe(REPOSITORY, cores)), run.results.rows)
        return run.results
    finally:
        if options.keep:
            console.print(f"Configurations and logs: {folder}", highlight=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """0: measured and right. 1: INVALID, wrong answers, or a peer failed. A missed number is only reported."""
    unwind_on_sigterm()
    # In a file or a pipe nobody scrolls sideways: let the tables be as wide as they are.
    console = Console() if sys.stdout.isatty() else Console(width=REPORT_WIDTH)
    try:
        results = run_all(read_options(sys.argv[1:]), console)
    except (StreamserveError, MeasurementFailed) as error:
        console.print(str(error), markup=False, highlight=False)
        return 1
    report.print_report(console, results)
    console.print(f"Appended to {CSV}", highlight=False)
    return int(bool(results.failures or results.wrong() or honesty(results).reached is False))


if __name__ == "__main__":
    sys.exit(main())
