"""The live view."""

from __future__ import annotations

import fcntl
import io
import os
import sys
import termios
import threading
import time

import pytest
from rich.console import Console

from streamserve.supervisor import view as view_module
from streamserve.supervisor.news import News
from streamserve.supervisor.view import LiveView
from tests.supervisor.samples import READY, STATUS, snapshot

#: xterm's control sequence: off with the second screen.
FIRST_SCREEN_AGAIN = "\x1b[?1049l"


def test_the_last_picture_stays() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=140, force_terminal=True))
    view.news(READY)
    view.status(snapshot(STATUS))
    view.heard("worker-main-0", "not shown")
    view.close()
    _, _, stays = out.getvalue().rpartition(FIRST_SCREEN_AGAIN)
    assert "ready now" in stays
    assert "worker-main-0" in stays
    assert "not shown" not in out.getvalue()


def test_a_terminal_that_is_held_stalls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "_CLOSE_S", 0.05)
    read, write = os.pipe()  # nobody reads: a write waits as in a terminal after Ctrl-S
    out = os.fdopen(write, "w")
    view = LiveView(Console(file=out, width=400, height=100, force_terminal=True))
    full_since_s, full_bytes = time.monotonic(), 0
    while not full_bytes or time.monotonic() - full_since_s < 0.3:
        view.news(News(event="progress", words="\n".join(["x" * 300] * 100)))
        if waiting_bytes(read) != full_bytes:
            full_since_s, full_bytes = time.monotonic(), waiting_bytes(read)
        time.sleep(0.001)
    assert full_bytes > 4096
    view.news(READY)
    view.close()
    drain = threading.Thread(target=read_all, args=(read,))
    drain.start()
    view._thread.join(30)
    out.close()
    drain.join(30)


def waiting_bytes(pipe: int) -> int:
    count = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def read_all(pipe: int) -> None:
    with os.fdopen(pipe, "rb") as file:
        file.read()
