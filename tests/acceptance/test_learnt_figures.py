"""What was learnt, in figures: a foreign client works them out for itself, across a `kill -9` of the learner."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, foreign_client, oip
from tests.acceptance.learners import MODEL, Learner, app
from tests.acceptance.running import COMMAND, TIMEOUT_S, metric, project

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(400)]

ASKED = 120
HALF_LIFE = 40.0
CONFIG = f"""
[app]
name = "APP"
partitions = 2

[pools.main]
models = ["tens", "units"]

[models.tens]
source = "acceptance_models:tens"

[models.units]
source = "acceptance_models:units"

[routes.main]
models = ["tens", "units"]
policy = {{ name = "hedge", half_life_events = {HALF_LIFE} }}
deadline_ms = 20000
decide_early = false

[routes.main.contexts]
"""
Row = tuple[float, float, float]
"""What `tens`, `units` and the answer cost."""


def ask_and_teach(client: Foreign, first: int) -> dict[str, list[Row]]:
    """By context. The truth is what `units` says but for every fourth request."""
    numbers = range(first, first + ASKED)
    for number in numbers:
        headers = [("ss-context", _context(number).encode())]
        client.send(oip([float(number), 0.0], [1, 2]), tag=number, headers=headers)
    answers = client.answers(list(numbers))
    found: dict[str, list[Row]] = {"": [], "eu": [], "us": []}
    for number in numbers:
        tens, units, answer = number // 10 % 10, number % 10, answers[number]
        truth = tens if number % 4 == 0 else units
        row = (float(tens != truth), float(units != truth), float(answer.label[0] != truth))
        found[""].append(row)
        found[_context(number)].append(row)
        place = [("ss-ref", answer.headers["ss-ref"])]
        value = json.dumps({"label": truth}).encode()
        client.send(value, tag=("taught", number), kind="feedback", headers=place, partition=answer.partition)
    client.flush()
    return found


def _context(number: int) -> str:
    return "eu" if number % 3 else "us"


def told(config: Path) -> dict[str, Any]:
    """By context, as `streamserve bandit states` says it."""
    command = [*COMMAND, "bandit", "states", str(config), "--json"]
    lines = subprocess.run(command, cwd=config.parent, check=True, capture_output=True, text=True).stdout.splitlines()
    return {(state := json.loads(line))["context"]: state for line in lines}


def wait_for(config: Path, outcomes: int) -> dict[str, Any]:
    until = time.monotonic() + TIMEOUT_S
    while True:
        states = told(config)
        shared = {context: state["figures"]["outcomes"] for context, state in states.items()}
        if shared.get("") == outcomes == shared.get("eu", 0) + shared.get("us", 0):
            return states
        assert time.monotonic() < until, f"{shared}, wanted {outcomes}"


def serves(learner: Learner) -> None:
    while not learner.serves:
        time.sleep(0.05)


def test_figures_are_what_a_client_works_out_for_itself(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with app(config) as ready, foreign_client(ready) as client:
        learner = Learner(config)
        serves(learner)
        rows = ask_and_teach(client, 0)
        learner.end(signal.SIGKILL)
        learner = Learner(config)
        try:
            for context, more in ask_and_teach(client, ASKED).items():
                rows[context] += more
            states = wait_for(config, 2 * ASKED)
            for context, of_context in rows.items():
                check(states[context]["figures"], of_context)
                assert states[context]["figures"]["losses"] == pytest.approx(decayed(client, context))
            serves(learner)
            check_metrics(learner, states)
        finally:
            learner.end(signal.SIGTERM)
        client.send(b"[", tag="damaged", kind="policy", key=b"odd", partition=0)
        client.flush()
        words = subprocess.run(
            [*COMMAND, "bandit", "states", str(config)], cwd=config.parent, check=True, capture_output=True, text=True
        ).stdout
        print(words)
        assert f"odd  its snapshot at offset {client.acknowledged['damaged'][1]} cannot be read" in words
        assert f"regret {states['eu']['figures']['regret']:.1f} over {len(rows['eu'])}" in words


def check(figures: Any, rows: list[Row]) -> None:
    tens, units, served = (sum(column) for column in zip(*rows, strict=True))
    assert (figures["full"], figures["outcomes"]) == (len(rows), len(rows))
    assert figures["regret"] == served - min(tens, units)
    assert figures["shares"] == {"tens@1": 1.0, "units@1": 1.0}
    decay = 0.5 ** (1 / HALF_LIFE)
    weight = (1 - decay ** len(rows)) / (1 - decay)
    squares = (1 - decay ** (2 * len(rows))) / (1 - decay**2)
    assert figures["effective"]["tens@1"] == pytest.approx(weight * weight / squares)
    assert 0.0 <= figures["entropy"] <= math.log(2)


def decayed(client: Foreign, context: str) -> dict[str, float]:
    """Mean losses in the order of the log, in which a state learns: each feedback's first outcome."""
    seen, sums, weight = set[tuple[int, int]](), {"tens@1": 0.0, "units@1": 0.0}, 0.0
    for record in sorted(client.read("outcomes"), key=lambda record: (record.partition, record.offset)):
        value = record.json
        if value["context"] != context or tuple(value["feedback"]) in seen:
            continue
        seen.add(tuple(value["feedback"]))
        weight = 0.5 ** (1 / HALF_LIFE) * weight + 1.0
        sums = {model: 0.5 ** (1 / HALF_LIFE) * total + value["losses"][model] for model, total in sums.items()}
    return {model: total / weight for model, total in sums.items()}


def check_metrics(learner: Learner, states: dict[str, Any]) -> None:
    """The role follows the same log: its page says what the command said."""
    port = json.loads(learner.status.read_text("utf-8"))["metrics_port"]
    until = time.monotonic() + TIMEOUT_S
    for context, state in states.items():
        labels = {"route": "main", "context": context}
        while metric(port, "streamserve_state_epoch", **labels) != state["epoch"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        figures = state["figures"]
        assert metric(port, "streamserve_regret", **labels) == figures["regret"]
        assert metric(port, "streamserve_regret_outcomes", **labels) == figures["full"]
        assert metric(port, "streamserve_weight_entropy", **labels) == pytest.approx(figures["entropy"])
        assert metric(port, "streamserve_state_timestamp_seconds", **labels) == state["append_ms"] / 1000
        for model in ("tens@1", "units@1"):
            assert metric(port, "streamserve_model_loss", model=model, **labels) == pytest.approx(
                figures["losses"][model]
            )
            assert metric(port, "streamserve_model_share", model=model, **labels) == 1.0
