"""`kill -9` of each role under load: nothing acknowledged is lost, and normal service is back soon."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import PATIENCE, TIMEOUT_S, Up, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

RATE_PER_S = 200
BEFORE_S = 1.5
GAP_S = 2.3
AFTER_S = GAP_S * PATIENCE + 1.0
"""Longer than any gap that is allowed."""
DEADLINE_MS = 1_000
SESSION_MS = 6_000
MODEL = """
import numpy as np

def tens(batch):
    return batch[:, 0].astype(np.int64) // 10

def units(batch):
    return batch[:, 0].astype(np.int64) // 10
"""
CONFIG = f"""
[app]
name = "APP"
partitions = 4

POOLS

[group]
session_timeout_ms = {SESSION_MS}

[models.tens]
source = "acceptance_models:tens"

[models.units]
source = "acceptance_models:units"

[routes.main]
models = ["tens", "units"]
policy = "hedge"
deadline_ms = {DEADLINE_MS}
decide_early = false
"""
FUSED = CONFIG.replace("POOLS", '[pools.main]\nmodels = ["tens", "units"]')
SPLIT = CONFIG.replace("POOLS", '[pools.left]\nmodels = ["tens"]\n\n[pools.right]\nmodels = ["units"]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was sent while a process was killed."""

    killed_ms: float
    requests: list[tuple[str, int]]
    feedback: list[tuple[str, int]]


def load_around(client: Foreign, kill: Callable[[], None], run: str) -> Load:
    """Requests at a steady rate, each prediction's label fed back as it comes; `kill` is called on the way."""
    requests: list[tuple[str, int]] = []
    feedback: list[tuple[str, int]] = []
    taught: set[str] = set()
    killed_ms, began_s = 0.0, time.monotonic()
    while (passed_s := time.monotonic() - began_s) < BEFORE_S + AFTER_S:
        if not killed_ms and passed_s >= BEFORE_S:
            killed_ms = time.time() * 1000
            kill()
        while len(requests) < passed_s * RATE_PER_S:
            tag = (run, len(requests))
            client.send(oip([float(len(requests)), 1.0], [1, 2]), tag=tag)
            requests.append(tag)
        for prediction in client.hear(1 / RATE_PER_S):
            if prediction.ref not in taught:
                taught.add(prediction.ref)
                feedback.append((f"{run} feedback", len(feedback)))
                teach(client, prediction, feedback[-1])
    client.flush()
    return Load(killed_ms=killed_ms, requests=requests, feedback=feedback)


def teach(client: Foreign, prediction: Seen, tag: tuple[str, int]) -> None:
    value = json.dumps({"id": prediction.ref, "label": 0}).encode()
    headers = [("ss-ref", prediction.headers["ss-ref"])]
    client.send(value, tag=tag, kind="feedback", headers=headers, partition=prediction.partition)


def killing(up: Up, name: str) -> Callable[[], None]:
    return lambda: os.kill(up.role(name)["pid"], signal.SIGKILL)


def check_nothing_lost(client: Foreign, load: Load, name: str) -> None:
    """Every acknowledged request has a terminal record, and of two records both say the same."""
    answers = client.answers(load.requests)
    for tag, answer in answers.items():
        if answer.outcome in ("ok", "partial"):
            assert answer.label == [tag[1] // 10]
    records = [client.predictions[client.ref(tag)] for tag in load.requests]
    twice = [found for found in records if len(found) > 1]
    print(
        f"{name} killed: {len(records)} requests, {Counter(found[0].outcome for found in records)}, "
        f"{len(twice)} answered twice"
    )
    for first, *others in twice:
        for other in others:
            assert (other.json["outputs"], other.outcome) == (first.json["outputs"], first.outcome)
            assert other.append_ms - load.killed_ms < SESSION_MS * PATIENCE


def longest_gap_s(records: list[Seen], killed_ms: float, parts: int) -> float:
    """The longest time, in any partition, between two of these records of which the later came after the kill."""
    gaps = []
    for part in range(parts):
        stamps = np.sort([record.append_ms for record in records if record.partition == part])
        if len(stamps):  # outcomes of one learnt state are all in one partition
            gaps.append(np.diff(stamps)[stamps[1:] >= killed_ms].max())
    return float(max(gaps)) / 1000


def check_back(records: list[Seen], load: Load, client: Foreign, name: str) -> None:
    gap_s = longest_gap_s(records, load.killed_ms, client.partitions)
    print(f"{name} killed: normal service back after {gap_s:.2f} s")
    last_ms = max(record.append_ms for record in records)
    assert last_ms - load.killed_ms > (AFTER_S - 1) * 1000  # it serves until the end of the load
    assert gap_s <= GAP_S * PATIENCE


def check_learnt_once(client: Foreign, load: Load) -> None:
    """Each feedback taught exactly once: one outcome, and the final state has counted as many as can teach."""
    taught = {client.acknowledged[tag] for tag in client.acknowledged if tag[0].endswith(" feedback")}
    assert {client.acknowledged[tag] for tag in load.feedback} <= taught
    until = time.monotonic() + TIMEOUT_S
    while True:
        outcomes = [record.json for record in client.read("outcomes")]
        by_feedback = {tuple(outcome["feedback"]): outcome for outcome in outcomes}
        counted = [record.json["data"]["events"] for record in client.read("epochs")]
        informative = sum(bool(outcome["losses"]) for outcome in by_feedback.values())
        if by_feedback.keys() == taught and counted and counted[-1] >= informative:
            break
        assert time.monotonic() < until, (
            f"{len(taught)} sent, {len(outcomes)} outcomes of {len(by_feedback)} feedback, "
            f"{informative} informative, counted {counted[-3:]}"
        )
    print(f"feedback: {len(taught)} sent, {len(outcomes)} outcomes, {informative} with losses, {counted[-1]} counted")
    assert counted[-1] == informative
    assert counted == sorted(counted)


def ok_of(client: Foreign, load: Load) -> list[Seen]:
    records = [client.predictions[client.ref(tag)][0] for tag in load.requests]
    return [record for record in records if record.outcome == "ok"]


def wait_until_back(up: Up, name: str) -> None:
    assert up.next("restarted")["name"] == name


@pytest.mark.parametrize(
    ("config", "roles"),
    [
        pytest.param(FUSED, ("worker-main-0", "learn-0"), id="fused"),
        pytest.param(SPLIT, ("worker-left-0", "aggregate-0", "learn-0"), id="split"),
    ],
)
def test_killed_roles_lose_nothing(config: str, roles: tuple[str, ...], broker: BrokerForTests, tmp_path: Path) -> None:
    file = project(tmp_path, config=config, model=MODEL, servers=broker.bootstrap_servers)
    with serving(file, state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        for name in roles:
            up.wait_for_spare(name)
            load = load_around(client, killing(up, name), name)
            wait_until_back(up, name)
            check_nothing_lost(client, load, name)
            check_learnt_once(client, load)
            check_back(ok_of(client, load), load, client, name)
            if name == "learn-0":
                check_back(client.read("outcomes"), load, client, f"{name} (learning)")
        up.stop()
