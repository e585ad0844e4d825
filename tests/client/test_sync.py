"""The sync face on a log in memory: its thread, and what closing does to those who wait."""

from __future__ import annotations

import threading

import pytest

from streamserve.client import Client, Prediction, SyncClient, SyncSubmitted
from streamserve.errors import ShuttingDown, StreamserveError, TopicsDiffer
from streamserve.testing.log import MemoryLog
from tests.client.conftest import APP, MemoryApp


def face(app: MemoryApp) -> SyncClient:
    return SyncClient.of(Client(app=APP, log=app, deadline_ms=10_000))


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "streamserve-client"]


def test_a_request_is_sent_from_any_thread(app: MemoryApp) -> None:
    refs: list[str] = []
    with face(app) as client:
        threads = [threading.Thread(target=lambda: refs.append(client.submit([1]).acknowledged())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(refs)) == 8
    assert client_threads() == []


def test_closing_wakes_who_waits_on_another_thread(app: MemoryApp) -> None:
    client = face(app)
    client.start()
    sent = client.submit([1])
    stream = client.predictions()
    ends: list[object] = []

    def wait_for(sent: SyncSubmitted) -> None:
        try:
            sent.prediction()
        except ShuttingDown as error:
            ends.append(error)

    def iterate() -> None:
        ends.append(list(stream))

    threads = [threading.Thread(target=wait_for, args=(sent,)), threading.Thread(target=iterate)]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert [] in ends
    with pytest.raises(StreamserveError, match="does not run"):
        client.predict([1])
    client.close()


def test_a_start_that_fails_leaves_no_thread() -> None:
    client = SyncClient.of(Client(app=APP, log=MemoryApp(MemoryLog({}))))
    with pytest.raises(TopicsDiffer):
        client.start()
    assert client_threads() == []


def test_an_iteration_may_be_left(app: MemoryApp) -> None:
    with face(app) as client:
        sent = client.submit([1])
        sent.acknowledged()
        app_answer(client, app, sent)
        for prediction in client.predictions(mine=True):
            assert isinstance(prediction, Prediction)
            break
        assert sent.prediction().ref == sent.ref


def app_answer(client: SyncClient, app: MemoryApp, sent: SyncSubmitted) -> None:
    """Answer a request on the client's own thread, where its log lives."""
    partition, offset = map(int, sent.acknowledged().split("-"))
    loop = client._loop
    assert loop is not None
    loop.call_soon_threadsafe(app.answer, partition, offset)
