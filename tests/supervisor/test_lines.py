"""Plain lines and JSON lines; nobody who does not read stalls anything."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator

import pytest

from streamserve.supervisor import lines as lines_module
from streamserve.supervisor.lines import JsonLines, LineWriter, PlainLines, number, plain_status
from streamserve.supervisor.news import News
from tests.supervisor.samples import READY, STATUS, facts, snapshot

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read, write = os.pipe()
    yield read, write
    for end in (read, write):
        with contextlib.suppress(OSError):
            os.close(end)


@pytest.fixture
def other() -> Iterator[Pipe]:
    read, write = os.pipe()
    yield read, write
    for end in (read, write):
        os.close(end)


def lost(count: int) -> str:
    return f"lost {count}"


def read_to_end(pipe: Pipe) -> list[str]:
    os.close(pipe[1])
    with os.fdopen(os.dup(pipe[0])) as file:
        return file.read().splitlines()


def test_lines_arrive_in_order(pipe: Pipe) -> None:
    writer = LineWriter(pipe[1], lost)
    for index in range(100):
        writer.write(str(index))
    writer.close()
    assert read_to_end(pipe) == [str(index) for index in range(100)]


def test_a_full_pipe_drops_lines_counts_them_and_never_waits(pipe: Pipe) -> None:
    writer = LineWriter(pipe[1], lost, most_queued=10)
    line = "x" * 1000
    written = 1000  # far more than pipe and queue hold
    for _ in range(written):
        writer.write(line)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.extend(read_to("last", pipe[0])))
    reader.start()
    while reader.is_alive():  # each is taken or counted: the first that is taken after a gap tells of it
        writer.write("last")
        written += 1
    writer.close()
    reader.join(30)
    dropped = [int(text.split()[1]) for text in read if text.startswith("lost")]
    assert sum(dropped) > 500
    assert 1000 <= read.count(line) + sum(dropped) <= written


def read_to(end: str, descriptor: int) -> Iterator[str]:
    with os.fdopen(os.dup(descriptor)) as file:
        for text in file:
            yield text.strip()
            if text.strip() == end:
                return


def test_closing_does_not_wait_for_a_reader(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "_CLOSE_S", 0.05)
    writer = LineWriter(pipe[1], lost)
    writer.write("x" * 1_000_000)
    writer.close()


def test_a_reader_that_has_gone_is_no_error(pipe: Pipe) -> None:
    writer = LineWriter(pipe[1], lost)
    os.close(pipe[0])
    for _ in range(10):
        writer.write("x")
    writer.close()


def test_a_pipe_made_non_blocking_gets_whole_lines(pipe: Pipe) -> None:
    os.set_blocking(pipe[1], False)
    writer = LineWriter(pipe[1], lost)
    writer.write("x" * 300_000)
    read = b""
    while not read.endswith(b"\n"):
        read += os.read(pipe[0], 65_536)
    writer.close()
    assert len(read) == 300_001


def test_who_is_waited_for_is_told_before_ready_too(pipe: Pipe, other: Pipe) -> None:
    outlet = JsonLines(pipe[1], other[1])
    outlet.news(News(event="waiting", words="waiting for a", facts={"name": "a", "doing": "loading model m@1"}))
    outlet.news(READY)
    outlet.close()
    waiting, ready = (json.loads(line) for line in read_to_end(pipe))
    assert (waiting["event"], waiting["name"], waiting["doing"]) == ("waiting", "a", "loading model m@1")
    assert ready["event"] == "ready"


def test_json_lines_begin_with_ready(pipe: Pipe, other: Pipe) -> None:
    outlet = JsonLines(pipe[1], other[1])
    outlet.news(News(event="progress", words="starting Kafka"))
    outlet.status(snapshot())
    outlet.heard("worker-main-0", "hello")
    outlet.news(READY)
    outlet.status(snapshot(STATUS))
    outlet.news(News(event="stopping", words="stopping: SIGTERM", facts={"why": "SIGTERM"}))
    outlet.close()
    said = [json.loads(line) for line in read_to_end(pipe)]
    assert [one["event"] for one in said] == ["ready", "status", "stopping"]
    assert said[0]["bootstrap_servers"] == "host:1"
    (role,) = said[1]["roles"]
    assert (role["name"], role["pid"], role["metrics_port"], role["state"]) == ("worker-main-0", 4711, 9000, "serving")
    assert role["status"] == STATUS
    assert os.read(other[0], 1000).decode().splitlines() == ["starting Kafka", "[worker-main-0] hello"]


def test_plain_lines_say_how_it_goes_every_5_s(pipe: Pipe, other: Pipe) -> None:
    now = [100.0]
    outlet = PlainLines(pipe[1], other[1], clock=lambda: now[0])
    outlet.status(snapshot(STATUS))
    outlet.news(READY)
    for _ in range(12):
        outlet.status(snapshot(STATUS))
        now[0] += 1.0
    outlet.heard("worker-main-0", "hello")
    outlet.close()
    assert read_to_end(pipe) == [
        "ready now",
        *[plain_status(facts(STATUS)), "weights of digits: forest@1 0.71 linear@1 0.29"] * 3,
    ]
    assert os.read(other[0], 1000) == b"[worker-main-0] hello\n"


def test_a_process_in_one_line() -> None:
    assert plain_status(facts()) == "worker-main-0: serving"
    assert plain_status(facts(STATUS)) == (
        "worker-main-0: reads 201/s, lag 3, forest@1 batch 12 (drained), "
        "digits 199/s p50 4 ms p99 9.5 ms ok 1,003 partial 2"
    )


@pytest.mark.parametrize(("value", "words"), [(None, "-"), (0, "0"), (0.25, "0.2"), (9.5, "9.5"), (12345.6, "12,346")])
def test_figures_for_people(value: float | None, words: str) -> None:
    assert number(value) == words
