"""Confidence on a real broker: labels go in, and predictions say how sure they are, in numbers that were learnt."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import TIMEOUT_S, Up, metric, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(400)]

ASKED = 300
MODEL = """
import numpy as np
from streamserve.runtimes import Outputs

def probable(labels):
    rows = np.full((len(labels), 4), 0.1)
    rows[np.arange(len(labels)), labels] = 0.7
    return Outputs(labels=labels, probabilities=rows)

def one(batch):
    return probable(batch[:, 0].astype(np.int64) % 4)

def two(batch):
    return probable(batch[:, 0].astype(np.int64) % 4)

def odd(batch):
    return probable((batch[:, 0].astype(np.int64) + batch[:, 0].astype(np.int64) % 2) % 4)
"""
CONFIG = """
[app]
name = "APP"
partitions = 2

[pools.main]
models = ["one", "two", "odd"]

[models.one]
source = "acceptance_models:one"

[models.two]
source = "acceptance_models:two"

[models.odd]
source = "acceptance_models:odd"

[routes.main]
models = ["one", "two", "odd"]
combine = "mean_probability"
deadline_ms = 60000
decide_early = false
confidence_threshold = 0.5
below_threshold = "abstain"

[routes.main.confidence]
coverage = 0.9
half_life_events = 100
"""


def ask(client: Foreign, first: int, n: int) -> list[Seen]:
    tags = list(range(first, first + n))
    for tag in tags:
        client.send(oip([float(tag), 0.0], [1, 2], id=str(tag)), tag=tag)
    answers = client.answers(tags)
    return [answers[tag] for tag in tags]


def teach(client: Foreign, answers: list[Seen]) -> None:
    """Where all three agree they are right; where two do, in every fourth case only."""
    for number, answer in enumerate(answers):
        tag = int(answer.json["id"])
        right = tag % 2 == 0 or number % 8 == 1
        value = json.dumps({"label": tag % 4 if right else (tag + 2) % 4}).encode()
        place = [("ss-ref", answer.headers["ss-ref"])]
        client.send(value, tag=("taught", tag), kind="feedback", headers=place, partition=answer.partition)
    client.flush()


def wait_for_labels(client: Foreign, wanted: int) -> None:
    until = time.monotonic() + TIMEOUT_S
    while True:
        states = [record.json["data"]["confidence"] for record in client.read("epochs")]
        if states and states[-1]["calibration"]["counts"]["events"] >= wanted:
            return
        assert time.monotonic() < until, states[-1:]


def test_labels_teach_how_sure_answers_are(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        before = ask(client, 0, ASKED)
        agreed, split = before[0].parameters, before[1].parameters
        assert (agreed["agreement"], agreed["confidence"]) == (1.0, 1.0)
        assert split["agreement"] == split["confidence"] == pytest.approx(2 / 3, abs=1e-6)
        teach(client, before)
        wait_for_labels(client, ASKED)
        time.sleep(1.0)  # states hold from 250 ms after they were published
        after = ask(client, ASKED, 50)
        check_agreed(after[0])
        check_split(after[1])
        check_metrics(up)
        up.stop()


def check_agreed(answer: Seen) -> None:
    assert answer.parameters["confidence"] > 0.97
    (in_set,) = (tensor for tensor in answer.json["outputs"] if tensor["name"] == "in_set")
    assert (in_set["datatype"], in_set["shape"]) == ("BOOL", [1, 4])
    assert in_set["data"][int(answer.label[0])] is True
    assert answer.parameters["set_size"] == sum(in_set["data"])
    assert answer.parameters["classes"] == "0,1,2,3"


def check_split(answer: Seen) -> None:
    """It was wrong so often that nothing is said any more; what it would have been stands beside."""
    assert (answer.outcome, answer.reason, answer.label) == ("default", "abstained", [])
    assert answer.parameters["confidence"] == pytest.approx(0.25, abs=0.12)
    assert [tensor["data"] for tensor in answer.json["outputs"] if tensor["name"] == "withheld"] == [[(ASKED + 1) % 4]]


def check_metrics(up: Up) -> None:
    port = up.role("worker-main-0")["metrics_port"]
    assert 0.0 <= metric(port, "streamserve_confidence", route="main", context="", figure="calibration_error") <= 0.2
    assert metric(port, "streamserve_confidence", route="main", context="", figure="coverage") >= 0.6
    assert metric(port, "streamserve_confidence", route="main", context="", figure="set_size") >= 1.0
