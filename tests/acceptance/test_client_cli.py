"""`streamserve send`, `feedback`, `tail`, `show` as a person uses them; the app that answers shares no code with us.

Each is run as a process once; the rest asks what they say, in this one (`told`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from streamserve.kafka import admin
from streamserve.testing.broker_fixture import BrokerForTests
from streamserve.topics import catalogue
from tests.client.responder import Responder
from tests.commands import told

pytestmark = pytest.mark.beside

COMMAND = [sys.executable, "-m", "streamserve.cli"]
TIMEOUT_S = 60
PARTITIONS = 2
WAITS = "10000"

CONFIG = """
[app]
name = "{app}"
partitions = 2

[broker]
bootstrap_servers = "{servers}"

[pools.main]
models = ["sum"]

[models.sum]
source = "workers.any:model"

[routes.digits]
models = ["sum"]
deadline_ms = 10000
"""


@pytest.fixture(scope="module")
def app(broker: BrokerForTests) -> Iterator[str]:
    """The name of an app that answers: a row's label is the sum of its numbers."""
    name = f"cli-{uuid.uuid4().hex[:10]}"
    asyncio.run(admin.create(broker.bootstrap_servers, catalogue(name, PARTITIONS, 1), {}))
    with Responder(broker.bootstrap_servers, name, PARTITIONS):
        yield name


@pytest.fixture
def config(broker: BrokerForTests, app: str, tmp_path: Path) -> Path:
    file = tmp_path / "streamserve.toml"
    file.write_text(CONFIG.format(app=app, servers=broker.bootstrap_servers), "utf-8")
    return file


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def run_json(*arguments: object) -> list[dict[str, Any]]:
    return lines_of(run(*arguments, "--json").stdout)


def told_json(*arguments: object, **more: Any) -> list[dict[str, Any]]:
    return lines_of(told(*arguments, "--json", **more).stdout)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def labels(predictions: list[dict[str, Any]]) -> list[list[float]]:
    return [prediction["outputs"][0]["data"] for prediction in predictions]


@pytest.mark.broker
def test_send_takes_rows_files_and_standard_input_in_order(config: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[1.5, 2.0], [0.0, 4.0]]))
    (tmp_path / "row.json").write_text("[[7, 8]]", "utf-8")
    whole = '{"id": "mine", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT64", "data": [9]}]}'
    data = ["[1, 2]", "[[1], [2], [3]]", whole, f"@{tmp_path / 'rows.npy'}", f"@{tmp_path / 'row.json'}", "-"]
    found = told_json("send", config, *data, typed="[4]\n\n[5, 5]\n")
    assert labels(found) == [[3], [1, 2, 3], [9], [3.5, 4.0], [15], [4], [10]]
    assert found[2]["id"] == "mine"
    assert all(set(prediction["ref"]) <= set("0123456789-") for prediction in found)
    text = told("send", config, "[1, 2]", "--key", "k", "--route", "digits").stdout
    assert "partial (members missing), label 3.0, confidence 0.5, without gone@1 (late), 4 ms" in text


@pytest.mark.broker
def test_the_config_may_be_the_folder_s_or_the_app_be_named(broker: BrokerForTests, app: str, config: Path) -> None:
    assert labels(told_json("send", "[1, 1]", cwd=config.parent)) == [[2]]
    named = ["--app", app, "--bootstrap-servers", broker.bootstrap_servers]
    assert labels(told_json("send", "[2, 2]", "--deadline-ms", WAITS, *named)) == [[4]]


@pytest.mark.broker
def test_a_request_is_followed_from_send_to_show(config: Path) -> None:
    ref = run("send", config, "[20, 22]", "--no-wait", "--key", "k").stdout.strip()
    (seen,) = [
        record
        for record in run_json("tail", config, "requests", "--from-start", "--until-end")
        if f"{record['partition']}-{record['offset']}" == ref
    ]
    assert (seen["key"], seen["value"]["inputs"][0]["data"]) == ("k", [20, 22])
    said = run("feedback", config, ref, "--label", "42", "--reward", "0.5").stdout
    assert f"feedback for {ref} stands at {ref.split('-')[0]}-" in said
    story = run("show", config, ref).stdout.splitlines()
    assert story[0].startswith(f"request {ref} of ")
    assert [text.split(" ms  ")[1].split()[0] for text in story[1:4]] == ["request", "prediction", "feedback"]
    assert "label 42.0, confidence 0.5" in story[2]
    assert f'{ref} {{"id":"{ref}","label":42,"reward":0.5}}' in story[3]
    (shown,) = run_json("show", config, ref)
    assert shown["predictions"][0]["value"]["outputs"][0]["data"] == [42]
    assert shown["feedback"][0]["headers"] == {"ss-ref": ref}


@pytest.mark.broker
def test_tail_shows_lines_and_ends_where_it_is_told_to(config: Path) -> None:
    told("send", config, "[1]", "[2]", "[3]")
    lines = told("tail", config, "--from-start", "--max", "2").stdout.splitlines()
    assert len(lines) == 2
    assert all(" predictions " in text and "partial (members missing)" in text for text in lines)
    assert told("tail", config, "outcomes", "--from-start", "--until-end").stdout == ""


@pytest.mark.broker
def test_tail_follows_what_comes_until_ctrl_c(config: Path) -> None:
    following = subprocess.Popen(
        [*COMMAND, "tail", str(config), "predictions", "--json", "--from-start"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with following:
        try:
            ref = told_json("send", config, "[6]")[0]["ref"]
            assert following.stdout is not None
            while json.loads(following.stdout.readline())["headers"]["ss-ref"] != ref:
                pass
            following.send_signal(signal.SIGINT)
            assert following.wait(TIMEOUT_S) == 130
            assert following.stderr is not None
            assert "Traceback" not in following.stderr.read()
        finally:
            following.kill()


@pytest.mark.broker
@pytest.mark.parametrize(
    "command", [["send", "CONFIG", "--no-wait", "-"], ["tail", "CONFIG", "requests", "--from-start"]]
)
def test_a_reader_that_has_gone_ends_it_without_a_word(config: Path, command: list[str]) -> None:
    arguments = [str(config) if argument == "CONFIG" else argument for argument in command]
    told("send", config, *(["[1]"] * 3), "--no-wait")
    typed = b"[1]\n" * 20_000
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            feeding = threading.Thread(target=feed, args=(process.stdin, typed))
            feeding.start()
            assert process.stdout.readline()
            process.stdout.close()
            if "tail" in command:
                told("send", config, "[1]", "--no-wait")  # what it shows next nobody reads
            assert process.wait(TIMEOUT_S) == 1
            assert process.stderr.read() == b""
        finally:
            process.kill()
            feeding.join(TIMEOUT_S)


def feed(pipe: IO[bytes], content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(content)


@pytest.mark.broker
def test_a_request_that_nobody_answers_ends_with_words(broker: BrokerForTests) -> None:
    silent = f"cli-{uuid.uuid4().hex[:10]}"
    asyncio.run(admin.create(broker.bootstrap_servers, catalogue(silent, 1, 1), {}))
    named = ["--app", silent, "--bootstrap-servers", broker.bootstrap_servers]
    done = told("send", "[1]", "--deadline-ms", "1000", "--grace-ms", "500", *named, code=1)
    assert "request 0-0 was not answered within 1500 ms (deadline 1000, grace 500)" in done.stderr
    assert f"group {silent}.terminal has never read this topic" in done.stderr


@pytest.mark.broker
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["send", "CONFIG"], 2, "nothing to send"),
        (["send", "CONFIG", "{"], 2, "{: not JSON"),
        (["send", "CONFIG", "7"], 2, "7: expected rows such as"),
        (["send", "CONFIG", "@nowhere.json"], 2, "nowhere.json: cannot be read: No such file"),
        (["send", "CONFIG", "[[1], [2, 3]]"], 2, "row 0 has 1 value, row 1 has 2 values; give rows of equal length"),
        (["feedback", "CONFIG", "0-0", "--label", "NaN"], 2, "JSON has no such number"),
        (["send", "CONFIG", "--app", "x", "[1]"], 2, "name the app once"),
        (["feedback", "CONFIG", "nonsense", "--label", "1"], 2, "'nonsense' is no ref"),
        (["feedback", "CONFIG", "0-0"], 2, "needs a label or a reward"),
        (["feedback", "CONFIG", "--label", "1"], 2, "expected the request's ref, such as 2-17; got nothing"),
        (["tail", "CONFIG", "answer"], 2, "'answer' is no topic of an app; there are: requests, answers"),
        (["show", "CONFIG", "0-999999"], 1, "no request stands at 0-999999"),
        (["show", "--app", "nobody", "--bootstrap-servers", "SERVERS", "0-0"], 5, "has no topic nobody.requests.v1"),
        (["tail", "--app", "nobody", "--bootstrap-servers", "127.0.0.1:1"], 4, "no Kafka broker answers"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    broker: BrokerForTests, config: Path, arguments: list[str], code: int, words: str
) -> None:
    named = {"CONFIG": str(config), "SERVERS": broker.bootstrap_servers}
    assert words in told(*(named.get(argument, argument) for argument in arguments), code=code).stderr


@pytest.mark.slow
def test_without_an_app_or_a_running_kafka_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no app is named: give its config first" in told("show", "0-0", cwd=tmp_path, code=2).stderr
    monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path))
    words = told("tail", "--app", "digits", cwd=tmp_path, code=4).stderr
    assert "no Kafka is named and none of ours runs for app digits" in words
    assert "streamserve up CONFIG" in words
