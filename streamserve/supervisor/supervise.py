"""From a config to everything running, and down again: what `streamserve up` does."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streamserve.errors import BrokerError, StreamserveError
from streamserve.kafka.brokers import BrokerOptions, read_status, state_folder
from streamserve.settings import Settings
from streamserve.supervisor.children import Child, Household, child_environment
from streamserve.supervisor.look import look
from streamserve.supervisor.news import News, Outlet, Snapshot, State
from streamserve.supervisor.own_kafka import OwnKafka
from streamserve.supervisor.plan import ProcessPlan

#: From a signal to the end of this process.
STOP_S = 9.5
#: Kept of it for our own Kafka, whatever the roles took.
_KAFKA_STOP_S = 1.5
_HURRIED_STOP_S = 0.5
_STATUS_EVERY_S = 1.0
_TOPICS_ATTEMPTS = 4
_TOPICS_WAIT_S = 1.0
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Runs an app until a signal, the end of `duration_s` after it was ready, or an error that a person must mend."""

    def __init__(
        self,
        settings: Settings,
        plans: tuple[ProcessPlan, ...],
        outlet: Outlet,
        *,
        program: list[str],
        duration_s: float | None = None,
        spares: bool = True,
    ) -> None:
        """`program`: how a role's process is started, its arguments follow. Made within the event loop."""
        self._settings = settings
        self._outlet = outlet
        self._program = program
        self._duration_s = duration_s
        self._spares = spares
        self._plans = plans
        self._folder = app_folder(settings)
        self._children: list[Child] = []
        self._kafka: OwnKafka | None = None
        self._servers = settings.broker.bootstrap_servers or ""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._why = ""
        self._began_s = time.monotonic()

    async def run(self) -> None:
        """Start, serve, stop. Raises what kept it from serving."""
        with _only_one(self._folder), self._signals():
            working = asyncio.ensure_future(self._work_or_say_why())
            stopping = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            working.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})
            try:
                await self._shut_down()
            finally:
                if not working.cancelled():
                    working.result()

    def ask_to_stop(self, why: str) -> None:
        """Stop in order; asked a second time, at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._why = self._why or why
        self._stop.set()

    async def _work_or_say_why(self) -> None:
        try:
            await self._work()
        except* StreamserveError as several:  # of processes that fail for the same reason, one says it
            raise _first(several) from None

    async def _work(self) -> None:
        if self._stop.is_set():  # asked before it had begun
            return
        async with asyncio.TaskGroup() as group:
            kafka = self._choose_kafka()
            house = self._household()
            self._children = [Child(plan, house) for plan in self._plans]
            keeping = [group.create_task(child.keep()) for child in self._children]
            looking = group.create_task(self._look_forever())
            if kafka is not None:
                await kafka.start()
            topics = await self._make_topics()
            house.may_serve.set()
            await asyncio.gather(*(child.served.wait() for child in self._children))
            self._tell_ready(topics)
            house.spares_wanted.set()
            if self._duration_s is not None:
                await asyncio.sleep(self._duration_s)
                self.ask_to_stop(f"{self._duration_s:g} s are over")
                for task in (*keeping, looking):
                    task.cancel()

    def _choose_kafka(self) -> OwnKafka | None:
        """Start one of our own where the config names none, and none runs that was started to stay."""
        if self._servers:
            return None
        options = BrokerOptions(state_dir=self._folder / "broker", nodes=self._settings.broker.nodes)
        running = read_status(options.state_dir)
        if running.ready and running.detached:
            self._servers = running.bootstrap_servers
            self._progress(f"Kafka runs already at {self._servers}; it is left running at the end")
            return None
        self._kafka = OwnKafka(options, self._outlet)
        self._servers = self._kafka.bootstrap_servers
        self._progress(f"starting Kafka at {self._servers}, data in {options.state_dir}")
        return self._kafka

    def _household(self) -> Household:
        named = self._settings.broker.bootstrap_servers
        return Household(
            program=self._program,
            config=self._settings.path,
            folder=self._folder,
            environment=child_environment(None if named else self._servers),
            outlet=self._outlet,
            spares=self._spares,
        )

    async def _make_topics(self) -> dict[str, str]:
        from streamserve.kafka import admin  # noqa: PLC0415  (imported while Kafka and the roles start)
        from streamserve.kafka.security import connection_options  # noqa: PLC0415  (as above)

        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what goes wrong is said once, in our words
        options = connection_options(self._settings.broker.client)
        for attempts_left in reversed(range(_TOPICS_ATTEMPTS if self._kafka else 1)):
            try:
                topics = await admin.declared_topics(self._settings, self._servers, options)
                made = await admin.create(self._servers, topics, options)
                break
            except BrokerError:  # our own answers, but on a busy machine it may lose itself for a second
                if not attempts_left:
                    raise
                await asyncio.sleep(_TOPICS_WAIT_S)
        self._progress(f"topics of {self._settings.app.name}: {len(topics)}, {len(made)} settings or topics were made")
        return {topic.spec.kind.value: topic.name for topic in topics}

    def _tell_ready(self, topics: dict[str, str]) -> None:
        roles = [child.facts.as_json() for child in self._children]
        took_s = time.monotonic() - self._began_s
        words = (
            f"ready after {took_s:.1f} s: {self._settings.app.name} serves at {self._servers}; "
            f"requests go to {topics['requests']}, predictions come to {topics['predictions']}; "
            f"logs in {self._folder / 'logs'}"
        )
        facts: dict[str, Any] = {
            "app": self._settings.app.name,
            "bootstrap_servers": self._servers,
            "topics": topics,
            "roles": roles,
            "logs": str(self._folder / "logs"),
            "ready_after_ms": round(took_s * 1000),
        }
        self._outlet.news(News(event="ready", words=words, facts=facts))

    async def _look_forever(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            await self._look()
            next_s = max(next_s + _STATUS_EVERY_S, loop.time())
            await asyncio.sleep(next_s - loop.time())

    async def _look(self) -> None:
        async def one(child: Child) -> None:
            facts = child.facts
            if facts.metrics_port is not None and facts.state is State.SERVING:
                child.looked(await look(facts.metrics_port))

        await asyncio.gather(*(one(child) for child in self._children))
        self._tell_status()
        for child in self._children:
            if news := child.overdue(asyncio.get_running_loop().time()):
                self._outlet.news(news)

    def _tell_status(self) -> None:
        children = tuple(child.facts for child in self._children)
        self._outlet.status(Snapshot(app=self._settings.app.name, bootstrap_servers=self._servers, children=children))

    def _progress(self, words: str) -> None:
        self._outlet.news(News(event="progress", words=words))

    async def _shut_down(self) -> None:
        """Roles first, then Kafka, within `STOP_S`."""
        until_s = time.monotonic() + STOP_S
        why = self._why or "it cannot go on"
        self._outlet.news(News(event="stopping", words=f"stopping: {why}", facts={"why": why}))
        roles_s = STOP_S - (_KAFKA_STOP_S if self._kafka else 0.0)
        await asyncio.gather(*(child.stop(roles_s, self._hurry) for child in self._children))
        self._tell_status()
        if self._kafka is not None:
            left_s = max(_KAFKA_STOP_S, until_s - time.monotonic())
            await self._kafka.stop(_HURRIED_STOP_S if self._hurry.is_set() else left_s)
        took_ms = round((time.monotonic() - until_s + STOP_S) * 1000)
        self._outlet.news(News(event="stopped", words=f"stopped after {took_ms} ms", facts={"took_ms": took_ms}))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _STOPS}
        for number in _STOPS:
            loop.add_signal_handler(number, self.ask_to_stop, number.name)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler or signal.SIG_DFL)


def _first(several: BaseExceptionGroup[StreamserveError]) -> StreamserveError:
    first = several.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def app_folder(settings: Settings) -> Path:
    """Where `up` keeps an app's broker data, logs and lock."""
    return (settings.app.state_dir or state_folder(settings.app.name).parent).absolute()


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Held while an app runs under `up`. Raises `StreamserveError` where it does already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StreamserveError(
            f"cannot write the app's folder {folder} ({error.strerror}); set [app] state_dir, or the "
            "variable STREAMSERVE_STATE, to a folder that can be written"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StreamserveError(
            f"this app runs already under `streamserve up` (process {owner}, folder {folder}); stop that one first, "
            "or set another [app] name or state_dir"
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
