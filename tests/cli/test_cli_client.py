"""`send` and `feedback` on a log in memory: pipes that close, standard input that fails, labels that are no JSON."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamserve.cli import client as commands
from streamserve.cli.entry import run
from streamserve.client import Client
from streamserve.client.targets import Target
from streamserve.testing.log import MemoryLog
from tests.client.conftest import APP, FEEDBACK, PARTITIONS, PREDICTIONS, REQUESTS, MemoryApp

TIMEOUT_S = 30.0


@contextmanager
def typed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> Iterator[None]:
    """Standard input that holds this."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        monkeypatch.setattr(sys, "stdin", file)
        yield


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryApp:
    app = MemoryApp(MemoryLog(dict.fromkeys((REQUESTS, PREDICTIONS, FEEDBACK), PARTITIONS)))
    target = Target(app=APP, bootstrap_servers="memory")
    monkeypatch.setattr(commands, "target_and_rest", lambda data, *_: (target, data))
    monkeypatch.setattr(commands, "_client", lambda *_: Client(app=APP, log=app, grace_ms=0))
    return app


@pytest.fixture
def thread_errors(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    errors: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    return errors


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        run(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize("lines", [3, 1_000])
def test_a_reader_that_has_gone_ends_it_without_a_word(
    memory: MemoryApp,
    thread_errors: list[Any],
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(commands.typer, "echo", broken)
    with typed(monkeypatch, b"[1]\n" * lines):
        assert called("send", "--no-wait", "-") == 1
    assert capfd.readouterr().err == ""
    assert thread_errors == []
    assert [record.getMessage() for record in caplog.records] == []


def test_standard_input_that_cannot_be_read_is_told(
    memory: MemoryApp,
    thread_errors: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: folder))
    assert called("send", "--no-wait", "-") == 2
    os.close(folder)
    assert capfd.readouterr().err == "streamserve: standard input cannot be read: Is a directory\n"
    assert thread_errors == []


def test_standard_input_that_is_closed_is_told(
    memory: MemoryApp, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert called("send", "-") == 2
    assert capfd.readouterr().err == "streamserve: standard input is closed\n"


def test_each_line_is_one_request(
    memory: MemoryApp, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    long = b"[" + b"1," * 100_000 + b"1]"
    with typed(monkeypatch, b"[1]\n\n  \n" + long + b"\n[2]\r\n[3]"):
        assert called("send", "--no-wait", "-") == 0
    assert len(capfd.readouterr().out.splitlines()) == len(memory.requests()) == 4
    with typed(monkeypatch, b"[1]\n\n{"):
        assert called("send", "--no-wait", "-") == 2
    assert "line 3 of standard input: not JSON" in capfd.readouterr().err


WAITS_FOR_MORE = """
from streamserve.cli import client as commands
from streamserve.cli.entry import run
from streamserve.client import Client
from streamserve.client.targets import Target
from streamserve.testing.log import MemoryLog
from tests.client.conftest import APP, FEEDBACK, PARTITIONS, PREDICTIONS, REQUESTS, MemoryApp

app = MemoryApp(MemoryLog(dict.fromkeys((REQUESTS, PREDICTIONS, FEEDBACK), PARTITIONS)))
commands.target_and_rest = lambda data, *_: (Target(app=APP, bootstrap_servers="memory"), data)
commands._client = lambda *_: Client(app=APP, log=app, grace_ms=0)
run(["send", "--no-wait", "-"])
"""


@pytest.mark.parametrize(("first", "code", "words"), [(b"{\n", 2, "not JSON"), (b"[1]\n", 130, "")])
def test_it_ends_in_order_while_more_is_waited_for(first: bytes, code: int, words: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_MORE],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            process.stdin.write(first)
            process.stdin.flush()
            if code == 130:
                assert process.stdout.readline()
                process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == code  # its standard input is still open
            said = process.stderr.read().decode()
        finally:
            process.kill()
    assert words in said
    assert len(said.splitlines()) == bool(words)


@pytest.mark.parametrize("text", ["NaN", "nan", "Infinity", "-inf", "1e999"])
def test_a_label_that_json_lacks_is_refused_in_words(
    memory: MemoryApp, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert called("feedback", "0-1", "--label", text) == 2
    assert f"""quote it: --label '"{text}"'""" in capfd.readouterr().err
    assert not any(memory.log.records(FEEDBACK).values())


@pytest.mark.parametrize(
    ("text", "label"), [('"nan"', b'"nan"'), ("good", b'"good"'), ("007", b'"007"'), ("7", b"7"), ("[1,2]", b"[1,2]")]
)
def test_a_label_is_json_else_a_text(memory: MemoryApp, text: str, label: bytes) -> None:
    assert called("feedback", "0-1", "--label", text) == 0
    (record,) = memory.log.records(FEEDBACK)[0]
    assert label in (record.value or b"")


@pytest.mark.parametrize("has_outcomes", [True, False])
def test_feedback_that_nobody_joins_is_told(
    memory: MemoryApp, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], has_outcomes: bool
) -> None:
    target = Target(app=APP, bootstrap_servers="memory", has_outcomes=has_outcomes)
    monkeypatch.setattr(commands, "target_and_rest", lambda data, *_: (target, data))
    assert called("feedback", "0-1", "--label", "1") == 0
    assert ("starts no learner" in capfd.readouterr().err) is not has_outcomes
    assert any(memory.log.records(FEEDBACK).values())


def test_rows_of_unequal_length_are_told_in_our_words(memory: MemoryApp, capfd: pytest.CaptureFixture[str]) -> None:
    assert called("send", "[[1, 2], [3]]") == 2
    assert capfd.readouterr().err == (
        "streamserve: x is no array: row 0 has 2 values, row 1 has 1 value; give rows of equal length\n"
    )
