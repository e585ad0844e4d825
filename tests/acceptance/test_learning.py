"""Learning, seen from outside: feedback goes in, and the predictions' models, weights and probabilities change."""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import COMMAND, TIMEOUT_S, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(240)]

ASKED = 400
BLOCK = 50
ETA = 0.1
GAMMA = 0.1
ONE = 1 << 32
MODELS = ("right@1", "wrong@1", "random@1")

MODEL = """
import numpy as np
from streamserve.runtimes import Outputs

def right(batch):
    return batch[:, 0].astype(np.int64) % 10

def wrong(batch):
    return (batch[:, 0].astype(np.int64) + 1) % 10

def random(batch):
    return (batch[:, 0] * 7919 % 101).astype(np.int64) % 10

def probable(labels, sure):
    rows = np.full((len(labels), 10), (1 - sure) / 9)
    rows[np.arange(len(labels)), labels] = sure
    return Outputs(labels=labels, probabilities=rows)

def knows(batch):
    return probable(right(batch), 0.6)

def guesses(batch):
    return probable(random(batch), 0.9)
"""
CONFIG = f"""
[app]
name = "APP"
partitions = 2

[pools.main]
models = ["right", "wrong", "random", "knows", "guesses"]

[models.knows]
source = "acceptance_models:knows"

[models.guesses]
source = "acceptance_models:guesses"

[models.right]
source = "acceptance_models:right"

[models.wrong]
source = "acceptance_models:wrong"

[models.random]
source = "acceptance_models:random"

[routes.hedge]
models = ["right", "wrong", "random"]
policy = "hedge"
deadline_ms = 20000
decide_early = false

[routes.stack]
models = ["knows", "guesses"]
policy = {{ name = "stack", rate = 0.05 }}
combine = "log_probability"
deadline_ms = 20000

[routes.exp3]
models = ["right", "wrong", "random"]
policy = {{ name = "exp3", eta = {ETA}, gamma = {GAMMA} }}
deadline_ms = 20000
"""


def ask_and_teach(client: Foreign, route: str) -> list[Seen]:
    """Predictions of `ASKED` requests, in order; the true label of each block is fed back before the next is sent."""
    headers = [("ss-route", route.encode())]
    found: list[Seen] = []
    for first in range(0, ASKED, BLOCK):
        tags = [f"{route}-{number}" for number in range(first, first + BLOCK)]
        for tag, number in zip(tags, range(first, first + BLOCK), strict=True):
            client.send(oip([float(number), 0.0], [1, 2], id=tag), tag=tag, headers=headers)
        answers = client.answers(tags)
        for tag, number in zip(tags, range(first, first + BLOCK), strict=True):
            answer = answers[tag]
            found.append(answer)
            feedback = json.dumps({"id": tag, "label": number % 10}).encode()
            place = [("ss-ref", answer.headers["ss-ref"])]
            client.send(feedback, tag=("taught", tag), kind="feedback", headers=place, partition=answer.partition)
        client.flush()
        wait_for_events(client, route, first + BLOCK)
    return found


def states(client: Foreign, route: str) -> dict[int, dict[str, Any]]:
    """Every learnt state of a route, by its place in the epochs topic."""
    return {
        record.offset: value
        for record in client.read("epochs")
        if (value := record.json)["route"] == route and value["context"] == ""
    }


def wait_for_events(client: Foreign, route: str, events: int) -> None:
    """Until a state of the route includes so many outcomes."""
    until = time.monotonic() + TIMEOUT_S
    while max((state["data"]["events"] for state in states(client, route).values()), default=0) < events:
        assert time.monotonic() < until, f"the newest state of {route} does not include {events} outcomes"


def shares(state: dict[str, Any] | None) -> dict[str, float]:
    """Exp3's probabilities by the formula of its page, worked out anew: its losses are in the state's record."""
    losses = dict.fromkeys(MODELS, 0.0)
    if state is not None:
        losses |= state["data"]["losses"]
    scores = {model: math.exp(-ETA * (loss - min(losses.values()))) for model, loss in losses.items()}
    total = sum(scores.values())
    return {model: (1 - GAMMA) * score / total + GAMMA / len(MODELS) for model, score in scores.items()}


def test_models_win_and_lose_weight_by_feedback_without_a_restart(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        check_hedge(client)
        check_exp3(client)
        check_stack(client)
        check_evaluation(config, str(up.ready["bootstrap_servers"]))
        assert up.restarts() == {"worker-main-0": 0, "learn-0": 0}
        up.stop()


def check_hedge(client: Foreign) -> None:
    found = ask_and_teach(client, "hedge")
    assert {record.parameters["probability"] for record in found} == {1.0}
    first, last = found[:BLOCK], found[-BLOCK:]
    assert {record.parameters["epoch"] for record in first} == {-1}
    learnt = states(client, "hedge")
    assert {record.parameters["epoch"] for record in last} <= learnt.keys()
    # Three equal weights and three opinions: one of them agrees. At the end the right one outweighs the others.
    assert max(record.parameters["confidence"] for record in last) > 0.9
    assert min(record.parameters["confidence"] for record in last) > 0.9
    assert min(record.parameters["confidence"] for record in first) < 0.4
    right = [record.label[0] == number % 10 for number, record in enumerate(found)]
    assert all(right[-BLOCK:])
    assert learnt[max(learnt)]["data"]["events"] == ASKED


def check_stack(client: Foreign) -> None:
    """At first the one that guesses is the surer one; its guesses cost it its weight."""
    found = ask_and_teach(client, "stack")
    right = [record.label[0] == number % 10 for number, record in enumerate(found)]
    print("stack: right in the first and the last block:", sum(right[:BLOCK]), sum(right[-BLOCK:]))
    assert sum(right[:BLOCK]) < 25
    assert all(right[-BLOCK:])
    learnt = states(client, "stack")
    newest = learnt[max(learnt)]["data"]
    assert newest["events"] == ASKED
    assert newest["weights"]["knows@1"] > 2 * newest["weights"]["guesses@1"]


def check_exp3(client: Foreign) -> None:
    found = ask_and_teach(client, "exp3")
    learnt = states(client, "exp3")
    for record in found:
        told = record.parameters
        assert (told["probability"] * ONE).is_integer()
        assert "off_epoch" not in told
        expected = shares(learnt.get(told["epoch"]))
        assert (told["epoch"] == -1) == (told["epoch"] not in learnt)
        # Each model keeps one unit of 2^-32 for itself, so the rest is spread over a little less than one.
        assert abs(told["probability"] - expected[told["chosen"]]) < 4 / ONE
    best = [record.parameters["chosen"] == "right@1" for record in found]
    shown = [sum(best[first : first + BLOCK]) / BLOCK for first in range(0, ASKED, BLOCK)]
    print("exp3: share of the best model per block of requests:", shown)
    assert shown[0] < 0.6
    assert min(shown[-2:]) > 0.75
    assert learnt[max(learnt)]["data"]["events"] == ASKED


def check_evaluation(config: Path, servers: str) -> None:
    """What the log says afterwards: each model alone, and how many outcomes there are."""
    truth = {"right": 1.0, "wrong": 0.0}
    for route, name in (("hedge", "replay"), ("exp3", "snips")):
        for model, earned in truth.items():
            told = command(
                "bandit", "evaluate", str(config), "--route", route, "--policy", model, "--json", servers=servers
            )
            report = json.loads(told.stdout)
            found = {one["name"]: one for one in report["estimates"]}
            if model == "wrong" and route == "exp3" and not found:
                assert "count as" in report["refused"][0]
                continue
            assert found[name]["value"] == pytest.approx(earned, abs=1e-9), report
    told = command("outcomes", "export", str(config), servers=servers)
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.splitlines()) == 3 * ASKED + 1


def command(*arguments: str, servers: str) -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, *arguments, "--bootstrap-servers", servers]
    return subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
