"""A client in a fork of its process: words instead of waiting for ever."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

import pytest

from streamserve.client import Client, SyncClient
from streamserve.errors import StreamserveError
from tests.client.conftest import APP, MemoryApp

TIMEOUT_S = 20.0

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def in_a_fork(work: Callable[[], object]) -> str:
    """What the error of `work` says in a child; empty where it ends well. Fails where it does not end."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        words = ""
        try:
            work()
        except StreamserveError as error:
            words = str(error)
        except BaseException as error:
            words = f"unexpected: {error!r}"
        os.write(writes, words.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as said:
        ended, _, _ = select.select([said], [], [], TIMEOUT_S)
        if not ended:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert ended, "it hangs in the child"
        return said.read().decode()


def test_every_call_in_a_fork_says_what_to_do(app: MemoryApp) -> None:
    with SyncClient.of(Client(app=APP, log=app)) as client:
        sent, stream = client.submit([1]), client.predictions()
        sent.acknowledged()
        calls: list[Callable[[], object]] = [
            lambda: client.predict([1]),
            lambda: client.predict_many([[1]]),
            lambda: client.submit([1]),
            client.predictions,
            lambda: client.feedback("0-1", label=1),
            sent.acknowledged,
            sent.prediction,
            lambda: next(stream),
            client.start,
        ]
        for call in calls:
            words = in_a_fork(call)
            assert words.startswith(f"this client of app {APP} was started in process {os.getpid()}"), words
            assert words.endswith("make a client in the child")
        client._lock.acquire()  # as another thread may hold it at the fork
        try:
            assert "make a client in the child" in in_a_fork(lambda: client.feedback("0-1", label=1))
        finally:
            client._lock.release()
        client.feedback("0-1", label=1)  # the parent's goes on


def test_leaving_in_a_fork_leaves_everything_to_the_parent(app: MemoryApp) -> None:
    with SyncClient.of(Client(app=APP, log=app)) as client:
        stream = client.predictions()
        assert in_a_fork(client.close) == ""
        assert in_a_fork(stream.__del__) == ""
        client.feedback("0-1", label=1)


def test_a_client_that_was_made_before_and_started_in_the_fork_serves(app: MemoryApp) -> None:
    client = SyncClient.of(Client(app=APP, log=app))

    def whole() -> None:
        with client:
            client.feedback("0-1", label=1)

    assert in_a_fork(whole) == ""


async def test_the_async_client_says_the_same(app: MemoryApp) -> None:
    async with Client(app=APP, log=app) as client:
        assert "make a client in the child" in in_a_fork(lambda: client.submit([1]))
        assert "make a client in the child" in in_a_fork(client.predictions)

        def closed() -> None:
            with pytest.raises(StopIteration):
                client.close().send(None)  # waits for nothing

        assert in_a_fork(closed) == ""
        await client.feedback("0-1", label=1)
