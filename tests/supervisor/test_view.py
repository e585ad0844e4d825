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
from streamserve.supervisor.news import News, Snapshot
from streamserve.supervisor.view import LiveView, render
from tests.supervisor.samples import READY, STATUS, snapshot


def drawn(console_file: io.StringIO) -> Console:
    return Console(file=console_file, width=140, force_terminal=False)


def picture(of: Snapshot | None, *news: str) -> str:
    console = drawn(io.StringIO())
    with console.capture() as captured:
        console.print(render(of, news))
    return captured.get()


def line(text: str, start: str) -> list[str]:
    """The words of the one line that begins so."""
    (found,) = [line.split() for line in text.splitlines() if line.startswith(start)]
    return found


def test_it_shows_processes_routes_and_models() -> None:
    text = picture(snapshot(STATUS), "something happened")
    assert "tiny on Kafka at host:1" in text
    assert line(text, "worker-main-0") == ["worker-main-0", "serving", "4711", "1", "201", "3", "5"]
    assert line(text, "digits") == ["digits", "worker-main-0", "199", "4", "9.5", "ok", "1,003", "partial", "2"]
    assert line(text, "forest@1") == ["forest@1", "worker-main-0", "12", "(drained)", "0.710", "█" * 24]
    assert line(text, "linear@1") == ["linear@1", "0.290", "█" * 10]
    assert "something happened" in text


def test_it_fits_a_small_terminal() -> None:
    batches = {f"model-{index}@1": {"size": 1, "why": "drained"} for index in range(5)}
    text = picture(snapshot(STATUS | {"batches": batches}), *["news"] * 6)
    assert len(text.splitlines()) <= 24


def test_weights_of_several_routes_name_them() -> None:
    text = picture(snapshot(STATUS | {"weights": {"a": {"forest@1": 1.0}, "b": {"forest@1": 0.0}}}))
    assert line(text, "forest@1")[-1] == "a"
    assert "0.000" in text


def test_it_shows_processes_that_have_said_nothing_yet() -> None:
    text = picture(snapshot())
    assert line(text, "worker-main-0")[1] == "serving"
    assert "outcomes" not in text
    assert "starting Kafka" in picture(None, "starting Kafka")


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
