"""The kill switch on a real broker: one record, and no role asks the model any more; another, and it is asked again."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import COMMAND, PATIENCE, TIMEOUT_S, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(400)]

EFFECTIVE_MS = 1_000
DELAY_MS = 250
MODEL = """
import numpy as np

def good(batch):
    return batch[:, 0].astype(np.int64)

def bad(batch):
    return -batch[:, 0].astype(np.int64)
"""
CONFIG = """
[app]
name = "APP"
partitions = 2

POOLS

[models.good]
source = "acceptance_models:good"

[models.bad]
source = "acceptance_models:bad"

[routes.both]
models = ["good", "bad"]
policy = "hedge"
deadline_ms = 60000
decide_early = false

[routes.split]
models = ["good", "bad"]
policy = { name = "ab", shares = { good = 0.5, bad = 0.5 } }
deadline_ms = 60000

[routes.alone]
models = ["bad"]
deadline_ms = 60000
"""
POOLS = {
    "fused": '[pools.main]\nmodels = ["good", "bad"]',
    "split": '[pools.left]\nmodels = ["good"]\n\n[pools.right]\nmodels = ["bad"]',
}


def switch(config: Path, verb: str, model: str, servers: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "models", verb, str(config), model, "--json", "--bootstrap-servers", servers]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=config.parent)


def ask(client: Foreign, route: str, tag: Any) -> None:
    client.send(oip([5.0, 0.0], [1, 2]), tag=tag, headers=[("ss-route", route.encode())])


def chosen(record: Seen) -> set[str]:
    return set(record.parameters["chosen"].split(","))


def watch(client: Foreign, name: str, until_ms: float) -> list[Seen]:
    """Requests of both routes, every 20 ms, until some were appended well after this broker time."""
    tags: list[Any] = []
    give_up_s = time.monotonic() + TIMEOUT_S
    while not tags or time.time() * 1000 < until_ms + 2_000:
        assert time.monotonic() < give_up_s
        for route in ("both", "split"):
            tags.append((name, route, len(tags)))
            ask(client, route, tags[-1])
        client.hear(0.02)
    return [record for _, record in sorted(client.answers(tags).items(), key=lambda item: item[0][2])]


def appended_ms(record: Seen) -> int:
    """When its request was appended: what the switch goes by."""
    return int(record.append_ms - record.parameters["total_ms"])


@pytest.mark.parametrize("form", ["fused", "split"])
def test_a_model_is_switched_off_and_on_while_serving(form: str, broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(
        tmp_path, config=CONFIG.replace("POOLS", POOLS[form]), model=MODEL, servers=broker.bootstrap_servers
    )
    servers = broker.bootstrap_servers
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        ask(client, "both", "first")
        assert chosen(client.answers(["first"])["first"]) == {"good@1", "bad@1"}

        only = switch(config, "disable", "bad", servers)
        assert only.returncode != 0
        assert "route alone" in only.stderr
        assert "Traceback" not in only.stderr

        said = json.loads(switch(config, "disable", "good@1", servers).stdout)
        assert set(said["routes"]) == {"both", "split"}
        check_off(watch(client, "off", said["in_force_ms"]), said["in_force_ms"] - DELAY_MS, "good@1")

        said = json.loads(switch(config, "enable", "good@1", servers).stdout)
        check_on(watch(client, "on", said["in_force_ms"]), said["in_force_ms"])
        up.stop()


def check_off(records: list[Seen], written_ms: int, model: str) -> None:
    """It is in force within a second of its record, for every request from then on; all are answered."""
    assert {record.outcome for record in records} == {"ok"}
    last_ms = max(
        (appended_ms(record) for record in records if model in chosen(record)),
        default=written_ms,
    )
    print(f"switched off: the last request that was given to the model came {last_ms - written_ms} ms after the record")
    assert last_ms - written_ms <= EFFECTIVE_MS * PATIENCE
    assert any(appended_ms(record) > last_ms for record in records)


def check_on(records: list[Seen], in_force_ms: int) -> None:
    assert {record.outcome for record in records} == {"ok"}
    asked = [chosen(record) for record in records if appended_ms(record) >= in_force_ms]
    assert {"good@1", "bad@1"} in asked
    assert {"good@1"} in asked
