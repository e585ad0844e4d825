"""Guarded programs: they end when asked, when killed, and together with their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import guard
from streamserve.kafka.brokers.process import Process, spawn, start_mark
from tests.processes import alive

GONE_TIMEOUT_S = 15.0


def test_a_pid_is_known_by_its_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        mark = start_mark(child.pid)
        assert mark is not None
        assert mark != start_mark(os.getpid())
        assert Process(pid=child.pid, mark=mark).is_running
        assert not Process(pid=child.pid, mark="another").is_running
    assert start_mark(child.pid) is None


def sleeper(*, ignore_term: bool = False) -> list[str]:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignore_term else ""
    return [sys.executable, "-c", f"import signal,time;{ignore}print('up', flush=True);time.sleep(600)"]


def wait_for_text(path: Path, text: str) -> None:
    until = time.monotonic() + GONE_TIMEOUT_S
    while text not in path.read_text("utf-8"):
        assert time.monotonic() < until, f"{text!r} did not appear in {path}"


def test_a_guarded_program_ends_when_asked(tmp_path: Path) -> None:
    process = spawn(sleeper(), log=tmp_path / "log", lock_fd=-1, detached=False)
    assert process.is_running
    process.terminate()
    assert process.wait(GONE_TIMEOUT_S)
    assert process.exit_code() == 128 + signal.SIGTERM


def test_a_guarded_program_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    process = spawn(sleeper(ignore_term=True), log=tmp_path / "log", lock_fd=-1, detached=False)
    wait_for_text(tmp_path / "log", "up")
    process.terminate()
    assert not process.wait(0.1)
    process.kill()
    assert process.wait(GONE_TIMEOUT_S)
    assert process.exit_code() == 128 + signal.SIGKILL


@pytest.mark.parametrize("ignore_term", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_guarded_program_ends_with_a_killed_owner(tmp_path: Path, ignore_term: bool) -> None:
    code = f"""
import sys
from pathlib import Path
from streamserve.kafka.brokers.process import spawn
process = spawn({sleeper(ignore_term=ignore_term)!r}, log=Path({str(tmp_path / "log")!r}), lock_fd=-1, detached=False)
print(process.pid, process.guardian.pid, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        family = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        wait_for_text(tmp_path / "log", "up")
        owner.kill()
    assert alive(family, guard.GRACE_S + GONE_TIMEOUT_S) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux binds a program to its parent's life")
def test_a_guarded_program_ends_with_a_killed_guard(tmp_path: Path) -> None:
    process = spawn(sleeper(), log=tmp_path / "log", lock_fd=-1, detached=False)
    assert process.guardian is not None
    process.guardian.kill()
    assert process.wait(GONE_TIMEOUT_S)


def test_a_program_that_cannot_start_is_said(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"cannot start .*nothing-here: .*No such file"):
        spawn([str(tmp_path / "nothing-here")], log=tmp_path / "log", lock_fd=-1, detached=False)
