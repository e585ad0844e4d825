"""A second opinion and a freeze on a real broker: labels go in, and what was learnt decides who is asked."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import COMMAND, TIMEOUT_S, metric, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(400)]

MODEL = """
import numpy as np
from streamserve.runtimes import Outputs

def said(labels, sure):
    rows = np.stack((sure, 1.0 - sure), axis=1)
    return Outputs(labels=labels, probabilities=rows)

def quick(batch):
    return said(batch[:, 0].astype(np.int64), batch[:, 1])

def costly(batch):
    return said(batch[:, 0].astype(np.int64) + 10, np.full(len(batch), 0.9))

def wrong(batch):
    return said(-batch[:, 0].astype(np.int64), batch[:, 1])
"""
CONFIG = """
[app]
name = "APP"
partitions = 2
fused = "FORM"

[pools.main]
models = ["quick", "costly", "wrong"]

[models.quick]
source = "acceptance_models:quick"

[models.costly]
source = "acceptance_models:costly"

[models.wrong]
source = "acceptance_models:wrong"

[routes.doubt]
models = ["quick"]
deadline_ms = 60000
confidence_threshold = 0.8
below_threshold = "second_opinion"
second_opinion = "costly"
confidence = { of = "probability" }

[routes.watched]
models = ["quick", "wrong"]
policy = "hedge"
deadline_ms = 60000
decide_early = false
freeze = { baseline = "quick" }
"""


def ask(client: Foreign, route: str, sure: float, n: int) -> list[Seen]:
    tags = [(route, time.monotonic(), number) for number in range(n)]
    for tag in tags:
        client.send(oip([3.0, sure], [1, 2]), tag=tag, headers=[("ss-route", route.encode())])
    answers = client.answers(tags)
    return [answers[tag] for tag in tags]


def teach(client: Foreign, answers: list[Seen], label: int) -> None:
    for number, answer in enumerate(answers):
        place = [("ss-ref", answer.headers["ss-ref"])]
        value = json.dumps({"label": label}).encode()
        client.send(
            value, tag=("taught", time.monotonic(), number), kind="feedback", headers=place, partition=answer.partition
        )
    client.flush()


def until(what: Any, words: str) -> Any:
    give_up_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_s:
        found = what()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not in {TIMEOUT_S} s: {words}")


def models(config: Path, *words: str) -> str:
    command = [*COMMAND, "models", *words[:1], str(config), *words[1:]]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=config.parent)
    return done.stdout


@pytest.mark.parametrize("form", ["auto", "never"])
def test_who_is_asked_follows_what_labels_say(form: str, broker: BrokerForTests, tmp_path: Path) -> None:
    servers = broker.bootstrap_servers
    config = project(tmp_path, config=CONFIG.replace("FORM", form), model=MODEL, servers=servers)
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        check_second_opinion(client)
        check_freeze(client, config, servers, up.role("learn-0")["metrics_port"])
        up.stop()


def check_second_opinion(client: Foreign) -> None:
    (sure,), doubtful = ask(client, "doubt", 0.95, 1), ask(client, "doubt", 0.6, 60)
    assert (sure.label, sure.parameters["chosen"]) == ([3], "quick@1")
    assert "second_opinion" not in sure.parameters
    for answer in doubtful:
        assert (answer.label, answer.outcome) == ([13], "ok")
        assert (answer.parameters["chosen"], answer.parameters["second_opinion"]) == ("quick@1", "costly@1")
        assert answer.parameters["probability"] == 1.0
    teach(client, doubtful, 3)  # the quick one was right all the time
    answer = until(
        lambda: next((one for one in ask(client, "doubt", 0.6, 1) if "second_opinion" not in one.parameters), None),
        "the quick model is trusted where it says 0.6",
    )
    assert answer.label == [3]
    assert answer.parameters["confidence"] > 0.8


def check_freeze(client: Foreign, config: Path, servers: str, port: int) -> None:
    both = ask(client, "watched", 0.9, 80)
    assert {one.parameters["chosen"] for one in both} == {"quick@1,wrong@1"}
    teach(client, both, 3)
    until(lambda: ask(client, "watched", 0.9, 1)[0].parameters["chosen"] == "quick@1", "the wrong model is frozen")
    listed = {
        tuple(line.split()[:2]): line for line in models(config, "list", "--bootstrap-servers", servers).splitlines()
    }
    assert "frozen since" in listed["watched", "wrong@1"]
    assert listed["watched", "quick@1"].endswith("  on")
    assert metric(port, "streamserve_model_frozen", route="watched", model="wrong@1") == 1.0
    assert metric(port, "streamserve_model_frozen", route="watched", model="quick@1") == 0.0
    models(config, "enable", "wrong@1", "--bootstrap-servers", servers)
    until(lambda: ask(client, "watched", 0.9, 1)[0].parameters["chosen"] == "quick@1,wrong@1", "it is asked again")
    assert "wrong@1  on" in models(config, "list", "--bootstrap-servers", servers)
