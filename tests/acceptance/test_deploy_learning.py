"""Routes that begin to learn while an app serves: the first of all, and one more with `exactly_once`."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, foreign_client, oip
from tests.acceptance.running import COMMAND, TIMEOUT_S, project, serving
from tests.acceptance.test_deploy import MODEL, Traffic

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
[app]
name = "APP"
partitions = 2
delivery = "DELIVERY"

[pools.main]
models = ["one", "two"]

[models]
one = { source = "acceptance_models:wrong" }
two = { source = "acceptance_models:right" }

[routes.main]
models = ["one", "two"]
policy = "POLICY"
deadline_ms = 60000
decide_early = false
"""
EXTRA = """
[routes.extra]
models = ["one", "two"]
policy = "hedge"
deadline_ms = 60000
decide_early = false
"""


class OneRoute(Traffic):
    route = b"main"

    def ask(self, tag: int) -> None:
        self.client.send(oip([5.0, 0.0], [1, 2]), tag=tag, headers=[("ss-route", self.route)])


def test_the_first_route_that_learns_learns_from_a_learner_that_is_started_for_it(
    broker: BrokerForTests, tmp_path: Path
) -> None:
    text = CONFIG.replace("DELIVERY", "at_least_once").replace("POLICY", "static")
    config = project(tmp_path, config=text, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        assert not any(role["name"].startswith("learn") for role in up.ready["roles"])
        pids, traffic = {process.pid for process in up.tree()}, OneRoute(client)
        config.write_text(config.read_text("utf-8").replace('"static"', '"hedge"'), "utf-8")
        code, said = traffic.deploy(config)
        assert code == 0, said
        assert "start a learner" in said["changes"][-1]
        with subprocess.Popen(
            [*COMMAND, "learn", str(config)], cwd=config.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as learner:
            try:
                learns(traffic, "main")
            finally:
                learner.terminate()
                learner.wait(TIMEOUT_S)
        check(traffic, pids == {process.pid for process in up.tree()})
        up.stop()


def test_with_exactly_once_a_route_comes_and_its_outcomes_stand_in_the_log_once(
    broker: BrokerForTests, tmp_path: Path
) -> None:
    text = CONFIG.replace("DELIVERY", "exactly_once").replace("POLICY", "hedge")
    config = project(tmp_path, config=text, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        pids, traffic = {process.pid for process in up.tree()}, OneRoute(client)
        config.write_text(config.read_text("utf-8") + EXTRA, "utf-8")
        code, said = traffic.deploy(config)
        assert code == 0, said
        traffic.route = b"extra"
        learns(traffic, "extra")
        check(traffic, pids == {process.pid for process in up.tree()})
        taught = Counter((one["route"], one["context"], tuple(one["feedback"])) for one in jsons(client, "outcomes"))
        assert {route for route, _, _ in taught} == {"main", "extra"}
        assert set(taught.values()) == {1}
        up.stop()


def learns(traffic: OneRoute, route: str) -> None:
    """Under load, until its state believes the model that is right."""
    until_s = time.monotonic() + TIMEOUT_S
    while not knows(traffic.client, route):
        assert time.monotonic() < until_s, f"route {route} learns nothing"
        pause_s = time.monotonic() + 1
        traffic.go_on(lambda: time.monotonic() > pause_s)  # noqa: B023  (called at once)


def knows(client: Foreign, route: str) -> bool:
    states = [one["data"]["losses"] for one in jsons(client, "epochs") if one["route"] == route]
    return bool(states) and states[-1]["two@1"] < states[-1]["one@1"]


def check(traffic: OneRoute, same_processes: bool) -> None:
    answers = traffic.client.answers(traffic.tags)
    print(len(answers), "requests")
    assert same_processes
    assert {(one.outcome, one.reason) for one in answers.values()} == {("ok", "all_answered")}
    assert all(len(records) == 1 for records in traffic.client.predictions.values())


def jsons(client: Foreign, kind: str) -> list[dict[str, Any]]:
    return [record.json for record in client.read(kind)]
