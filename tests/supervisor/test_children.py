"""A child kept alive: real processes of a small program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamserve.errors import BrokerError, ModelError, StreamserveError
from streamserve.supervisor import children
from streamserve.supervisor.children import Backoff, Child, Household, child_environment
from streamserve.supervisor.news import News, Snapshot, State
from streamserve.supervisor.plan import ProcessPlan
from tests.processes import alive

TIMEOUT_S = 30.0
#: What a role does, as its supervisor sees it. The config is a JSON file of orders.
PROGRAM = """
import asyncio, json, logging, os, signal, subprocess, sys, time
from pathlib import Path
from streamserve.supervisor.parent import (
    TellsSupervisor, gave_up, has_twin, twin_prepared, wait_for_go, wait_to_join, watch_parent,
)

watch_parent()
orders = json.loads(Path(sys.argv[2]).read_text())
print(orders.get("says", "hello"), flush=True)
if "loads" in orders:
    logging.getLogger().addHandler(TellsSupervisor())
    logging.warning(orders["loads"], extra={"action": "load"})
    logging.warning("something else")
if "hangs" in orders:
    signal.pause()
if "dies" in orders:
    os.kill(os.getpid(), orders["dies"])
if "leaves_at_once" in orders:
    os._exit(orders["leaves_at_once"])
if "exits" in orders:
    sys.exit(orders["exits"])
wait_for_go()
if orders.get("leaves"):
    print("left", subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid, flush=True)
asked = []
signal.signal(signal.SIGTERM, signal.SIG_IGN if orders.get("deaf") else lambda *_: asked.append(1))
asyncio.run(wait_to_join())
print("joins", flush=True)
file = Path(sys.argv[sys.argv.index("--status-file") + 1])
file.with_suffix(".part").write_text(json.dumps({"metrics_port": 1234, "pid": os.getpid()}))
file.with_suffix(".part").replace(file)
had = False
while True:
    if had != has_twin():
        had = not had
        print("twin" if had else "alone", flush=True)
    if asked:
        asyncio.run(twin_prepared())
        print("ends", flush=True)
        gave_up()
        time.sleep(orders.get("lingers_s", 0))
        sys.exit(0)
    time.sleep(0.01)
"""


class Ears:
    """An outlet that remembers."""

    def __init__(self) -> None:
        self.told: list[News] = []
        self.lines: list[str] = []

    def news(self, news: News) -> None:
        self.told.append(news)

    def status(self, snapshot: Snapshot) -> None:
        raise AssertionError

    def heard(self, name: str, line: str) -> None:
        self.lines.append(f"{name}: {line}")

    def close(self) -> None:
        raise AssertionError

    def events(self, *kinds: str) -> list[News]:
        return [news for news in self.told if news.event in kinds]


class Case:
    """One child under test, kept by a task."""

    def __init__(self, folder: Path, *, spares: bool = False, **orders: Any) -> None:
        script, config = folder / "role.py", folder / "orders.json"
        script.write_text(PROGRAM, "utf-8")
        config.write_text(json.dumps(orders), "utf-8")
        self.ears = Ears()
        self.house = Household(
            program=[sys.executable, str(script)],
            config=config,
            folder=folder,
            environment=child_environment("host:9"),
            outlet=self.ears,
            spares=spares,
        )
        self.hurry = asyncio.Event()
        self.child = Child(ProcessPlan(role="worker", instance=0, pool="main"), self.house)
        self.keeping = asyncio.ensure_future(self.child.keep())

    @property
    def pid(self) -> int:
        pid = self.child.facts.pid
        assert pid is not None
        return pid

    async def left(self) -> psutil.Process:
        """What the child has started, once it has said so (it may say other things, too: warnings)."""

        def said() -> list[str]:
            return [line for line in self.ears.lines if ": left " in line]

        await until(lambda: bool(said()))
        return psutil.Process(int(said()[0].split()[-1]))

    def words(self, *wanted: str) -> list[str]:
        """Which of these words it has said, in order."""
        return [word for line in self.ears.lines if (word := line.rpartition(" ")[2]) in wanted]

    async def serving(self) -> None:
        self.house.may_serve.set()
        await until(lambda: self.child.facts.state is State.SERVING)

    async def stop(self, timeout_s: float = TIMEOUT_S) -> None:
        await self.child.stop(timeout_s, self.hurry)
        await self.keeping


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():  # noqa: ASYNC110  (what is looked at is another process)
            await asyncio.sleep(0.01)


def run(case: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await case()

    asyncio.run(whole())


def test_it_serves_when_it_may_and_stops_in_order(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        await until(lambda: one.ears.lines == ["worker-main-0: hello"])
        assert one.child.facts.state is State.STARTING
        await one.serving()
        facts = one.child.facts
        assert (facts.metrics_port, facts.restarts) == (1234, 0)
        command = psutil.Process(one.pid).cmdline()
        assert command[2:4] == ["worker", str(one.house.config)]
        await one.stop()
        assert one.child.facts.state is State.STOPPED
        assert not psutil.pid_exists(facts.pid or 0)
        assert one.ears.told == []
        assert (tmp_path / "logs" / "worker-main-0.log").read_text() == "hello\njoins\nends\n"
        assert list((tmp_path / "run").iterdir()) == []

    run(case)


def test_a_killed_one_is_replaced_at_once(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        await one.serving()
        before = one.pid
        os.kill(before, signal.SIGKILL)
        await until(lambda: bool(one.ears.events("restarted")))
        (gone,), (back,) = one.ears.events("exited"), one.ears.events("restarted")
        assert gone.facts["exit_code"] == -signal.SIGKILL
        assert gone.facts["restarts_in_s"] == 0
        assert "ended with SIGKILL; restarts now" in gone.words
        assert "hello" in gone.words
        assert back.facts["pid"] == one.pid != before
        assert back.facts["restarts"] == 1
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: len(one.ears.events("exited")) == 2)
        assert one.ears.events("exited")[1].facts["restarts_in_s"] == Backoff.FIRST_S
        assert one.child.facts.state is State.WAITING
        await one.stop()
        assert len(one.ears.events("restarted")) == 1

    run(case)


def test_a_spare_takes_over(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, spares=True)
        await one.serving()
        one.house.spares_wanted.set()
        await until(lambda: one.child._spare is not None and one.child._spare.warm.is_set())
        spare = one.child._spare
        assert spare is not None
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: bool(one.ears.events("restarted")))
        assert one.pid == spare.pid
        await until(lambda: one.child._spare is not None and one.child._spare.warm.is_set())
        second = one.child._spare
        assert second is not None and second is not spare
        await one.stop()
        assert not psutil.pid_exists(second.pid)

    run(case)


def test_a_dead_spare_is_not_waited_for(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, spares=True)
        await one.serving()
        one.house.spares_wanted.set()
        await until(lambda: one.child._spare is not None and one.child._spare.warm.is_set())
        spare = one.child._spare
        assert spare is not None
        os.kill(spare.pid, signal.SIGKILL)
        await spare.exited
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: bool(one.ears.events("restarted")))
        assert one.pid != spare.pid
        await one.stop()

    run(case)


def test_whoever_serves_is_told_whether_a_spare_waits(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, spares=True)

        await one.serving()
        one.house.spares_wanted.set()
        await until(lambda: one.words("twin", "alone") == ["twin"])
        first = one.pid
        os.kill(first, signal.SIGTERM)
        await until(lambda: one.words("twin", "alone") == ["twin", "twin"])
        assert one.pid != first
        assert one.child._spare is not None
        os.kill(one.child._spare.pid, signal.SIGKILL)
        await until(lambda: one.words("twin", "alone") == ["twin", "twin", "alone"])
        await one.stop()

    run(case)


def test_a_spare_joins_when_the_one_before_has_left_and_not_earlier(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, spares=True, lingers_s=TIMEOUT_S)
        await one.serving()
        one.house.spares_wanted.set()
        await until(lambda: any(line.endswith(" twin") for line in one.ears.lines))
        first, spare = one.child._process, one.child._spare
        assert first is not None and spare is not None
        os.kill(first.pid, signal.SIGTERM)
        await until(lambda: one.words("joins", "ends") == ["joins", "ends", "joins"])
        assert spare.prepared.is_set()
        assert not first.exited.done()  # what is left of it takes its time
        first.kill()
        await until(lambda: bool(one.ears.events("restarted")))
        assert one.pid == spare.pid
        one.hurry.set()
        await one.stop()

    run(case)


def test_one_whose_spare_dies_while_it_gets_ready_goes_alone(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, spares=True)
        await one.serving()
        one.house.spares_wanted.set()
        await until(lambda: any(line.endswith(" twin") for line in one.ears.lines))
        first, spare = one.child._process, one.child._spare
        assert first is not None and spare is not None
        os.kill(spare.pid, signal.SIGSTOP)
        os.kill(first.pid, signal.SIGTERM)
        await until(first.leaves.is_set)
        os.kill(spare.pid, signal.SIGKILL)
        await until(lambda: bool(one.ears.events("restarted")))
        assert one.pid not in (first.pid, spare.pid)
        await one.stop()

    run(case)


def test_one_that_goes_with_its_supervisor_has_no_twin(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, spares=True, deaf=True)
        await one.serving()
        one.house.spares_wanted.set()
        await until(lambda: any(line.endswith(" twin") for line in one.ears.lines))
        stopping = asyncio.ensure_future(one.child.stop(TIMEOUT_S, one.hurry))
        await until(lambda: any(line.endswith(" alone") for line in one.ears.lines))
        one.hurry.set()
        await stopping
        await one.keeping

    run(case)


def test_one_that_is_stopped_in_order_again_and_again_is_never_waited_with(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        await one.serving()
        for ends in range(1, 4):
            os.kill(one.pid, signal.SIGTERM)
            await until(lambda ends=ends: len(one.ears.events("restarted")) == ends)
        assert [news.facts["restarts_in_s"] for news in one.ears.events("exited")] == [0.0, 0.0, 0.0]
        await one.stop()

    run(case)


def test_an_error_of_the_user_at_the_start_is_told_in_its_words(tmp_path: Path) -> None:
    async def case() -> None:
        says = "noise\nstreamserve: model sum@1: no module 'x'\n  look in y"
        one = Case(tmp_path, says=says, exits=ModelError.exit_code)
        with pytest.raises(ModelError) as raised:
            await one.keeping
        assert str(raised.value) == (
            "worker-main-0 could not start: model sum@1: no module 'x'\n  look in y\n"
            f"(its log: {tmp_path / 'logs' / 'worker-main-0.log'})"
        )
        assert one.ears.events("exited") == []
        await one.child.stop(TIMEOUT_S, one.hurry)

    run(case)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "error"), [(7, StreamserveError), (1, StreamserveError), (4, BrokerError)])
def test_a_start_that_fails_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StreamserveError]
) -> None:
    monkeypatch.setattr(Backoff, "FIRST_S", 0.01)

    async def case() -> None:
        one = Case(tmp_path, exits=code)
        words = f"ended 4 times before it served, last with exit code {code}"
        with pytest.raises(error, match=words) as raised:
            await one.keeping
        assert type(raised.value) is error
        assert "hello" in str(raised.value)
        assert len(one.ears.events("exited")) == children.MOST_FIRST_STARTS - 1
        await one.child.stop(TIMEOUT_S, one.hurry)

    run(case)


def test_one_that_ends_itself_while_it_loads_is_told_with_its_exit_code(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, says="", loads="loading model sum@1", leaves_at_once=ModelError.exit_code)
        with pytest.raises(ModelError) as raised:
            await one.keeping
        assert str(raised.value).startswith(
            "worker-main-0 could not start: its process ended with exit code 3 while loading model sum@1; its last"
        )
        await one.child.stop(TIMEOUT_S, one.hurry)

    run(case)


def test_one_that_dies_while_it_loads_is_told_with_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "FIRST_S", 0.01)

    async def case() -> None:
        one = Case(tmp_path, dies=signal.SIGKILL)
        with pytest.raises(StreamserveError, match="ended 4 times before it served, last with SIGKILL: "):
            await one.keeping
        await one.child.stop(TIMEOUT_S, one.hurry)

    run(case)


def test_one_that_hangs_while_it_loads_is_told_of_now_and_then(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, hangs=True, loads="loading model sum@1")
        far_s = asyncio.get_running_loop().time() + 3600
        await until(lambda: one.child._process is not None and one.child._process.doing != "")
        assert one.child.overdue(far_s) is None  # it may not serve yet
        one.house.may_serve.set()
        await until(lambda: one.child._waited_for_since_s is not None)
        since_s = one.child._waited_for_since_s or 0.0
        told = [second for second in range(300) if one.child.overdue(since_s + second)]
        assert told == [10, 20, 40, 80, 140, 200, 260]
        news = one.child.overdue(since_s + 321)
        assert news is not None
        assert news.event == "waiting"
        assert news.words == f"waiting for worker-main-0 (process {one.pid}), for 321 s now: loading model sum@1"
        assert news.facts == {
            "name": "worker-main-0", "pid": one.pid, "waited_s": 321.0, "doing": "loading model sum@1",
        }  # fmt: skip
        await one.stop()

    run(case)


def test_one_that_serves_is_not_waited_for(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        await one.serving()
        assert one.child.overdue(asyncio.get_running_loop().time() + 3600) is None
        await one.stop()

    run(case)


def test_an_error_of_the_user_after_it_has_served_is_waited_out(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        await one.serving()
        one.house.config.write_text(json.dumps({"exits": 2}), "utf-8")
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: len(one.ears.events("exited")) == 2)
        one.house.config.write_text("{}", "utf-8")
        await until(lambda: bool(one.ears.events("restarted")))
        await one.stop()

    run(case)


def test_one_that_does_not_stop_is_killed_with_what_it_started(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, deaf=True, leaves=True)
        await one.serving()
        left = await one.left()
        await one.stop(timeout_s=0.1)
        assert "had not stopped after 0.1 s: killed" in one.ears.events("killed")[0].words
        assert alive([left], TIMEOUT_S) == []

    run(case)


def test_what_a_dead_one_started_itself_is_ended(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, leaves=True)
        await one.serving()
        left = await one.left()
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: bool(one.ears.events("exited")))
        assert alive([left], TIMEOUT_S) == []
        await one.stop()

    run(case)


def test_in_a_hurry_nothing_is_waited_for(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path, deaf=True)
        await one.serving()
        stopping = asyncio.ensure_future(one.stop())
        await until(lambda: one.child.facts.state is State.STOPPING)
        assert not stopping.done()
        began_s = time.monotonic()
        one.hurry.set()
        await stopping
        assert time.monotonic() - began_s < TIMEOUT_S / 2
        assert "was hurried: killed" in one.ears.events("killed")[0].words

    run(case)


def test_it_stops_while_it_still_waits_for_the_broker(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        await until(lambda: bool(one.ears.lines))
        await one.stop()
        assert one.child.facts.state is State.STOPPED
        assert not one.child.served.is_set()

    run(case)


def test_one_whose_page_never_answers_is_replaced(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        await one.serving()
        before = one.pid
        for _ in range(children.MOST_SILENT_LOOKS - 1):
            one.child.looked(None)
        one.child.looked({"rate_per_s": 1.0})
        assert one.child.facts.status == {"rate_per_s": 1.0}
        one.child.looked(None)
        assert one.ears.told == []
        for _ in range(children.MOST_SILENT_LOOKS):
            one.child.looked(None)
        await until(lambda: bool(one.ears.events("restarted")))
        assert one.pid != before
        await one.stop()

    run(case)


def test_the_wait_before_a_start_grows_and_is_forgotten_after_a_healthy_life() -> None:
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [backoff.after(60.0), backoff.after(59.0)] == [0, 0.5]


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def case() -> None:
        one = Case(tmp_path)
        one.keeping.cancel()
        one.house.program[0] = str(tmp_path / "nowhere")
        with pytest.raises(StreamserveError, match=r"cannot start .*nowhere.*: No such file or directory"):
            await one.child.keep()
        await one.child.stop(TIMEOUT_S, one.hurry)

    run(case)


def test_children_are_told_of_a_broker_of_our_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS"
    monkeypatch.delenv(name, raising=False)
    assert child_environment("host:9")[name] == "host:9"
    assert name not in child_environment(None)
