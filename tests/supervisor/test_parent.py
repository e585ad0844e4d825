"""The child's side of its supervisor, in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamserve.errors import ConfigError
from streamserve.supervisor import parent
from streamserve.supervisor.parent import (
    ALONE,
    DOING,
    GO,
    JOIN,
    LEAVES,
    PARENT_FD,
    PREPARED,
    READY,
    TWIN,
    WARM,
    gave_up,
    has_twin,
    twin_prepared,
    wait_for_go,
    wait_to_join,
    watch_parent,
)

TIMEOUT_S = 30.0
WATCHED = "from streamserve.supervisor import parent\nparent.watch_parent()\n"
WAITS = "import signal\nprint('here', flush=True)\nwhile True: signal.pause()\n"


@contextmanager
def child(program: str) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, PARENT_FD: str(theirs.fileno())},
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        with process:
            try:
                yield process, ours
            finally:
                process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_child_ends_when_its_supervisor_has_gone() -> None:
    with child(WATCHED + WAITS) as (process, line):
        assert first_line(process) == "here"
        assert process.poll() is None
        line.close()
        assert process.wait(TIMEOUT_S) == -signal.SIGTERM


def test_a_child_that_does_not_heed_sigterm_is_killed() -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with child("from streamserve.supervisor import parent\nparent.GRACE_S = 0.1\n" + deaf + WATCHED + WAITS) as (
        process,
        line,
    ):
        assert first_line(process) == "here"
        line.close()
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL


def test_a_child_waits_for_its_turn_and_says_that_it_is_warm() -> None:
    with child(WATCHED + "parent.wait_for_go()\nprint('gone on', flush=True)\n") as (process, line):
        assert line.recv(1) == WARM
        assert process.poll() is None
        line.send(GO)
        assert first_line(process) == "gone on"
        assert process.wait(TIMEOUT_S) == 0


def test_a_turn_given_early_is_not_lost() -> None:
    with child("import time\n" + WATCHED + "parent.wait_for_go()\nprint('gone on', flush=True)\n") as (process, line):
        line.send(GO)
        assert first_line(process) == "gone on"


@pytest.mark.parametrize(("said", "has"), [(b"", "False"), (TWIN, "True"), (TWIN + ALONE, "False")])
def test_a_child_knows_whether_a_twin_waits(said: bytes, has: str) -> None:
    with child(WATCHED + "parent.wait_for_go()\nprint(parent.has_twin(), flush=True)\n") as (process, line):
        line.send(said + GO)
        assert first_line(process) == has


def test_a_child_whose_supervisor_has_gone_has_no_twin() -> None:
    told = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print(parent.has_twin(), flush=True))\n"
    with child(WATCHED + told + "parent.wait_for_go()\n" + WAITS) as (process, line):
        line.send(TWIN + GO)
        assert first_line(process) == "here"
        line.close()
        assert first_line(process) == "False"


def test_a_child_joins_only_when_it_may() -> None:
    joins = "parent.wait_for_go()\nimport asyncio\nasyncio.run(parent.wait_to_join())\nprint('joins', flush=True)\n"
    with child(WATCHED + joins) as (process, line):
        assert line.recv(1) == WARM
        line.send(GO)
        assert line.recv(1) == PREPARED
        assert process.poll() is None
        line.send(JOIN)
        assert first_line(process) == "joins"


@pytest.mark.parametrize("then", [READY, ALONE])
def test_a_child_that_is_to_stop_goes_on_until_its_twin_is_ready_or_gone(then: bytes) -> None:
    leaves = "parent.TWIN_S = 60\nparent.wait_for_go()\nimport asyncio\nasyncio.run(parent.twin_prepared())\n"
    with child(WATCHED + leaves + "print(parent.has_twin(), flush=True)\n") as (process, line):
        assert line.recv(1) == WARM
        line.send(TWIN + GO)
        assert line.recv(1) == LEAVES
        assert process.poll() is None
        line.send(then)
        assert first_line(process) == str(then == READY)


def test_a_child_waits_for_its_twin_not_for_ever() -> None:
    leaves = "parent.TWIN_S = 0.1\nparent.wait_for_go()\nimport asyncio\nasyncio.run(parent.twin_prepared())\n"
    with child(WATCHED + leaves + "print(parent.has_twin(), flush=True)\n") as (process, line):
        line.send(TWIN + GO)
        assert first_line(process) == "True"  # it joins as soon as it is ready


def test_a_child_says_what_it_is_doing() -> None:
    program = "parent.tell_doing('loading\\nmodel ' + 'ü' * 400)\nparent.wait_for_go()\n"
    with child(WATCHED + program) as (_, line), line.makefile("rb") as said:
        told = said.readline()
        assert told.startswith(DOING + b"loading model " + "ü".encode())
        assert len(told) < 600
        assert said.read(1) == WARM


def test_a_waiting_child_ends_with_its_supervisor() -> None:
    with child(WATCHED + "parent.wait_for_go()\n") as (process, line):
        assert line.recv(1) == WARM
        line.close()
        assert process.wait(TIMEOUT_S) == -signal.SIGTERM


def test_what_a_child_starts_itself_is_not_the_supervisors() -> None:
    with child("import os\n" + WATCHED + f"print(os.environ.get('{PARENT_FD}'), flush=True)\n") as (process, _):
        assert first_line(process) == "None"


def test_without_a_supervisor_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT_FD, raising=False)
    watch_parent()
    wait_for_go()
    asyncio.run(wait_to_join())
    asyncio.run(twin_prepared())
    gave_up()
    assert not has_twin()
    assert parent._watches == []


@pytest.mark.parametrize("number", ["one", "999"])
def test_a_variable_that_no_supervisor_set_is_refused(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv(PARENT_FD, number)
    with pytest.raises(ConfigError, match=f"{PARENT_FD}={number}: only `streamserve up`"):
        watch_parent()
