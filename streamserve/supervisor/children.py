"""One process of a role, kept alive: started, watched, replaced when it dies, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamserve.errors import (
    BrokerError,
    ConfigError,
    ContractError,
    ModelError,
    StreamserveError,
    TopicsDiffer,
)
from streamserve.supervisor.logfile import LogFile
from streamserve.supervisor.news import ChildFacts, News, Outlet, State
from streamserve.supervisor.plan import ProcessPlan
from streamserve.supervisor.process import ChildProcess

#: A process that has served for so long is healthy: its next end is again the first.
HEALTHY_S = 60.0
#: Ends before it ever served that another start may mend; then starting again is given up.
MOST_FIRST_STARTS = 4
#: Unanswered looks at its page, one a second, until a process counts as hung.
MOST_SILENT_LOOKS = 30
#: After so long it is told who does not serve yet; then after twice as long, at most so much later.
TELL_AFTER_S = 10.0
TELL_AGAIN_S = 60.0
_LOOK_S = 0.02
_QUOTED_LINES = 15
_ERRORS: Mapping[int, type[StreamserveError]] = {
    kind.exit_code: kind for kind in (ConfigError, ModelError, BrokerError, TopicsDiffer, ContractError)
}
_PROGRAM_SAYS = "streamserve: "


class Backoff:
    """How long to wait before the next start, in seconds: 0, 0.5, 1, 2, ... 30."""

    FIRST_S = 0.5
    MOST_S = 30.0

    def __init__(self) -> None:
        self._next_s = 0.0

    def after(self, served_s: float) -> float:
        """The wait after a life in which it served for `served_s`."""
        if served_s >= HEALTHY_S:
            self._next_s = 0.0
        wait_s = self._next_s
        self._next_s = min(self.MOST_S, wait_s * 2) if wait_s else self.FIRST_S
        return wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Household:
    """What all children of one supervisor share."""

    program: list[str]
    config: Path
    folder: Path
    """For logs and status files."""
    environment: Mapping[str, str]
    outlet: Outlet
    spares: bool = True
    """Keep one loaded process of each kind waiting, so that a dead one is replaced at once."""
    may_serve: asyncio.Event = field(default_factory=asyncio.Event)
    """Broker and topics are there."""
    may_load_spare: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """One at a time: loading must not take all cores from those that serve."""
    spares_wanted: asyncio.Event = field(default_factory=asyncio.Event)


class Child:
    """Keeps one planned process alive."""

    def __init__(self, plan: ProcessPlan, household: Household) -> None:
        self.plan = plan
        self.served = asyncio.Event()
        """Has served at least once."""
        self._house = household
        self._log = LogFile(household.folder / "logs" / f"{plan.name}.log")
        self._backoff = Backoff()
        self._state = State.STARTING
        self._process: ChildProcess | None = None
        self._spare: ChildProcess | None = None
        self._spare_loading: asyncio.Task[None] | None = None
        self._port: int | None = None
        self._restarts = 0
        self._starts = 0
        self._status: Mapping[str, Any] | None = None
        self._silent_looks = 0
        self._waited_for_since_s: float | None = None
        self._tell_after_s = TELL_AFTER_S
        self._stopping = asyncio.Event()

    @property
    def facts(self) -> ChildFacts:
        return ChildFacts(
            plan=self.plan,
            state=self._state,
            pid=self._process.pid if self._process else None,
            metrics_port=self._port,
            restarts=self._restarts,
            status=self._status,
            has_spare=self._spare is not None and self._spare.warm.is_set(),
        )

    async def keep(self) -> None:
        """Keep the process alive until `stop`.

        Raises the error that the process ended with, in its words, where that was before it ever served.
        """
        while not self._stopping.is_set():
            process = self._process = self._take_spare() or self._start()
            self._state, self._port, self._status, self._silent_looks = State.STARTING, None, None, 0
            self._waited_for_since_s = None
            served_s = await self._live(process)
            if self._stopping.is_set():
                return
            code = process.exited.result()
            self._process, self._port, self._status = None, None, None
            self._give_up_on_first_start(process, code)
            self._restarts += 1
            stopped_in_order = served_s > 0 and code == 0  # by a person: nothing is wrong with it
            wait_s = 0.0 if stopped_in_order else self._backoff.after(served_s)
            self._tell_end(process, code, wait_s)
            self._state = State.WAITING
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)

    def overdue(self, now_s: float) -> News | None:
        """Now and then, while it could serve and does not: who is waited for, and what it is doing; else None."""
        if self._state is not State.STARTING or self._process is None or self._waited_for_since_s is None:
            return None
        waited_s = now_s - self._waited_for_since_s
        if waited_s < self._tell_after_s:
            return None
        self._tell_after_s += min(self._tell_after_s, TELL_AGAIN_S)
        doing, pid = _doing(self._process), self._process.pid
        words = f"waiting for {self.plan.name} (process {pid}), for {waited_s:.0f} s now: {doing}"
        facts = {"name": self.plan.name, "pid": pid, "waited_s": round(waited_s, 1), "doing": doing}
        return News(event="waiting", words=words, facts=facts)

    def looked(self, status: Mapping[str, Any] | None) -> None:
        """What its page says now; None: it does not answer. One that never answers is killed, and so started again."""
        if self._state is not State.SERVING or self._process is None:
            return
        if status is not None:
            self._status, self._silent_looks = status, 0
            return
        self._silent_looks += 1
        if self._silent_looks >= MOST_SILENT_LOOKS:
            self._silent_looks = 0
            words = f"{self.plan.name} has not answered {MOST_SILENT_LOOKS} times in a row; it is killed"
            self._house.outlet.news(News(event="hung", words=words, facts={"name": self.plan.name}))
            self._process.kill()

    async def stop(self, timeout_s: float, hurry: asyncio.Event) -> None:
        """Stop in order; `kill -9` after `timeout_s`, or when hurried."""
        self._stopping.set()
        if self._spare_loading is not None:
            self._spare_loading.cancel()
        if self._spare is not None:
            self._spare.kill()
        if self._process is not None and not self._process.exited.done():
            self._process.has_twin(False)
            self._state = State.STOPPING
            await self._end(self._process, timeout_s, hurry)
        if self._spare is not None:
            await self._spare.exited
        self._state, self._port = State.STOPPED, None
        self._log.close()

    async def _end(self, process: ChildProcess, timeout_s: float, hurry: asyncio.Event) -> None:
        process.ask_to_stop()
        hurried: asyncio.Future[Any] = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({process.exited, hurried}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not process.exited.done():
            why = "was hurried" if hurry.is_set() else f"had not stopped after {timeout_s:.1f} s"
            words = f"{self.plan.name} {why}: killed"
            self._house.outlet.news(News(event="killed", words=words, facts={"name": self.plan.name}))
            process.kill()
            await process.exited

    async def _live(self, process: ChildProcess) -> float:
        """From start to end; for how many seconds it served."""
        loop = asyncio.get_running_loop()
        await self._first_of(process, self._house.may_serve)
        self._waited_for_since_s, self._tell_after_s = loop.time(), TELL_AFTER_S
        process.go()
        while not process.exited.done():
            self._port = process.served_port()
            if self._port is not None:
                break
            await asyncio.wait({process.exited}, timeout=_LOOK_S)
        else:
            return 0.0
        self._begin_serving(process)
        served_from_s = loop.time()
        handing_over = asyncio.ensure_future(self._hand_over(process))
        await asyncio.wait({process.exited})
        handing_over.cancel()
        return loop.time() - served_from_s

    async def _hand_over(self, process: ChildProcess) -> None:
        """Once it is asked to stop it serves on until its spare is ready; the spare joins as soon as it has left."""
        await self._first_of(process, process.leaves)
        spare = self._spare
        if spare is None or self._stopping.is_set():  # it has been told, or will be, that it is alone
            return
        spare.prepare()
        await self._first_of(spare, spare.prepared)
        if not spare.exited.done():
            process.twin_is_ready()
            await self._first_of(process, process.over)
            if process.over.is_set() and not self._stopping.is_set():
                spare.go()

    async def _first_of(self, process: ChildProcess, event: asyncio.Event) -> None:
        waiting: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({process.exited, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    def _begin_serving(self, process: ChildProcess) -> None:
        if self._stopping.is_set():
            return
        self._state = State.SERVING
        if self.served.is_set():
            words = f"{self.plan.name} serves again, as process {process.pid}"
            self._house.outlet.news(News(event="restarted", words=words, facts=self.facts.as_json()))
        self.served.set()
        if self._house.spares and self._spare_loading is None:
            self._spare_loading = asyncio.ensure_future(self._load_spare())

    def _start(self) -> ChildProcess:
        house = self._house
        self._starts += 1
        status_file = house.folder / "run" / f"{self.plan.name}.{self._starts}.json"
        status_file.parent.mkdir(parents=True, exist_ok=True)
        return ChildProcess(
            [*house.program, *self.plan.arguments(house.config), "--status-file", str(status_file)],
            environment=house.environment,
            status_file=status_file,
            log=self._log,
            heard=self._heard,
        )

    def _heard(self, line: str) -> None:
        self._house.outlet.heard(self.plan.name, line)

    async def _load_spare(self) -> None:
        await self._house.spares_wanted.wait()
        async with self._house.may_load_spare:
            spare = self._spare = self._start()
            await self._first_of(spare, spare.warm)
        self._spare_loading = None
        if spare.warm.is_set():
            spare.exited.add_done_callback(lambda _: self._tell_twin())
            self._tell_twin()

    def _tell_twin(self) -> None:
        """To the process that serves: whether it may leave its partitions to a spare."""
        if self._process is not None and not self._stopping.is_set():
            self._process.has_twin(self._spare is not None and not self._spare.exited.done())

    def _take_spare(self) -> ChildProcess | None:
        spare, self._spare = self._spare, None
        return spare if spare is not None and not spare.exited.done() else None

    def _give_up_on_first_start(self, process: ChildProcess, code: int) -> None:
        if self.served.is_set():
            return
        kind = _ERRORS.get(code)
        # `up` has spoken to the broker just before: what a role cannot do there may go by.
        may_go_by = kind in (None, BrokerError)
        if may_go_by and self._starts < MOST_FIRST_STARTS:
            return
        how = (
            f"ended {self._starts} times before it served, last with {_end(code)}: "
            if may_go_by
            else "could not start: "
        )
        if not may_go_by and not _says_why(process):
            how += f"its process ended with {_end(code)}{f' while {process.doing}' if process.doing else ''}; "
        raise (kind or StreamserveError)(f"{self.plan.name} {how}{_words(process)}\n(its log: {self._log.path})")

    def _tell_end(self, process: ChildProcess, code: int, wait_s: float) -> None:
        when = f"in {wait_s:g} s" if wait_s else "now"
        last = process.last_lines[-_QUOTED_LINES:]
        words = "\n  ".join(
            [f"{self.plan.name} (process {process.pid}) ended with {_end(code)}; restarts {when}", *last]
        )
        facts = {"name": self.plan.name, "pid": process.pid, "exit_code": code, "restarts_in_s": wait_s, "lines": last}
        self._house.outlet.news(News(event="exited", words=words, facts=facts))


def _end(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def _doing(process: ChildProcess) -> str:
    return "it has loaded and connects to Kafka" if process.warm.is_set() else process.doing or "it is starting"


def _says_why(process: ChildProcess) -> bool:
    return any(line.startswith(_PROGRAM_SAYS) for line in process.last_lines)


def _words(process: ChildProcess) -> str:
    """What the program itself says of its end, else its last lines."""
    lines = process.last_lines
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(_PROGRAM_SAYS):
            return "\n".join([lines[index].removeprefix(_PROGRAM_SAYS), *lines[index + 1 :]])
    return "\n  ".join(["its last lines:", *lines[-_QUOTED_LINES:]]) if lines else "it said nothing"


def child_environment(bootstrap_servers: str | None) -> dict[str, str]:
    """The children's environment: ours, and where our own broker is (None: the config says it)."""
    own = {"STREAMSERVE_BROKER__BOOTSTRAP_SERVERS": bootstrap_servers} if bootstrap_servers else {}
    return {**os.environ, **own}
