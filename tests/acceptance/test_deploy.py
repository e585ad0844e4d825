"""Models and routes that come, change and go while an app serves: no restart, no failed request."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import COMMAND, TIMEOUT_S, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(400)]

EVERY_S = 0.005
"""200 requests a second."""
LATER = 40
"""So many requests are answered after each deploy."""
MODEL = """
import numpy as np

def right(batch):
    return batch[:, 0].astype(np.int64)

def wrong(batch):
    return -batch[:, 0].astype(np.int64)

def broken():
    raise ValueError("its file is damaged")
"""


def config_of(form: str, models: dict[str, tuple[str, str]], routes: dict[str, list[str]]) -> str:
    """`models`: name -> version, function."""
    names = list(models)
    pools = {"main": names} if form == "fused" else {"left": names[::2], "right": names[1::2]}
    lines = ['[app]\nname = "APP"\npartitions = 2']
    lines += [f"[pools.{pool}]\nmodels = {json.dumps(hosted)}" for pool, hosted in pools.items()]
    lines += [
        f'[models.{name}]\nversion = "{version}"\nsource = "acceptance_models:{function}"'
        for name, (version, function) in models.items()
    ]
    lines += [
        f'[routes.{route}]\nmodels = {json.dumps(asked)}\npolicy = "hedge"\ndeadline_ms = 20000\ndecide_early = false'
        for route, asked in routes.items()
    ]
    return "\n\n".join(lines) + "\n"


class Traffic:
    """Asks all the time, and tells what was right."""

    def __init__(self, client: Foreign) -> None:
        self.client = client
        self.tags: list[Any] = []
        self._told: set[str] = set()

    def ask(self, tag: int) -> None:
        self.client.send(oip([5.0, 0.0], [1, 2]), tag=tag, headers=[("ss-route", b"main")])

    def truth(self, _seen: Seen) -> int:
        return 5

    def go_on(self, done: Any) -> None:
        while not done():
            self.tags.append(len(self.tags))
            self.ask(self.tags[-1])
            for seen in self.client.hear(EVERY_S):
                if seen.ref not in self._told:
                    self._told.add(seen.ref)
                    told = json.dumps({"id": seen.ref, "label": self.truth(seen)}).encode()
                    self.client.send(
                        told, tag=("told", seen.ref), headers=[("ss-ref", seen.ref.encode())], kind="feedback"
                    )

    def deploy(self, config: Path) -> tuple[int, dict[str, Any]]:
        """Its exit code, and what it said; requests go on meanwhile, and until some that came later are answered."""
        command = [*COMMAND, "models", "deploy", str(config), "--json"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=config.parent
        ) as one:
            self.go_on(lambda: one.poll() is not None)
            out, errors = one.communicate()
        assert "Traceback" not in errors
        deployed = len(self.tags)
        self.go_on(lambda: len(self.tags) == deployed + LATER)
        self.client.answers(self.tags[deployed:])
        return one.returncode, json.loads(out) if one.returncode == 0 else {"errors": " ".join(errors.split())}


def asked(seen: Seen) -> set[str]:
    return set(seen.parameters["chosen"].split(","))


@pytest.mark.parametrize("form", ["fused", "split"])
def test_models_and_routes_come_change_and_go_without_a_restart(
    form: str, broker: BrokerForTests, tmp_path: Path
) -> None:
    models = {"one": ("1", "right"), "two": ("1", "wrong")}
    routes = {"main": ["one", "two"]}
    config = project(tmp_path, config=config_of(form, models, routes), model=MODEL, servers=broker.bootstrap_servers)
    first = config.read_text("utf-8")

    def now_is(models: dict[str, tuple[str, str]], routes: dict[str, list[str]]) -> None:
        head, tail = first.split("\n\n")[0], first[first.index("\n[broker]") :]
        config.write_text(head + config_of(form, models, routes).partition("partitions = 2")[2] + tail, "utf-8")

    steps = [
        ("added", models | {"three": ("1", "right")}, {"main": ["one", "two", "three"]}),
        ("replaced", models | {"two": ("2", "right"), "three": ("1", "right")}, {"main": ["one", "two", "three"]}),
        ("removed", models | {"two": ("2", "right"), "three": ("1", "right")}, {"main": ["two", "three"]}),
        (
            "routed",
            models | {"two": ("2", "right"), "three": ("1", "right")},
            {"main": ["two", "three"], "extra": ["three"]},
        ),
    ]
    in_force: list[tuple[int, set[str]]] = [(0, {"one@1", "two@1"})]
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        pids = {process.pid for process in up.tree()}
        traffic = Traffic(client)
        for name, having, asking in steps:
            now_is(having, asking)
            code, said = traffic.deploy(config)
            assert code == 0, (name, said)
            wanted = {f"{model}@{having[model][0]}" for model in asking["main"]}
            in_force.append((said["in_force_ms"], wanted))
            print(name, said["changes"])

        now_is(steps[-1][1] | {"four": ("1", "broken()")}, {"main": ["two", "three", "four"], "extra": ["three"]})
        code, said = traffic.deploy(config)
        assert code != 0
        assert "its file is damaged" in said["errors"]
        assert "nothing was changed" in said["errors"]

        answers = client.answers(traffic.tags)
        client.send(oip([5.0, 0.0], [1, 2]), tag="extra", headers=[("ss-route", b"extra")])
        assert asked(client.answers(["extra"])["extra"]) == {"three@1"}
        assert {process.pid for process in up.tree()} == pids
        assert set(up.restarts().values()) == {0}
        check(client, list(answers.values()), in_force)
        assert all(len(records) == 1 for records in client.predictions.values())
        check_learnt(client, {"two@2", "three@1"})
        up.stop()


def check(client: Foreign, records: list[Seen], in_force: list[tuple[int, set[str]]]) -> None:
    """All answered by all of their version's models, which goes by when they were appended, to the millisecond, and by
    nothing else."""
    assert {(record.outcome, record.reason) for record in records} == {("ok", "all_answered")}
    came_ms = appended_ms(client)
    ends = [from_ms for from_ms, _ in in_force[1:]] + [1 << 62]
    for (from_ms, models), end_ms in zip(in_force, ends, strict=True):
        mine = [record for record in records if from_ms <= came_ms[record.ref] < end_ms]
        assert len(mine) > 10
        assert {frozenset(asked(record)) for record in mine} == {frozenset(models)}


def appended_ms(client: Foreign) -> dict[str, int]:
    """Ref -> broker time of a request."""
    return {f"{one.partition}-{one.offset}": one.append_ms for one in client.read("requests")}


def check_learnt(client: Foreign, models: set[str]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        states = [record.json for record in client.read("epochs")]
        if any(models == set(state["data"]["losses"]) for state in states if state["route"] == "main"):
            return
        time.sleep(0.5)
    raise AssertionError(f"no learnt state knows {models}")
