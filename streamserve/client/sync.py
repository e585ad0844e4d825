"""The same client for programs without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from streamserve.client.arguments import shown
from streamserve.client.client import GRACE_MS, MAX_OUTSTANDING, Client
from streamserve.client.failures import UnusableInput
from streamserve.client.feedback import UNSET
from streamserve.client.forks import OneProcess
from streamserve.client.inputs import Codec, Input, several
from streamserve.client.prediction import Prediction
from streamserve.client.stream import PredictionStream
from streamserve.client.submitted import Submitted
from streamserve.client.targets import RouteHint
from streamserve.errors import ShuttingDown, StreamserveError

_END_S = 1.0

_Result = TypeVar("_Result")
_Ask = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


class SyncClient:
    """`Client` on a thread of its own; may be used from any number of threads, of one process: a child that was forked
    (`multiprocessing`, a web server that loads first) makes a client of its own.

        with SyncClient("host:9092", app="digits") as client:
            prediction = client.predict(image, deadline_ms=100)
            client.feedback(prediction, label=7)

    Arguments, results and errors are those of `Client`, whose docstrings hold here too.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        app: str,
        deadline_ms: int | None = None,
        grace_ms: int = GRACE_MS,
        max_outstanding: int = MAX_OUTSTANDING,
        codec: Codec | None = None,
        routes: Mapping[str, RouteHint] | None = None,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        """As `Client`."""
        self._set(
            Client(
                bootstrap_servers,
                app=app,
                deadline_ms=deadline_ms,
                grace_ms=grace_ms,
                max_outstanding=max_outstanding,
                codec=codec,
                routes=routes,
                security=security,
            )
        )

    @classmethod
    def of(cls, client: Client) -> Self:
        """The sync face of a client that has not been started."""
        if not isinstance(client, Client):
            raise UnusableInput(f"client = {shown(client)}: expected a Client")
        face = cls.__new__(cls)
        face._set(client)
        return face

    @classmethod
    def from_config(
        cls,
        config: Path | str,
        *,
        bootstrap_servers: str | None = None,
        deadline_ms: int | None = None,
        grace_ms: int = GRACE_MS,
        max_outstanding: int = MAX_OUTSTANDING,
    ) -> Self:
        """As `Client.from_config`."""
        return cls.of(
            Client.from_config(
                config,
                bootstrap_servers=bootstrap_servers,
                deadline_ms=deadline_ms,
                grace_ms=grace_ms,
                max_outstanding=max_outstanding,
            )
        )

    def _set(self, client: Client) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._process = OneProcess(client.app)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """As `Client.start`."""
        if self._loop is not None:
            self._process.check()
            raise StreamserveError(f"this client of app {self._client.app} was started already")
        self._process = OneProcess(self._client.app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamserve-client", daemon=True)
        self._thread.start()
        try:
            self._do(self._client.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """As `Client.close`."""
        if self._process.forked:
            return
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._client.close(), loop).result()
            asyncio.run_coroutine_threadsafe(_ended(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def submit(
        self,
        x: Input,
        *,
        route: str | None = None,
        deadline_ms: int | None = None,
        priority: int | None = None,
        context: str | None = None,
        key: str | bytes | None = None,
        id: str | None = None,
    ) -> SyncSubmitted:
        """As `Client.submit`."""

        async def submitted() -> Submitted:
            return self._client.submit(
                x, route=route, deadline_ms=deadline_ms, priority=priority, context=context, key=key, id=id
            )

        return SyncSubmitted(self._do(submitted()), self._ask)

    def predict(
        self,
        x: Input,
        *,
        route: str | None = None,
        deadline_ms: int | None = None,
        priority: int | None = None,
        context: str | None = None,
        key: str | bytes | None = None,
        id: str | None = None,
    ) -> Prediction:
        """As `Client.predict`."""
        return self._do(
            self._client.predict(
                x, route=route, deadline_ms=deadline_ms, priority=priority, context=context, key=key, id=id
            )
        )

    def predict_many(
        self,
        xs: Iterable[Input],
        *,
        route: str | None = None,
        deadline_ms: int | None = None,
        priority: int | None = None,
        context: str | None = None,
        key: str | bytes | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[Prediction]:
        """As `Client.predict_many`."""
        inputs, _ = several(xs, None)  # an iterator is gone through on the caller's thread
        return self._do(
            self._client.predict_many(
                inputs, route=route, deadline_ms=deadline_ms, priority=priority, context=context, key=key, ids=ids
            )
        )

    def predictions(self, *, mine: bool = False, max_waiting: int = 10_000) -> SyncPredictionStream:
        """As `Client.predictions`, for `for`."""

        async def stream() -> PredictionStream:
            return self._client.predictions(mine=mine, max_waiting=max_waiting)

        return SyncPredictionStream(self._do(stream()), self._ask, self._leave)

    def feedback(
        self,
        prediction: Prediction | str,
        *,
        label: Any = UNSET,
        reward: float | None = None,
        model: str | None = None,
        key: str | bytes | None = None,
    ) -> str:
        """As `Client.feedback`."""
        return self._do(self._client.feedback(prediction, label=label, reward=reward, model=model, key=key))

    def _do(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run it on the client's thread and wait; Ctrl-C here cancels it there."""
        if self._process.forked:  # before the lock, which another thread may have held at the fork
            work.close()
            self._process.check()
        with self._lock:
            if self._loop is None:
                work.close()
                raise _NotRunning(f"this client of app {self._client.app} does not run: use it inside `with`")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _ask(self, ask: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """As `_do`; once the client is closed, what had come by then is still to be had.

        Raises ShuttingDown where that is not so.
        """
        thread = self._thread
        try:
            return self._do(ask())
        except _NotRunning:
            if thread is None:
                raise
            thread.join()  # another thread may be closing it just now: until it has, answers come
        with self._lock:
            return _at_once(ask())

    def _leave(self, stream: PredictionStream) -> None:
        """Nobody has this stream any longer. Waits for nothing: the garbage collector asks for it, on any thread."""
        loop = self._loop
        if loop is not None and not self._process.forked:
            with contextlib.suppress(RuntimeError):  # closed in between
                loop.call_soon_threadsafe(lambda: _at_once(stream.aclose()))


class _NotRunning(StreamserveError):
    """The client was not started, or was closed."""


async def _ended() -> None:
    """Nobody on another thread waits any longer for what ran here."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=_END_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _at_once(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run what has nothing to wait for. Raises ShuttingDown where it has."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    work.close()
    raise ShuttingDown("the client was closed before that was known")


class SyncPredictionStream:
    """An iterator of `Prediction`, for a program without an event loop. Made by `SyncClient.predictions`.

    It is as `PredictionStream`: what waits when it or the client is closed can still be taken, and it may be iterated
    further after an error. A stream that nobody has any longer is closed.
    """

    def __init__(self, stream: PredictionStream, ask: _Ask, leave: Callable[[PredictionStream], None]) -> None:
        self._stream, self._ask, self._leave = stream, ask, leave

    def __del__(self) -> None:
        self._leave(self._stream)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Prediction:
        prediction: Prediction | None = self._ask(self._following)
        if prediction is None:
            raise StopIteration
        return prediction

    async def _following(self) -> Prediction | None:
        return await anext(self._stream, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `PredictionStream.aclose`."""
        self._ask(self._stream.aclose)


class SyncSubmitted:
    """A request on its way, for a program without an event loop. Made by `SyncClient.submit`."""

    def __init__(self, submitted: Submitted, ask: _Ask) -> None:
        self._submitted, self._ask = submitted, ask

    @property
    def id(self) -> str | None:
        """The caller's id; None: the ref will be the prediction's."""
        return self._submitted.id

    @property
    def ref(self) -> str | None:
        """`<partition>-<offset>`, once the broker has acknowledged it."""
        return self._submitted.ref

    @property
    def done(self) -> bool:
        """Whether `prediction` returns, or raises, without waiting."""
        return self._submitted.done

    def acknowledged(self) -> str:
        """As `Submitted.acknowledged`."""
        ref: str = self._ask(self._submitted.acknowledged)
        return ref

    def prediction(self) -> Prediction:
        """As `Submitted.prediction`, also when the client is closed by now."""
        prediction: Prediction = self._ask(self._submitted.prediction)
        return prediction
