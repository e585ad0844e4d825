"""`streamserve replay` from outside: an app has served and heard labels; candidates are tried on what it recorded."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, foreign_client, oip
from tests.acceptance.running import COMMAND, TIMEOUT_S, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(240)]

ASKED = 400
LABELLED = 200
MODEL = """
import time
import numpy as np

def digit(batch):
    return batch[:, 0].astype(np.int64) % 10

def served(batch):
    "Wrong where the number ends in 3."
    return np.where(digit(batch) == 3, 0, digit(batch))

def better(batch):
    return digit(batch)

def worse(batch):
    "Wrong where the number ends in 3 (otherwise than what was served), 4 or 5; takes no number that ends in 99."
    answers = np.where(np.isin(digit(batch), (3, 4, 5)), 1, digit(batch)).tolist()
    return [ValueError("too large") if int(row[0]) % 100 == 99 else answer for row, answer in zip(batch, answers)]

def slow(batch):
    time.sleep(0.2 * len(batch))
    return digit(batch)
"""
CONFIG = """
[app]
name = "APP"
partitions = 2

[pools.main]
models = ["served"]

[models.served]
source = "acceptance_models:served"

[models.worse]
version = "2"
source = "acceptance_models:worse"
isolation = "process"

[models.slow]
source = "acceptance_models:slow"
max_batch = 1

[routes.digits]
models = ["served"]
policy = "hedge"
deadline_ms = 20000
"""


def ask_and_teach(client: Foreign) -> None:
    """Numbers with foreign headers, bad records between them; the first half get their labels."""
    tags = list(range(ASKED))
    for number in tags:
        headers = [("\\xff", b"\xff")] if number % 50 == 0 else []
        client.send(oip([float(number), 0.0], [1, 2], id=f"n-{number}"), tag=number, headers=headers)
    for value in (None, b"\xff", b"[]"):
        client.send(value, tag=("bad", value))
    client.send(oip([1.0, 0.0], [1, 2]), tag="elsewhere", headers=[("ss-route", b"none")])
    answers = client.answers(tags)
    for number in tags[:LABELLED]:
        answer = answers[number]
        feedback = json.dumps({"id": f"n-{number}", "label": number % 10}).encode()
        place = [("ss-ref", answer.headers["ss-ref"])]
        client.send(feedback, tag=("taught", number), kind="feedback", headers=place, partition=answer.partition)
    client.flush()
    until = time.monotonic() + TIMEOUT_S
    while len(client.read("outcomes")) < LABELLED:
        assert time.monotonic() < until, "the labels do not become outcomes"


def replayed(config: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*COMMAND, "replay", str(config), *arguments, "--json"],
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def recorded(broker: BrokerForTests, tmp_path: Path) -> Path:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        ask_and_teach(client)
        up.stop()
    return config


def test_candidates_are_tried_on_what_was_recorded(broker: BrokerForTests, recorded: Path, tmp_path: Path) -> None:
    check_better(recorded)
    check_worse(recorded, tmp_path / "other.jsonl")
    check_ranges(recorded)
    check_that_it_can_be_broken_off(recorded)
    check_that_what_retention_took_is_said(recorded, broker.bootstrap_servers)


def check_better(config: Path) -> None:
    picture = config.parent / "better.png"
    arguments = ("--model", "served@2", "--source", "acceptance_models:better", "--plot", str(picture))
    code, report = replayed(config, *arguments)
    assert (code, report["model"], report["complete"]) == (0, "served@2", True)
    assert report["requests"] == report["answered"] == ASKED
    assert report["passed_over"] == {"empty_value": 1, "not_json": 1, "wrong_form": 1, "unknown_route": 1}
    assert (report["without_prediction"], report["without_served_answer"]) == (0, {})
    assert (report["labelled"], report["accuracy"]) == (LABELLED, 1.0)
    for one in report["versus"]:
        assert (one["requests"], one["agree"], one["labelled"]) == (ASKED, ASKED * 9 // 10, LABELLED)
        assert (one["better"], one["worse"]) == (LABELLED // 10, 0)
        assert (one["accuracy"], one["candidate_accuracy"]) == (pytest.approx(0.9), 1.0)
    assert [one["name"] for one in report["versus"]] == ["served", "served@1"]
    assert report["calls"]["rows"] == ASKED
    assert report["calls"]["batch_p50_ms"] <= report["calls"]["batch_p99_ms"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def check_worse(config: Path, file: Path) -> None:
    code, report = replayed(config, "--model", "worse@2", "--disagreements", str(file))
    refused = [number for number in range(ASKED) if number % 100 == 99]
    assert (code, report["requests"], report["refused"]) == (0, ASKED, len(refused))
    assert [(one["words"], one["requests"]) for one in report["refusals"]] == [("too large", len(refused))]
    other = [number for number in range(ASKED) if number % 10 in (3, 4, 5)]
    served = report["versus"][0]
    assert served["agree"] == ASKED - len(refused) - len(other)
    # On 3 both are wrong, on 4 and 5 the candidate alone; 99 and 199, which it refuses, are not judged.
    assert (served["labelled"], served["better"], served["worse"]) == (LABELLED - 2, 0, LABELLED // 5)
    assert served["accuracy"] == pytest.approx(1 - 20 / 198)
    assert served["candidate_accuracy"] == report["accuracy"] == pytest.approx(1 - 60 / 198)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert report["disagreements"] == len(other)
    assert sorted(line["id"] for line in lines) == sorted(f"n-{number}" for number in (*other, *refused))
    for line in lines:
        number = int(line["id"].removeprefix("n-"))
        assert line["served"] == [0 if number % 10 == 3 else number % 10]
        assert line["candidate"] == (None if number in refused else [1])
        assert line.get("label") == (number % 10 if number < LABELLED else None)
        assert ("refused" in line) == (number in refused)


def check_ranges(config: Path) -> None:
    code, report = replayed(config, "--model", "served", "--from", "10", "--to", "60")
    assert (code, report["requests"], report["versus"][0]["agreement"]) == (0, 100, 1.0)
    assert [(one["from"], one["to"], one["reached"]) for one in report["partitions"]] == [(10, 60, 60)] * 2
    code, report = replayed(config, "--model", "served", "--to", "1d")
    assert (code, report["requests"], report["complete"]) == (1, 0, True)
    code, report = replayed(config, "--model", "served", "--from", "1d")
    assert (code, report["requests"]) == (0, ASKED)


def check_that_it_can_be_broken_off(config: Path) -> None:
    """80 s of model calls; the report is of the windows that were done."""
    process = subprocess.Popen(
        [*COMMAND, "replay", str(config), "--model", "slow", "--json"],
        cwd=config.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(6)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    report = json.loads(output)
    assert (report["broken_off"], report["complete"]) == (True, False)
    assert report["requests"] == sum(one["reached"] - one["from"] for one in report["partitions"]) < ASKED


def check_that_what_retention_took_is_said(config: Path, servers: str) -> None:
    app = config.read_text().split('name = "')[1].split('"')[0]
    gone = TopicPartition(f"{app}.requests.v1", 0, 20)
    admin = AdminClient({"bootstrap.servers": servers})
    (done,) = admin.delete_records([gone]).values()
    done.result(TIMEOUT_S)
    code, report = replayed(config, "--model", "served")
    assert (code, report["complete"], report["requests"]) == (0, False, ASKED - 20)
    assert report["gaps"] == [
        f"{app}.requests.v1, partition 0, begins at offset 20: what the range names below that is gone"
    ]
    code, report = replayed(config, "--model", "served", "--from", "20")
    assert (code, report["complete"], report["gaps"]) == (0, True, [])
