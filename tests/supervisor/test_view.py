"""The live view."""

from __future__ import annotations

import fcntl
import io
import os
import sys
import termios
import threading
import time

from rich.console import Console

from streamserve.supervisor.news import News
from streamserve.supervisor.view import LiveView, render
from tests.supervisor.samples import READY, STATUS, snapshot

PIPE_BYTES = 65_536


def drawn(console_file: io.StringIO) -> Console:
    return Console(file=console_file, width=140, force_terminal=False)


def test_it_shows_processes_batches_and_weights() -> None:
    console = drawn(io.StringIO())
    with console.capture() as captured:
        console.print(render(snapshot(STATUS), ["something happened"]))
    text = captured.get()
    for words in ("tiny on Kafka at host:1", "worker-main-0", "4711", "201", "9.5", "ok 1,003 partial 2"):
        assert words in text
    for words in ("forest@1", "12 (drained)", "digits", "0.710 ████", "something happened"):
        assert words in text


def test_it_shows_processes_that_have_said_nothing_yet() -> None:
    console = drawn(io.StringIO())
    with console.capture() as captured:
        console.print(render(snapshot(), []))
        console.print(render(None, ["starting Kafka"]))
    assert "serving" in captured.get()
    assert "starting Kafka" in captured.get()
    assert "weights" not in captured.get()


def test_the_last_picture_stays() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=140, force_terminal=True))
    view.news(READY)
    view.status(snapshot(STATUS))
    view.heard("worker-main-0", "not shown")
    view.close()
    assert "ready now" in out.getvalue()
    assert "worker-main-0" in out.getvalue()
    assert "not shown" not in out.getvalue()


def test_a_terminal_that_is_held_stalls_nothing() -> None:
    read, write = os.pipe()  # nobody reads: a write waits as in a terminal after Ctrl-S
    out = os.fdopen(write, "w")
    view = LiveView(Console(file=out, width=400, height=100, force_terminal=True))
    while waiting_bytes(read) < PIPE_BYTES - 4096:
        view.news(News(event="progress", words="\n".join(["x" * 300] * 100)))
        time.sleep(0.001)
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
