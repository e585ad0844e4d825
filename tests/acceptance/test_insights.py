"""Insights on a real broker: what they count is what the topics hold, also when they are killed in the middle."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import TIMEOUT_S, Up, metric, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(400)]

KILLS = 3
ASKED_EACH = 150
MODELS = ("odd@1", "right@1")
MODEL = """
import numpy as np

def right(batch):
    return batch[:, 0].astype(np.int64) % 4

def odd(batch):
    return (batch[:, 0].astype(np.int64) + batch[:, 0].astype(np.int64) % 2) % 4
"""
CONFIG = """
[app]
name = "APP"
partitions = 2

[pools.main]
models = ["right", "odd"]

[models.right]
source = "acceptance_models:right"

[models.odd]
source = "acceptance_models:odd"

[routes.main]
models = ["right", "odd"]
policy = { name = "static", weights = { right = 2, odd = 1 } }
deadline_ms = 20000
decide_early = false

[insights]
window_ms = 1000
publish_every_ms = 100
"""


def ask(client: Foreign, first: int) -> list[Seen]:
    tags = list(range(first, first + ASKED_EACH))
    for tag in tags:
        client.send(oip([float(tag), 0.0], [1, 2], id=str(tag)), tag=tag)
    answers = client.answers(tags)
    return [answers[tag] for tag in tags]


def teach(client: Foreign, answers: list[Seen]) -> None:
    """Two of three get a label; a fifth of those is sent to the other partition, and has to be forwarded."""
    for answer in answers:
        tag = int(answer.json["id"])
        if tag % 3:
            where = (answer.partition + (tag % 5 == 0)) % client.partitions
            place = [("ss-ref", answer.headers["ss-ref"])]
            value = json.dumps({"label": tag % 4}).encode()
            client.send(value, tag=("taught", tag), kind="feedback", headers=place, partition=where)
    client.flush()


def counted(client: Foreign) -> dict[tuple[str, int], Counter[str]]:
    """(model, begin of window) -> what the topics hold: a ref's first prediction, a feedback's first outcome."""
    found: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    seen: set[Any] = set()
    for record in client.read("predictions"):
        if record.ref in seen:
            continue
        seen.add(record.ref)
        for model in ("", *record.parameters["chosen"].split(",")):
            row = found[model, record.append_ms // 1000 * 1000]
            row["predictions"] += 1
            row[record.outcome] += 1
    for record in client.read("outcomes"):
        outcome = record.json
        if tuple(outcome["feedback"]) in seen:
            continue
        seen.add(tuple(outcome["feedback"]))
        answer = outcome["decision"]["label"]
        for model in ("", *outcome["decision"]["chosen"]):
            row = found[model, outcome["prediction_ms"] // 1000 * 1000]
            row["feedback"] += 1
            row["wrong"] += answer != [outcome["label"]] if model == "" else int(outcome["losses"][model])
    return found


def told(rows: list[dict[str, Any]]) -> dict[tuple[str, int], Counter[str]]:
    return {
        (row["model"], row["from_ms"]): +Counter(
            predictions=row["predictions"],
            feedback=row["feedback"],
            wrong=round((1 - (row["accuracy"] or 0)) * row["judged"]),
            **row["outcomes"],
        )
        for row in rows
    }


def viewed(port: int, question: str = "windows=1000") -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/insights/?{question}", timeout=20) as page:
        return json.loads(page.read())  # type: ignore[no-any-return]


def web_port(up: Up) -> int:
    """Of the process that serves insights now."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        role = next(role for role in up.status()["roles"] if role["name"] == "insights-0")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{role['metrics_port']}/status", timeout=5) as page:
                return int(json.loads(page.read())["web_port"])
        except (OSError, http.client.InvalidURL):  # it is starting again
            assert time.monotonic() < until, up.story()


def published(client: Foreign) -> list[dict[str, Any]]:
    """The newest record of each key, each in one partition."""
    newest = {record.key: record for record in client.read("insights")}
    assert all(
        json.loads(key or b"")[:3] == [row.json["route"], row.json["model"], row.json["context"]]
        for key, row in newest.items()
    )
    return [record.json for record in newest.values()]


def wait_until_told(client: Foreign, up: Up) -> list[dict[str, Any]]:
    """Until page and topic say what the topics hold, exactly."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        wanted = {row: +counts for row, counts in counted(client).items()}
        page, topic = told(viewed(web_port(up))["rows"]), told(published(client))
        if page == topic == wanted:
            return published(client)
        assert time.monotonic() < until, f"wanted {wanted}\npage {page}\ntopic {topic}\n{up.story()}"
        time.sleep(0.2)


def test_insights_are_what_the_topics_hold_also_after_kills(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        asked = 0
        for _ in range(KILLS):
            pid = next(role["pid"] for role in up.status()["roles"] if role["name"] == "insights-0")
            teach(client, ask(client, asked))
            asked += ASKED_EACH
            os.kill(pid, signal.SIGKILL)  # between two turns, or within one
            teach(client, ask(client, asked))
            asked += ASKED_EACH
            wait_until_told(client, up)
        rows = wait_until_told(client, up)
        route = [row for row in rows if row["model"] == ""]
        assert sum(row["predictions"] for row in route) == asked
        assert sum(row["feedback"] for row in route) == asked - asked // 3
        check_figures(rows)
        assert {row["model"] for row in viewed(web_port(up), "model=odd@1&windows=2")["rows"]} == {"odd@1"}
        check_pages(up)
        up.stop()


def check_figures(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["until_ms"] - row["from_ms"] == 1000
        assert row["answered"] == row["predictions"]
        if row["feedback"]:
            assert 0 <= row["delay_p50_ms"] <= row["delay_p90_ms"] <= row["delay_p99_ms"]
    by_model = {model: [row for row in rows if row["model"] == model] for model in ("", *MODELS)}
    assert all(row["accuracy"] in (None, 1.0) for row in (*by_model[""], *by_model["right@1"]))
    assert all(row["agreement"] == 1.0 for row in by_model["right@1"])  # with two thirds of the weight it is served
    judged = sum(row["judged"] for row in by_model["odd@1"])
    wrong = sum((1 - row["accuracy"]) * row["judged"] for row in by_model["odd@1"] if row["judged"])
    assert wrong / judged == pytest.approx(0.5, abs=0.05)


def check_pages(up: Up) -> None:
    port = next(role["metrics_port"] for role in up.status()["roles"] if role["name"] == "insights-0")
    assert 0.0 < metric(port, "streamserve_bound_fill_ratio", bound="insight_rows") < 1.0
