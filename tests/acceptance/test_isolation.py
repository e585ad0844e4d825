"""An isolated model that crashes and hangs in a worker on a real broker: only its answers are missing."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import PATIENCE, STOP_S, Up, metric, project, serving
from tests.processes import alive

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240)]

BACK_S = 2.0
MODEL = """
import ctypes
import os
import numpy as np

def numbers(batch):
    return batch[:, 0].astype(np.int64)

def fragile(batch):
    if 666 in batch:
        ctypes.string_at(0)
    while 777 in batch:
        pass
    return batch[:, 0].astype(np.int64)

def pid(batch):
    return np.full(len(batch), os.getpid())
"""
CONFIG = """
[app]
name = "APP"
partitions = 1

[pools.main]
models = ["numbers", "fragile", "pid"]

[models.numbers]
source = "acceptance_models:numbers"

[models.fragile]
source = "acceptance_models:fragile"
isolation = "process"
call_timeout_ms = 300

[models.pid]
source = "acceptance_models:pid"
isolation = "process"

[routes.both]
models = ["numbers", "fragile"]
decide_early = false
deadline_ms = 3000

[routes.pid]
models = ["pid"]
deadline_ms = 3000
"""


@pytest.fixture(scope="module")
def up(broker: BrokerForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("isolated")
    config = project(folder, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, "--no-spares", state=folder / "state") as app:
        yield app
        assert app.stop() <= STOP_S


@pytest.fixture
def client(up: Up) -> Iterator[Foreign]:
    with foreign_client(up.ready) as foreign:
        yield foreign


_values = itertools.count(1)


def ask(client: Foreign, route: str, value: float | None = None) -> Seen:
    """A value of its own where none is given, so that none comes from the cache."""
    number = next(_values)
    x = 10_000.0 + number if value is None else value
    client.send(oip([x, float(number)], [1, 2]), tag=number, headers=[("ss-route", route.encode())])
    return client.answers([number])[number]


def test_trouble_costs_only_its_own_answers_and_it_is_back(up: Up, client: Foreign) -> None:
    port = up.role("worker-main-0")["metrics_port"]
    assert ask(client, "both").outcome == "ok"
    for restarts, trouble in enumerate((666.0, 777.0), 1):
        answer = ask(client, "both", trouble)
        assert (answer.outcome, answer.label) == ("partial", [int(trouble)])
        assert answer.parameters["missing"] == "fragile@1=model_error"
        fell_s = time.monotonic()
        while (answer := ask(client, "both")).outcome != "ok":
            assert answer.label, answer.parameters  # the other has answered
            assert time.monotonic() - fell_s <= BACK_S * PATIENCE
        assert metric(port, "streamserve_model_process_restarts_total", model="fragile@1") == restarts
    assert metric(port, "streamserve_model_process_up", model="fragile@1") == 1


def test_a_worker_that_is_killed_leaves_no_process_of_a_model(up: Up, client: Foreign) -> None:
    (pid,) = ask(client, "pid").label
    child = psutil.Process(pid)
    worker = psutil.Process(up.role("worker-main-0")["pid"])
    assert child.ppid() == worker.pid
    worker.send_signal(signal.SIGKILL)
    assert alive([child], STOP_S) == []
    while not (answer := ask(client, "pid")).label:
        pass
    assert answer.label != [pid]
