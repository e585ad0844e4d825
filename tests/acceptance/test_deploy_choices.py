"""Keyed contexts and second opinions: their models change under load. A worker that was killed keeps nobody waiting."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import COMMAND, TIMEOUT_S, project, serving
from tests.acceptance.test_deploy import Traffic, appended_ms, asked

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = """
import numpy as np
from streamserve.runtimes import Outputs

def said(labels, sure):
    return Outputs(labels=labels, probabilities=np.stack((sure, 1.0 - sure), axis=1))

def right(batch):
    return batch[:, 0].astype(np.int64)

def wrong(batch):
    return -batch[:, 0].astype(np.int64)

def quick(batch):
    return said(batch[:, 0].astype(np.int64), batch[:, 1])

def costly(batch):
    return said(batch[:, 0].astype(np.int64) + 10, np.full(len(batch), 0.9))
"""
CONFIG = """
[app]
name = "APP"
partitions = 2
fused = "FORM"

[pools.main]
models = ["one", "two", "three", "quick", "other", "costly"]

[models]
one = { source = "acceptance_models:wrong" }
two = { source = "acceptance_models:right" }
three = { source = "acceptance_models:wrong" }
quick = { source = "acceptance_models:quick" }
other = { source = "acceptance_models:quick" }
costly = { source = "acceptance_models:costly", version = "VERSION" }

[routes.keyed]
models = KEYED
policy = "hedge"
deadline_ms = 60000
decide_early = false
contexts = { source = "key", keyed = true }

[routes.doubt]
models = ["FIRST"]
deadline_ms = 60000
confidence_threshold = 0.8
below_threshold = "second_opinion"
second_opinion = "costly"
confidence = { of = "probability" }
"""
BEFORE = {"KEYED": '["one", "two"]', "FIRST": "quick", "VERSION": "1"}
AFTER = {"KEYED": '["two", "three"]', "FIRST": "other", "VERSION": "2"}
KEYS = (b"eu/alice", b"eu/bob")


def text(form: str, words: dict[str, str]) -> str:
    found = CONFIG.replace("FORM", form)
    for word, value in words.items():
        found = found.replace(word, value)
    return found


class BothRoutes(Traffic):
    def ask(self, tag: int) -> None:
        number = tag // 2 % 2
        if tag % 2:
            headers = [("ss-route", b"keyed")]
            self.client.send(oip([5.0, 0.0], [1, 2]), tag=tag, headers=headers, key=KEYS[number], partition=number)
        else:
            self.client.send(oip([5.0, 0.6], [1, 2]), tag=tag, headers=[("ss-route", b"doubt")])

    def truth(self, seen: Seen) -> int:
        """The costly model is right, so the other one is doubted for ever."""
        return 15 if "second_opinion" in seen.parameters else 5


@pytest.mark.parametrize("form", ["auto", "never"])
def test_they_change_under_load_and_each_request_has_one_version(
    form: str, broker: BrokerForTests, tmp_path: Path
) -> None:
    config = project(tmp_path, config=text(form, BEFORE), model=MODEL, servers=broker.bootstrap_servers)
    before = config.read_text("utf-8")
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        pids = {process.pid for process in up.tree()}
        traffic = BothRoutes(client)
        until_s = time.monotonic() + 3
        traffic.go_on(lambda: time.monotonic() > until_s)
        if form == "auto":
            kill_a_worker(config, traffic)
        app = before[before.index('name = "') : before.index("partitions")]
        config.write_text(
            text(form, AFTER).replace('name = "APP"\n', app) + before[before.index("\n[broker]") :], "utf-8"
        )
        code, said = traffic.deploy(config)
        assert code == 0, said
        print(form, said, len(traffic.tags), "requests")
        assert len(said["gone"]) == (form == "auto")
        answers = client.answers(traffic.tags)
        assert {process.pid for process in up.tree()} == pids
        assert set(up.restarts().values()) == {0}
        assert {(one.outcome, one.reason) for one in answers.values()} == {("ok", "all_answered")}
        assert all(len(records) == 1 for records in client.predictions.values())
        check_versions(client, [answers[tag] for tag in traffic.tags if tag % 2], said["in_force_ms"], keyed)
        check_versions(client, [answers[tag] for tag in traffic.tags if tag % 2 == 0], said["in_force_ms"], cascade)
        check_learnt(client)
        up.stop()


def kill_a_worker(config: Path, traffic: Traffic) -> None:
    """One more process of the pool joins and is killed: its record stays."""
    command = [*COMMAND, "worker", str(config), "--pool", "main", "--instance", "extra"]
    with subprocess.Popen(
        command, cwd=config.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as extra:
        traffic.go_on(lambda: extra.poll() is not None or has_said(traffic.client))
        assert extra.poll() is None, extra.stderr.read() if extra.stderr else ""
        extra.kill()


def has_said(client: Foreign) -> bool:
    if len(client.acknowledged) % 100:
        return False  # it reads the whole topic
    return any(b"extra" in (record.key or b"") for record in client.read("models"))


def keyed(record: Seen) -> tuple[str, ...]:
    return tuple(sorted(asked(record)))


def cascade(record: Seen) -> tuple[str, ...]:
    assert record.label == [15]
    return (record.parameters["chosen"], record.parameters["second_opinion"])


def check_versions(
    client: Foreign, records: list[Seen], in_force_ms: int, models_of: Callable[[Seen], tuple[str, ...]]
) -> None:
    """By when the requests were appended, to the millisecond."""
    wanted = {
        keyed: (("one@1", "two@1"), ("three@1", "two@1")),
        cascade: (("quick@1", "costly@1"), ("other@1", "costly@2")),
    }[models_of]
    came_ms = appended_ms(client)
    old = [models_of(record) for record in records if came_ms[record.ref] < in_force_ms]
    new = [models_of(record) for record in records if came_ms[record.ref] >= in_force_ms]
    assert min(len(old), len(new)) > 10
    assert (set(old), set(new)) == ({wanted[0]}, {wanted[1]})


def check_learnt(client: Foreign) -> None:
    """Each key's state knows the new model, and what was learnt of the one that both versions have."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        said = [record.json for record in client.read("epochs")]
        states = {one["context"]: one["data"]["losses"] for one in said if "//" in one["context"]}
        if len(states) == 2 and all(set(losses) == {"two@1", "three@1"} for losses in states.values()):
            assert all(losses["two@1"] < losses["three@1"] for losses in states.values())
            return
        time.sleep(0.5)
    raise AssertionError(f"the states of the keys do not know the new model: {states}")
