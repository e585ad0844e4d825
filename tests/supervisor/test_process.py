"""A child process, and what it says over its line."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamserve.supervisor.logfile import LogFile
from streamserve.supervisor.process import ChildProcess

TIMEOUT_S = 30.0


def said(tmp_path: Path, pieces: list[bytes], check: Callable[[ChildProcess], None]) -> None:
    """A child whose side of the line says these pieces."""

    async def whole() -> None:
        log = LogFile(tmp_path / "log")
        process = ChildProcess(
            [sys.executable, "-c", "import signal; signal.pause()"],
            environment=dict(os.environ),
            status_file=tmp_path / "status",
            log=log,
            heard=lambda _: None,
        )
        ours, theirs = socket.socketpair()
        with ours, theirs:
            line, process._line = process._line, ours
            ours.setblocking(False)
            for piece in pieces:
                theirs.send(piece)
                process._hear_line()
            process._line = line
        check(process)
        process.kill()
        async with asyncio.timeout(TIMEOUT_S):
            await process.exited
        log.close()

    asyncio.run(whole())


def test_each_word_of_a_hand_over_is_heard_in_the_midst_of_others(tmp_path: Path) -> None:
    def check(process: ChildProcess) -> None:
        assert process.warm.is_set() and process.prepared.is_set() and process.over.is_set()
        assert not process.leaves.is_set()

    said(tmp_path, [b"wdwaiting\np", b"o"], check)


@pytest.mark.parametrize(
    ("pieces", "doing", "warm"),
    [
        ([b"w"], "", True),
        ([b"dwarming\n"], "warming", False),
        ([b"dwar", b"ming", b"\nw"], "warming", True),
        ([b"done\ndtwo\nw"], "two", True),
        ([b"?w"], "", True),
        ([b"d\xff\n"], "\ufffd", False),
    ],
)
def test_what_it_says_is_heard_whole_however_it_comes(
    tmp_path: Path, pieces: list[bytes], doing: str, warm: bool
) -> None:
    def check(process: ChildProcess) -> None:
        assert (process.doing, process.warm.is_set()) == (doing, warm)

    said(tmp_path, pieces, check)
