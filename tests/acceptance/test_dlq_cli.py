"""`streamserve dlq` as an operator uses it: a poison request is seen, put back once its cause is gone, and removed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamserve.kafka import admin
from streamserve.testing.broker_fixture import BrokerForTests
from streamserve.topics import Kind, catalogue, topic_name
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.running import ROOT, TIMEOUT_S, project, serving
from tests.commands import Told, told

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(240)]

COMMAND = [sys.executable, "-m", "streamserve.cli", "dlq"]
CONFIG = """
[app]
name = "APP"
partitions = 2
max_request_bytes = 100000

[pools.main]
models = ["numbers"]

[models.numbers]
source = "acceptance_models:numbers"

[routes.only]
models = ["numbers"]
policy = "hedge"
deadline_ms = 20000
"""
MODEL = """
from pathlib import Path
import numpy as np

BROKEN = Path(__file__).with_name("broken")

def numbers(batch):
    if BROKEN.exists() and (batch < 0).any():
        raise ValueError("takes no number below 0")
    return batch.sum(axis=1).astype(np.int64)
"""


@dataclass
class Operator:
    """The command line, and a client that shares no code with it."""

    config: Path
    client: Foreign

    def dlq(self, command: str, *arguments: object, code: int = 0, typed: str = "") -> Told:
        return told("dlq", command, self.config, *arguments, code=code, typed=typed)

    def json(self, command: str, *arguments: object, **more: Any) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.dlq(command, *arguments, "--json", **more).stdout.splitlines()]

    def fail(self, *numbers: float, partition: int = 0, **more: Any) -> dict[float, str]:
        """Requests of which each ends as a dead letter, between others that are answered; number -> ref."""
        for number in numbers:
            good = oip([1000 - number], [1, 1])  # no two are alike, so that none comes from the cache
            self.client.send(good, tag=("good", number), partition=partition)
            value = oip([number], [1, 1], id=f"order{number}")
            self.client.send(value, tag=number, key=b"k", partition=partition, **more)
            answers = self.client.answers([("good", number), number])
            assert answers["good", number].outcome == "ok"
            assert (answers[number].outcome, answers[number].reason) == ("error", "refused")
        refs = {number: self.client.ref(number) for number in numbers}
        self.wait_for_letters(set(refs.values()))
        return refs

    def wait_for_letters(self, refs: set[str]) -> None:
        """Until each has its dead letter: it is written after the terminal record."""
        until = time.monotonic() + TIMEOUT_S
        while not refs <= (found := {source_of(letter) for letter in self.client.read("dlq")}):
            assert time.monotonic() < until, f"no dead letter of {refs - found}"


def source_of(letter: Seen) -> str:
    named = letter.headers
    return b"-".join(named.get(f"__connect.errors.{part}", b"") for part in ("partition", "offset")).decode()


@pytest.fixture(scope="module")
def config(broker: BrokerForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("dlq")
    file = project(folder, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(file, "--no-spares", state=folder / "state") as app:
        yield file, app.ready
        app.stop()


@pytest.fixture
def anyone(config: tuple[Path, dict[str, Any]]) -> Iterator[Operator]:
    file, ready = config
    with foreign_client(ready) as client:
        yield Operator(file, client)


@pytest.fixture
def operator(anyone: Operator) -> Operator:
    """Its test begins with a model that is broken and without dead letters."""
    anyone.config.with_name("broken").touch()
    anyone.dlq("purge", "--all", "--yes")
    return anyone


def test_a_poison_request_is_seen_put_back_and_answered_under_its_id(operator: Operator, tmp_path: Path) -> None:
    refs = operator.fail(-1.0, -2.0, headers=[("x-tenant", b"t1")])
    first, second = operator.json("list", "--reason", "refused", "--model", "numbers", "--since", "1h")
    assert [letter["source"]["ref"] for letter in (first, second)] == [refs[-1.0], refs[-2.0]]
    assert (first["id"], first["state"], first["model"]) == ("order-1.0", "new", "numbers@1")
    (line,) = operator.dlq("list", "--ref", refs[-1.0]).stdout.splitlines()
    assert line.split()[0] == first["place"]
    assert f"requests {refs[-1.0]}  refused  numbers@1  " in line
    assert "takes no number below 0" in line
    (counted,) = operator.json("list", "--count")
    assert (counted["count"], counted["source"], counted["reason"], counted["model"]) == (
        2,
        "requests",
        "refused",
        "numbers@1",
    )
    assert operator.json("list", "--limit", "1") == [second]

    text = operator.dlq("show", first["place"]).stdout
    for part in ("ValueError", "id         order-1.0", "x-tenant: t1", "JSON\n", "redriven   not yet"):
        assert part in text
    assert "acceptance_models.py" in text.partition("stack\n")[2]
    assert operator.dlq("show", "--ref", refs[-1.0]).stdout.splitlines()[1:] == text.splitlines()[1:]
    operator.dlq("show", first["place"], "--value", tmp_path / "value")
    assert (tmp_path / "value").read_bytes() == oip([-1.0], [1, 1], id="order-1.0")
    assert operator.dlq("show", first["place"], "--value", "-").stdout.encode() == (tmp_path / "value").read_bytes()

    operator.config.with_name("broken").unlink()
    tried = operator.dlq("redrive", "--id", "order-1.0", "--dry-run").stdout
    assert "to send to " in tried
    (done,) = operator.json("redrive", "--id", "order-1.0", "--yes")
    assert (done["result"], done["partition"]) == ("redriven", 0)
    assert "Put back 1 of 2 dead letters" in operator.dlq("redrive", typed="y\n").stderr
    new = {tag: done["ref"] if tag == -1.0 else "" for tag in (-1.0, -2.0)}
    put_back = {
        record.json["id"]: record for record in operator.client.read("requests") if "ss-redriven" in record.headers
    }
    assert set(put_back) == {"order-1.0", "order-2.0"}
    for number, ref in refs.items():
        record = put_back[f"order{number}"]
        assert (record.partition, record.key, record.value) == (0, b"k", oip([number], [1, 1], id=f"order{number}"))
        assert record.headers == {"x-tenant": b"t1", "ss-redriven": b"1", "ss-redriven-from": ref.encode()}
        assert new[number] in ("", f"{record.partition}-{record.offset}")
        operator.client.acknowledged[("again", number)] = (record.partition, record.offset)
    for (_, number), answer in operator.client.answers([("again", number) for number in refs]).items():
        assert (answer.outcome, answer.label, answer.json["id"]) == ("ok", [number], f"order{number}")
        assert answer.headers["ss-id"].decode() == f"order{number}"

    again = operator.dlq("redrive", "--yes").stdout
    assert again.splitlines()[-1] == "2 already redriven"
    assert [letter["state"] for letter in operator.json("list")] == ["redriven", "redriven"]
    assert len([record for record in operator.client.read("requests") if "ss-redriven" in record.headers]) == 2
    assert operator.json("redrive", first["place"], "--again", "--yes")[0]["result"] == "redriven"


def test_an_id_that_only_the_ref_gave_is_kept_and_a_cut_value_is_refused_with_words(operator: Operator) -> None:
    client = operator.client
    large = b" " * 70_000 + b"{"
    client.send(b"not JSON", tag="no id", partition=1)
    client.send(large, tag="large", partition=1)
    answers = client.answers(["no id", "large"])
    assert answers["no id"].json["id"] == client.ref("no id")
    operator.wait_for_letters({client.ref("no id"), client.ref("large")})
    done = operator.dlq("redrive", "--yes", code=1)
    assert "only the first 64 KiB of its value are kept" in done.stdout
    assert hashlib.sha256(large).hexdigest() in done.stdout
    assert f"it has no id: its ref {client.ref('no id')} is kept as ce_id" in done.stdout
    assert sorted(done.stdout.splitlines()[-1].split(", ")) == ["1 impossible", "1 redriven"]
    (record,) = [
        r for r in client.read("requests") if r.headers.get("ss-redriven-from") == client.ref("no id").encode()
    ]
    assert (record.value, record.headers["ce_id"].decode()) == (b"not JSON", client.ref("no id"))
    client.acknowledged["again"] = (record.partition, record.offset)
    assert client.answers(["again"])["again"].json["id"] == client.ref("no id")


def test_feedback_goes_back_to_the_feedback_topic(operator: Operator) -> None:
    operator.client.send(
        b'{"label":', tag="feedback", kind="feedback", key=b"f", headers=[("ss-ref", b"0-0")], partition=1
    )
    operator.client.flush()
    ref = operator.client.ref("feedback")
    operator.wait_for_letters({ref})
    (letter,) = operator.json("list", "--source", "feedback", "--ref", ref)
    assert (letter["reason"], letter["source"]["kind"]) == ("not_json", "feedback")
    (done,) = operator.json("redrive", letter["place"], "--yes")
    assert done["ce_id"] is None
    back = next(r for r in operator.client.read("feedback") if "ss-redriven" in r.headers)
    assert (back.partition, back.key, back.value) == (1, b"f", b'{"label":')
    assert back.headers == {"ss-ref": b"0-0", "ss-redriven": b"1", "ss-redriven-from": ref.encode()}
    assert f"{back.partition}-{back.offset}" == done["ref"]


def test_purge_removes_the_front_and_says_what_it_cannot(operator: Operator) -> None:
    operator.fail(-5.0)
    operator.client.send(b"not JSON", tag="broken", partition=0)
    operator.client.answers(["broken"])
    operator.wait_for_letters({operator.client.ref("broken")})
    operator.fail(-6.0)
    first, middle, last = operator.json("list")
    assert operator.json("purge", "--reason", "refused", "--dry-run", code=1)[0]["kept"] == [last["place"]]
    assert "nothing was done" in operator.dlq("purge", "--all", typed="n\n", code=1).stderr
    assert "--yes does it without asking" in operator.dlq("purge", "--all", code=2).stderr
    assert len(operator.json("list")) == 3
    done = operator.dlq("purge", "--reason", "refused", "--yes", code=1).stdout
    assert f"1 removed, up to {first['place']}" in done
    assert f"1 cannot be removed singly, the first being {last['place']}" in done
    assert [letter["place"] for letter in operator.json("list")] == [middle["place"], last["place"]]
    operator.dlq("purge", "--up-to", middle["place"], "--yes")
    assert [letter["place"] for letter in operator.json("list")] == [last["place"]]
    asked = operator.dlq("purge", "--before", "0s", typed="yes\n")
    assert "Remove 1 dead letters" in asked.stderr
    assert "1 of them never redriven" in asked.stderr
    assert operator.client.read("dlq") == []
    assert "no dead letters in " in operator.dlq("list").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["list", "--partition", "9"], 2, "it has 0 to 1"),
        (["list", "--ref", "0-999999"], 1, "no dead letter of "),
        (["show", "0-999999"], 1, "no dead letter that is meant stands at 0-999999 of "),
        (["redrive", "1-999999", "--yes"], 1, "no dead letter that is meant stands at 1-999999"),
        (["redrive", "--id", "nobody", "--yes"], 1, "no dead letter of "),
        (["redrive", "--reason", "shed", "--yes"], 0, "are meant by that"),
    ],
)
def test_mistakes_are_told_without_a_traceback(anyone: Operator, arguments: list[str], code: int, words: str) -> None:
    assert words in anyone.dlq(*arguments, code=code).stderr


def test_a_redrive_that_is_killed_is_finished_by_the_next_one(broker: BrokerForTests) -> None:
    """A batch is marked as begun, sent, marked as done: wherever it is killed, each record is put back once."""
    app, count = f"dlq-{uuid.uuid4().hex[:10]}", 3000
    asyncio.run(admin.create(broker.bootstrap_servers, catalogue(app, 2, 1), {}))
    named = ["--app", app, "--bootstrap-servers", broker.bootstrap_servers, "--yes", "--json"]
    topics = {kind.value: topic_name(app, kind) for kind in (Kind.REQUESTS, Kind.PREDICTIONS, Kind.DLQ)}
    with foreign_client({"bootstrap_servers": broker.bootstrap_servers, "topics": topics}) as client:
        for offset in range(count):
            place = {"topic": topics["requests"], "partition": str(offset % 2), "offset": str(offset)}
            headers = [(f"__connect.errors.{name}", text.encode()) for name, text in place.items()]
            client.send(
                b"{}", tag=offset, headers=[*headers, ("ss-reason", b"refused")], kind="dlq", partition=offset % 2
            )
        client.flush()
        kills = 0
        for lines in (1, 700, 1500):
            redrive = subprocess.Popen(
                [*COMMAND, "redrive", *named],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            with redrive:
                assert redrive.stdout is not None
                for _ in range(lines):
                    redrive.stdout.readline()
                redrive.kill()
            kills += redrive.wait(TIMEOUT_S) == -signal.SIGKILL
        last = subprocess.run(
            [*COMMAND, "redrive", *named],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert {json.loads(text)["result"] for text in last.stdout.splitlines()} <= {"redriven", "already_redriven"}
        origins = Counter(record.headers["ss-redriven-from"] for record in client.read("requests"))
    assert kills > 0
    assert origins == Counter(b"%d-%d" % (offset % 2, offset) for offset in range(count))
