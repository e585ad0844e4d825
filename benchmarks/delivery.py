"""`python -m benchmarks.delivery`: what exactly-once delivery costs beside at-least-once, on one broker.

Three parts: the whole app in both modes (open loops and a drain, as in `benchmarks.tabular`), a take-over, and a batch
written in three ways: plainly, behind a fence, and in a Kafka transaction of its own with its offsets.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from aiokafka import AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from aiokafka.producer import sender as aiokafka_sender
from rich.console import Console
from rich.table import Table

from benchmarks import job, machine
from benchmarks.broker import bench_broker
from benchmarks.driver import Step
from benchmarks.ending import unwind_on_sigterm
from benchmarks.measure import Bench, MeasurementFailed, create_topics, measure_drain, measure_live
from benchmarks.peers.catalogue import PEERS, Peer, Place, Plan
from benchmarks.results import Results, append_csv
from streamserve.errors import StreamserveError
from streamserve.kafka.fencing import Fences, Transactions
from streamserve.kafka.ports import Ack, At, Columns, Record
from streamserve.kafka.writer import KafkaWriter

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "results" / "bench"
CSV = RESULTS / "delivery.csv"
MODES = ("at_least_once", "exactly_once")
FORMS = {"fused": "fused", "three-hop": "split"}
RATES_PER_S = (200.0, 1_000.0)
BATCHES = (1, 64)
VALUE = b"x" * 300


def in_mode(peer: Peer, mode: str) -> Peer:
    """The same peer, with the delivery set by the environment."""

    def plan(place: Place) -> Plan:
        made = peer.plan(place)
        return replace(made, environment={**made.environment, "STREAMSERVE_APP__DELIVERY": mode})

    return replace(peer, name=f"{FORMS[peer.name]} {mode}", plan=plan)


def measure_apps(
    bench: Bench, console: Console, forms: tuple[str, ...], *, runs: int, step_s: float, drain_s: float
) -> Results:
    results, numbers = Results(), itertools.count(1)
    peers = [in_mode(peer, mode) for peer in PEERS if FORMS.get(peer.name) in forms for mode in MODES]
    steps = tuple(Step(rate_per_s=rate, seconds=step_s) for rate in RATES_PER_S)
    measure_drain(bench, peers[0], "delivery-000", 1.0)  # a cold JVM is slower for whoever comes first
    for run in range(1, runs + 1):
        for peer in peers:
            try:
                for row in measure_live(bench, peer, f"delivery-{next(numbers):03d}", steps):
                    results.add("latency", peer.name, run, row)
                results.add(
                    "drain", peer.name, run, measure_drain(bench, peer, f"delivery-{next(numbers):03d}", drain_s)
                )
            except MeasurementFailed as error:
                results.failures.append(f"{peer.name} run {run}: {error}")
            told = [row for row in results.rows if (row["peer"], row["run"]) == (peer.name, run)]
            console.print(f"run {run}: {peer.name}: {'; '.join(map(_in_words, told))}", highlight=False)
    return results


def _in_words(row: dict[str, Any]) -> str:
    cpu = f"CPU {1_000 * row['cpu_s_per_1000']:,.0f} ms/1,000, others had {row.get('foreign_cores') or 0:.1f} cores"
    if row["section"] == "drain":
        return f"drained {row['rate_per_s']:,.0f}/s, {cpu}"
    return f"{row['offered_per_s']:,.0f}/s p50 {row['p50_ms']:.1f} p99 {row['p99_ms']:.1f} ms, {cpu}"


def print_apps(console: Console, results: Results) -> None:
    table = Table("app", title="One model, one row a request", title_justify="left")
    for rate in RATES_PER_S:
        for column in (f"{rate:,.0f}/s p50 ms", "p99 ms", "CPU ms/1,000"):
            table.add_column(column, justify="right")
    table.add_column("drained/s", justify="right")
    table.add_column("CPU ms/1,000", justify="right")
    for peer in dict.fromkeys(row["peer"] for row in results.rows):
        cells = []
        for rate in RATES_PER_S:
            cells += [_cell(results, "latency", peer, "p50_ms", rate), _cell(results, "latency", peer, "p99_ms", rate)]
            cells.append(_cell(results, "latency", peer, "cpu_s_per_1000", rate, 1_000))
        cells += [_cell(results, "drain", peer, "rate_per_s", None, digits=0)]
        cells += [_cell(results, "drain", peer, "cpu_s_per_1000", None, 1_000)]
        table.add_row(peer, *cells)
    console.print(table)


def _cell(
    results: Results, section: str, peer: str, what: str, rate: float | None, scale: float = 1.0, digits: int = 1
) -> str:
    value = results.median(section, peer, what, rate)
    return "-" if value is None else f"{value * scale:,.{digits}f}"


class Writing:
    """One process that writes batches to two topics of one app."""

    def __init__(self, servers: str) -> None:
        self.app = f"delivery-{uuid.uuid4().hex[:8]}"
        self.servers, self.options = servers, {"bootstrap_servers": servers}
        self.topics = (f"{self.app}.predictions", f"{self.app}.dlq")
        self.writer = KafkaWriter(self.options)
        self.fences = self.owner()
        self.producers: list[AIOKafkaProducer] = []
        self._turn = 0

    def owner(self) -> Fences:
        return Fences(
            Transactions(self.options, self.app),
            prefix=f"{self.app}.terminal",
            covers=lambda number: [At(topic, number) for topic in self.topics],
            send=self.writer.send,
        )

    async def start(self) -> None:
        create_topics(self.servers, self.topics)
        await self.writer.start()
        await self.fences.start()
        # As quick as aiokafka's transactions get: two ids in turn, and 1 ms wherever it waits for the broker.
        aiokafka_sender.BACKOFF_OVERRIDE = 0.001
        for name in ("a", "b"):
            producer = AIOKafkaProducer(
                **self.options, transactional_id=f"{self.app}.{name}", linger_ms=0, retry_backoff_ms=1
            )
            await producer.start()
            self.producers.append(producer)

    async def stop(self) -> None:
        for producer in self.producers:
            await producer.stop()
        await self.fences.stop()
        await self.writer.stop()

    async def plain(self, n: int) -> None:
        _checked(await self.writer.send(At(self.topics[0], 0), _records(n)))

    async def fenced(self, n: int) -> None:
        _checked(await self.fences.send(1, At(self.topics[0], 1), _records(n)))

    async def transaction(self, n: int) -> None:
        producer, topic = self.producers[self._turn % 2], self.topics[0]
        self._turn += 1
        await producer.begin_transaction()
        builder = producer.create_batch()
        for _ in range(n):
            builder.append(timestamp=None, key=None, value=VALUE)
        await (await producer.send_batch(builder, topic, partition=2))
        offsets = {TopicPartition(self.topics[1], 2): OffsetAndMetadata(self._turn, "")}
        await producer.send_offsets_to_transaction(offsets, f"{self.app}.group")
        await producer.commit_transaction()


def _records(n: int) -> Columns:
    return Columns.of([Record(value=VALUE)] * n)


def _checked(ack: Ack) -> None:
    if ack.error:
        raise MeasurementFailed(ack.error)


async def _times_ms(write: Callable[[int], Awaitable[None]], n: int, turns: int) -> list[float]:
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        await write(n)
        times.append(1_000 * (time.perf_counter() - began))
    return times


async def measure_writing(servers: str, turns: int) -> dict[str, Any]:
    """p50 and p99 of a batch in each way, the ways interleaved; and of a take-over."""
    writing = Writing(servers)
    await writing.start()
    try:
        await writing.fences.take([1])
        ways = {"plain": writing.plain, "behind a fence": writing.fenced, "a transaction": writing.transaction}
        times: dict[tuple[str, int], list[float]] = {(way, n): [] for way in ways for n in BATCHES}
        for part in range(11):
            for way, n in times:
                measured = await _times_ms(ways[way], n, turns // 10)
                times[way, n] += measured if part else []  # the first warms up
        successor, takeovers = writing.owner(), {}
        await successor.start()
        for count in (1, 4):
            takeovers[count] = await _times_ms(lambda n: successor.take(range(n)), count, 40)
        await successor.stop()
        return {"batches": times, "takeovers": takeovers}
    finally:
        await writing.stop()


def print_writing(console: Console, measured: dict[str, Any]) -> None:
    table = Table("what", "p50 ms", "p99 ms", title="A batch until it stands in the log", title_justify="left")
    for (way, n), times in measured["batches"].items():
        table.add_row(f"{way}, {n} records", f"{median(times):.2f}", f"{np.percentile(times, 99):.1f}")
    for count, times in measured["takeovers"].items():
        table.add_row(f"fences of {count} partitions raised", f"{median(times):.1f}", f"{np.percentile(times, 99):.1f}")
    console.print(table)


def main() -> int:
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--step-seconds", type=float, default=6.0)
    parser.add_argument("--drain-seconds", type=float, default=3.0)
    parser.add_argument("--forms", type=lambda text: tuple(text.split(",")), default=tuple(FORMS.values()))
    parser.add_argument("--only-writing", action="store_true", help="no apps: batches and take-overs only")
    given = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=150)
    cores = machine.choose_cores()
    cores.pin_this_process()
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=RESULTS))
    try:
        with bench_broker(folder / "broker", None, console.print) as servers:
            if not given.only_writing:
                models = tuple(job.train_models(folder, 1))
                bench = Bench(
                    folder=folder, repository=REPOSITORY, bootstrap_servers=servers, cores=cores, model_files=models
                )
                results = measure_apps(
                    bench, console, given.forms, runs=given.runs, step_s=given.step_seconds, drain_s=given.drain_seconds
                )
                append_csv(CSV, dict(machine.describe(REPOSITORY, cores)), results.rows)
                print_apps(console, results)
                for failure in results.failures:
                    console.print(failure, markup=False, highlight=False)
            print_writing(console, asyncio.run(measure_writing(servers, 400)))
    except (StreamserveError, MeasurementFailed) as error:
        console.print(str(error), markup=False, highlight=False)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
