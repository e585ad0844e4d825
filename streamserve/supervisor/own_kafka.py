"""The Kafka of our own that `up` starts, keeps alive and stops, on a thread of its own: its calls block."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import BrokerOptions, OwnBroker, read_status
from streamserve.kafka.brokers.guard import GRACE_S
from streamserve.kafka.brokers.ports import HOST, free_ports, is_free
from streamserve.kafka.brokers.process import start_mark
from streamserve.supervisor.children import Backoff
from streamserve.supervisor.news import News, Outlet

#: After `kill -9` of a supervisor its Kafka is there for a moment.
_LEFTOVER_S = GRACE_S + 2.0
_LOOK_S = 0.1
_PORT_ATTEMPTS = 20


class OwnKafka:
    """Made before the start, so that its address is known while it starts. For the event loop's thread."""

    def __init__(self, options: BrokerOptions, outlet: Outlet) -> None:
        self._outlet = outlet
        ports = _free_row(options.nodes)
        self.bootstrap_servers = ",".join(f"{HOST}:{port}" for port in ports)
        self._options = BrokerOptions(
            state_dir=options.state_dir,
            nodes=options.nodes,
            profile=options.profile,
            port=ports[0],
            extra=options.extra,
        )
        self._broker = OwnBroker(self._options, say=self._say)
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._stop_within_s: float | None = None
        self._wake = threading.Event()
        self._served_since_s = 0.0
        self._lost: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="kafka", daemon=True)

    async def start(self) -> None:
        """Return when it answers a client. Raises `BrokerError`."""
        self._thread.start()
        await asyncio.shield(self._started)

    async def stop(self, timeout_s: float) -> None:
        """Stop it in order, killing what has not ended after `timeout_s`. Gives up on one that is still being prepared:
        it ends with this process."""
        if not self._thread.is_alive():
            return
        self._stop_within_s = timeout_s
        self._wake.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._ended), timeout_s + 1.0)

    def _run(self) -> None:
        try:
            self._await_leftover()
            self._broker.start()
        except BaseException as error:  # noqa: BLE001  (told to who waits for the start)
            self._post(self._started, error)
            self._post(self._ended)
            return
        self._post(self._started)
        self._served_since_s = time.monotonic()
        self._keep()
        try:
            self._broker.stop(self._stop_within_s or 0.0)
        except BrokerError as error:
            self._tell("killed", str(error))
        self._post(self._ended)

    def _keep(self) -> None:
        """Until a stop: start nodes again that have ended by themselves."""
        backoff = Backoff()
        while not self._wake.wait(_LOOK_S):
            if not self._lost and not self._broker.wait(0):
                continue
            wait_s = backoff.after(time.monotonic() - self._served_since_s)
            if words := self._broker.why_ended():
                self._tell("exited", f"{words}\nit restarts {f'in {wait_s:g} s' if wait_s else 'now'}")
            if self._wake.wait(wait_s):
                return
            self._start_again()

    def _start_again(self) -> None:
        self._lost |= {node for node, pid in self._broker.pids.items() if start_mark(pid) is None}
        for node in sorted(self._lost):
            if node in self._broker.pids:
                self._broker.kill_node(node)  # it may hang half started; a dead one is buried
            try:
                self._broker.start_node(node)
            except BrokerError as error:
                self._tell("exited", f"Kafka cannot be started again yet: {error}")
                return
            self._lost.discard(node)
        self._served_since_s = time.monotonic()
        self._tell("restarted", f"Kafka answers again at {self.bootstrap_servers}")

    def _await_leftover(self) -> None:
        until_s = time.monotonic() + _LEFTOVER_S
        while read_status(self._options.state_dir).running and time.monotonic() < until_s:
            if self._wake.wait(_LOOK_S):
                return

    def _say(self, words: str) -> None:
        self._tell("progress", words)

    def _tell(self, event: str, words: str) -> None:
        news = News(event=event, words=words, facts={"name": "kafka", "bootstrap_servers": self.bootstrap_servers})
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._outlet.news, news)

    def _post(self, future: asyncio.Future[None], error: BaseException | None = None) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle)


def _free_row(count: int) -> list[int]:
    """Ports in a row that are free now. Raises `BrokerError`."""
    for _ in range(_PORT_ATTEMPTS):
        (first,) = free_ports(1)
        row = list(range(first, first + count))
        if row[-1] < 65_536 and all(is_free(port) for port in row):
            return row
    raise BrokerError(f"no {count} free ports in a row on {HOST}; end programs that hold many ports")
