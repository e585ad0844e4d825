"""What the join's window costs in memory and on disk, in microseconds a record: `python -m benchmarks.join_window`.

Each store takes `RECORDS` predictions of `RAW_BYTES` that arrive nearly in order, is asked for some of them at random,
and forgets them fetch by fetch, as the join does. Processor time of the whole process, RocksDB's own threads too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from streamserve.core.records import PredictionRecord
from streamserve.core.stages.join_window import MemoryPredictions, PredictionStore
from streamserve.kafka.window_store import RocksWindow

RECORDS = 400_000
LOOK_UPS = 50_000
RAW_BYTES = 420
FETCH = 200
#: Predictions leave an aggregator in another order than their requests came, by about a deadline.
SHUFFLED = 50
AMPLE_BYTES = 1 << 40


def fetches() -> Iterator[list[PredictionRecord]]:
    """Ids of 16 characters; half of each record does not compress, as labels and numbers do not."""
    draw = random.Random(1)
    order = sorted(range(RECORDS), key=lambda offset: offset + draw.randrange(SHUFFLED))
    same = b"x" * (RAW_BYTES // 2)
    for start in range(0, RECORDS, FETCH):
        yield [
            PredictionRecord(
                request_offset=offset, append_ms=start, id=f"{offset:016d}", raw=same + draw.randbytes(RAW_BYTES // 2)
            )
            for offset in order[start : start + FETCH]
        ]


def seconds(work: Callable[[Any], object], arguments: Iterable[Any]) -> float:
    """Of the calls alone, not of making their arguments."""
    total = 0.0
    for argument in arguments:
        start = time.process_time()
        work(argument)
        total += time.process_time() - start
    return total


def resident_mib() -> float:
    """Of this process, where the system tells it (Linux); else 0."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20) if status.exists() else 0.0


def measure(name: str, store: PredictionStore) -> None:
    def put(fetch: list[PredictionRecord]) -> None:
        for record in fetch:
            store.put(record)

    def by_offset(offsets: list[int]) -> None:
        for offset in offsets:
            store.by_offset(offset)

    def by_id(ids: list[str]) -> None:
        for id_ in ids:
            store.by_id(id_)

    draw = random.Random(2)
    asked = [draw.randrange(RECORDS) for _ in range(LOOK_UPS)]
    before_mib = resident_mib()
    figures = [seconds(put, fetches()) / RECORDS]
    grown_mib = resident_mib() - before_mib
    figures.append(seconds(by_offset, [asked]) / LOOK_UPS)
    figures.append(seconds(by_id, [[f"{offset:016d}" for offset in asked]]) / LOOK_UPS)
    figures.append(seconds(store.expire, range(FETCH, RECORDS + FETCH, FETCH)) / RECORDS)
    cells = "".join(f"{figure * 1e6:>11.2f}" for figure in figures)
    print(f"{name:<10}{cells}{grown_mib:>14.0f}")


def main(arguments: list[str]) -> None:
    """Each store in a process of its own: memory that one gives back would hide what the next one takes."""
    if arguments == ["memory"]:
        measure("memory", MemoryPredictions(AMPLE_BYTES))
    elif arguments == ["rocksdb"]:
        with tempfile.TemporaryDirectory() as folder, RocksWindow(Path(folder), AMPLE_BYTES)(0) as store:
            measure("rocksdb", store)
    else:
        print(f"{'':<10}{'put':>11}{'by offset':>11}{'by id':>11}{'forget':>11}{'resident MiB':>14}", flush=True)
        for name in ("memory", "rocksdb"):
            subprocess.run([sys.executable, "-m", "benchmarks.join_window", name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
