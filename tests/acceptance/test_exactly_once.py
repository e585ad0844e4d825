"""`delivery = "exactly_once"` under load while everything dies in turn, for a reader that keeps no dedupe at all."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streamserve.kafka.brokers.options import BrokerOptions
from streamserve.kafka.brokers.own import OwnBroker
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import TIMEOUT_S, Up, project, serving
from tests.acceptance.test_kill import MODEL

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(240)]

RATE_PER_S = 200
SESSION_S = 2.0
GAP_S = 1.2
CONFIG = f"""
[app]
name = "APP"
partitions = 4
delivery = "exactly_once"

POOLS

[group]
session_timeout_ms = {SESSION_S * 1000:.0f}
heartbeat_interval_ms = 200

[models.tens]
source = "acceptance_models:tens"

[models.units]
source = "acceptance_models:units"

[routes.main]
models = ["tens", "units"]
policy = "hedge"
deadline_ms = 1000
decide_early = false
"""
FUSED = CONFIG.replace("POOLS", '[pools.main]\nmodels = ["tens", "units"]\nprocesses = 2')
SPLIT = CONFIG.replace(
    "POOLS", '[pools.left]\nmodels = ["tens"]\n[pools.right]\nmodels = ["units"]\n[aggregator]\nprocesses = 2'
)
#: Every so many requests and feedback records cannot be read; every so many feedback records name nothing, or come to
#: another partition than their prediction's.
BAD_EVERY = 7
NAMELESS_EVERY = 11
MISPLACED_EVERY = 5
BAD, NAMELESS = b"{this is no JSON", b'{"label": 1}'


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnBroker]:
    """One that may be killed."""
    with OwnBroker(BrokerOptions(state_dir=tmp_path / "broker")) as broker:
        yield broker


@dataclass
class Faults:
    """What happens to the processes of an app."""

    up: Up
    broker: OwnBroker
    pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pids = {role["name"]: role["pid"] for role in self.up.ready["roles"]}

    def kill(self, name: str) -> Callable[[], None]:
        return lambda: os.kill(self.pids[name], signal.SIGKILL)

    def stop(self, name: str) -> Callable[[], None]:
        return lambda: os.kill(self.pids[name], signal.SIGSTOP)

    def go_on(self, name: str) -> Callable[[], None]:
        return lambda: os.kill(self.pids[name], signal.SIGCONT)

    def kill_broker(self) -> None:
        self.broker.kill_node(1)
        self.broker.start_node(1)


def play(client: Foreign, faults: list[tuple[float, Callable[[], None]]]) -> None:
    """Requests at a steady rate, each prediction fed back once, each fault so many seconds after the one before."""
    taught: set[str] = set()
    waiting, sent, began_s, last_s = list(faults), 0, time.monotonic(), 0.0
    while (passed_s := time.monotonic() - began_s) < last_s + GAP_S or waiting:
        if waiting and passed_s >= last_s + waiting[0][0]:
            waiting.pop(0)[1]()
            last_s = time.monotonic() - began_s
        while sent < passed_s * RATE_PER_S:
            value = oip([float(sent), 1.0], [1, 2]) if sent % BAD_EVERY else BAD
            client.send(value, tag=("request", sent))
            sent += 1
        for prediction in client.hear(1 / RATE_PER_S):
            if prediction.ref in taught or prediction.outcome not in ("ok", "partial"):
                continue
            taught.add(prediction.ref)
            tag = ("feedback", len(taught))
            if len(taught) % BAD_EVERY and len(taught) % NAMELESS_EVERY:
                elsewhere = not len(taught) % MISPLACED_EVERY
                teach(client, prediction, tag, (prediction.partition + elsewhere) % client.partitions)
            else:
                value = NAMELESS if len(taught) % BAD_EVERY else BAD
                client.send(value, tag=tag, kind="feedback", partition=prediction.partition)
    client.flush()


def teach(client: Foreign, prediction: Seen, tag: Any, partition: int) -> None:
    value = json.dumps({"id": prediction.ref, "label": 0}).encode()
    headers = [("ss-ref", prediction.headers["ss-ref"])]
    client.send(value, tag=tag, kind="feedback", headers=headers, partition=partition)


def places(records: list[Seen], kind: str = "") -> set[tuple[Any, ...]]:
    return {
        (kind, record.partition, record.offset) if kind else (record.partition, record.offset) for record in records
    }


def dead_letter_of(record: Seen) -> tuple[str, int, int]:
    topic, partition, offset = (record.headers[f"__connect.errors.{name}"] for name in ("topic", "partition", "offset"))
    return topic.decode(), int(partition), int(offset)


def check_each_once(client: Foreign) -> None:
    """Every input has led to what it should, once, as the topics stand in the log."""
    requests = client.read("requests")
    feedback = [record for record in client.read("feedback") if "ss-origin" not in record.headers]  # as it first landed
    bad = places([r for r in requests if r.value == BAD], client.topics["requests"])
    bad |= places([r for r in feedback if r.value in (BAD, NAMELESS)], client.topics["feedback"])
    wanted = {
        "predictions": {f"{partition}-{offset}" for partition, offset in places(requests)},
        "outcomes": places([r for r in feedback if r.value not in (BAD, NAMELESS)]),
        "dlq": bad,
    }
    about: dict[str, Callable[[Seen], Any]] = {
        "predictions": lambda record: record.ref,
        "outcomes": lambda record: tuple(json.loads(record.value or b"")["feedback"]),
        "dlq": dead_letter_of,
    }
    until = time.monotonic() + TIMEOUT_S
    found: dict[str, Counter[Any]] = {}
    for kind, expected in wanted.items():
        while True:
            found[kind] = Counter(map(about[kind], client.read(kind)))
            if expected <= found[kind].keys():
                break
            missing = sorted(expected - found[kind].keys())
            assert time.monotonic() < until, f"{len(missing)} of {kind} are missing: {missing[:10]}"
    for kind, counts in found.items():
        twice = {what: n for what, n in counts.items() if n > 1}
        print(f"{kind}: {len(wanted[kind])} expected, {counts.total()} records, {len(twice)} more than once")
    assert {kind: [what for what, n in counts.items() if n > 1] for kind, counts in found.items()} == {
        kind: [] for kind in found
    }
    assert {kind: set(counts) for kind, counts in found.items()} == wanted


@pytest.mark.parametrize(
    ("config", "names"),
    [
        pytest.param(FUSED, ("worker-main-0", "worker-main-1", "worker-main-1"), id="fused"),
        pytest.param(SPLIT, ("worker-left-0", "aggregate-0", "aggregate-1"), id="split"),
    ],
)
def test_each_record_stands_once_whatever_dies(
    config: str, names: tuple[str, str, str], own: OwnBroker, tmp_path: Path
) -> None:
    file = project(tmp_path, config=config, model=MODEL, servers=own.bootstrap_servers)
    with serving(file, state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        faults = Faults(up, own)
        first, second, stopped = names
        play(
            client,
            [
                (GAP_S, faults.kill(first)),
                (GAP_S, faults.stop(stopped)),
                (1.5 * SESSION_S, faults.go_on(stopped)),
                (GAP_S, faults.kill("learn-0")),
                (GAP_S, faults.kill_broker),
                (GAP_S, faults.kill(second)),
            ],
        )
        check_each_once(client)
        up.wait_for_spare(second)  # else the stop meets a process that is still being started
        up.stop()
