"""SIGTERM of one of two processes under `up`: its loaded twin has its partitions, and the other one keeps its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import foreign_client, oip
from tests.acceptance.running import TIMEOUT_S, Up, metric, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = """
import numpy as np

def tens(batch):
    return batch[:, 0].astype(np.int64) // 10
"""
CONFIG = """
[app]
name = "APP"
partitions = 4

[pools.main]
models = ["tens"]
processes = 2

[models.tens]
source = "acceptance_models:tens"

[routes.main]
models = ["tens"]
policy = "static"
deadline_ms = 5000
"""


def moved(port: int) -> float:
    return metric(port, "streamserve_rebalances_total")


def have_two_partitions_each(*ports: int) -> None:
    until = time.monotonic() + TIMEOUT_S
    while (found := [metric(port, "streamserve_assigned_partitions") for port in ports]) != [2.0] * len(ports):
        assert time.monotonic() < until, found


def ended(up: Up, name: str) -> dict[str, Any]:
    while (news := up.next("exited"))["name"] != name:
        pass
    return news


def test_nothing_moves_but_to_the_twin(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        leaver, stayer = (role for role in up.ready["roles"] if role["role"] == "worker")
        up.wait_for_spare(leaver["name"])
        have_two_partitions_each(leaver["metrics_port"], stayer["metrics_port"])
        before = moved(stayer["metrics_port"])
        tags = [("before", number) for number in range(100)]
        for tag in tags:
            client.send(oip([float(tag[1]), 1.0], [1, 2]), tag=tag)
        os.kill(leaver["pid"], signal.SIGTERM)
        after = [("after", number) for number in range(100)]
        for tag in after:
            client.send(oip([float(tag[1]), 1.0], [1, 2]), tag=tag)
        news = ended(up, leaver["name"])
        assert (news["exit_code"], news["restarts_in_s"]) == (0, 0.0)
        twin = up.next("restarted")
        assert (twin["name"], twin["pid"] != leaver["pid"]) == (leaver["name"], True)
        answers = client.answers([*tags, *after])
        assert {answer.outcome for answer in answers.values()} == {"ok"}
        assert all(answer.label == [tag[1] // 10] for tag, answer in answers.items())
        assert moved(stayer["metrics_port"]) == before  # the other one was not asked to give up anything
        have_two_partitions_each(stayer["metrics_port"], twin["metrics_port"])
        up.stop()
