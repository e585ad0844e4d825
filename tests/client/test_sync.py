"""The sync face on a log in memory: its thread, and what closing does to those who wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from streamserve.client import Client, Prediction, SyncClient, SyncSubmitted
from streamserve.errors import PredictionTimeout, ShuttingDown, StreamserveError, TopicsDiffer
from streamserve.testing.log import MemoryLog
from tests.client.conftest import APP, MemoryApp

JOIN_S = 10.0

Face = TypeVar("Face", bound=SyncClient)


class Interrupted(SyncClient):
    """Once `armed`, another thread closes it after a call has begun and before its work is handed to the loop."""

    armed = False

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self.armed:
            self.armed = False
            joined(started(self.close))
        return super()._do(work)


class Told(SyncClient):
    """Says when work has begun on its loop: whatever is asked of that loop later comes after the work's first wait."""

    def _set(self, client: Client) -> None:
        super()._set(client)
        self.began = threading.Event()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def telling() -> Any:
            self.began.set()
            return await work

        try:
            return super()._do(telling())
        finally:
            work.close()  # where it was not begun: the client was closed


def face(app: MemoryApp, kind: type[Face] = SyncClient) -> Face:
    return kind.of(Client(app=APP, log=app, deadline_ms=10_000))


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    thread.join(JOIN_S)
    assert not thread.is_alive()


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


def test_closing_on_the_way_to_the_next_prediction_ends_the_iteration(app: MemoryApp) -> None:
    with face(app, Interrupted) as client:
        stream = client.predictions()
        client.armed = True
        assert list(stream) == []


def test_closing_on_the_way_out_of_an_iteration_is_no_error(app: MemoryApp) -> None:
    with face(app, Interrupted) as client:
        stream = client.predictions()
        app_answer(client, app, client.submit([1]))
        assert isinstance(next(stream), Prediction)
        client.armed = True
        stream.close()


def test_closing_on_the_way_to_a_request_is_told(app: MemoryApp) -> None:
    with face(app, Interrupted) as client:
        client.armed = True
        with pytest.raises(StreamserveError, match="does not run"):
            client.predict([1])
    assert app.requests() == []


@pytest.mark.parametrize(
    ("wait", "end"),
    [
        pytest.param(lambda client: partial(client.predict, [1]), ShuttingDown, id="predict"),
        pytest.param(lambda client: partial(client.predict_many, [[1], [2]]), ShuttingDown, id="predict_many"),
        pytest.param(lambda client: partial(list, client.predictions()), list, id="predictions"),
    ],
)
def test_closing_wakes_who_has_begun_to_wait(
    wait: Callable[[SyncClient], Callable[[], object]], end: type[object], app: MemoryApp
) -> None:
    client = face(app, Told)
    client.start()
    wait_for_it = wait(client)
    client.began.clear()
    ends: list[object] = []

    def waiting() -> None:
        try:
            ends.append(wait_for_it())
        except StreamserveError as error:
            ends.append(error)

    thread = started(waiting)
    assert client.began.wait(JOIN_S)
    client.close()
    joined(thread)
    assert [type(each) for each in ends] == [end]


def test_a_start_that_fails_leaves_no_thread() -> None:
    client = SyncClient.of(Client(app=APP, log=MemoryApp(MemoryLog({}))))
    with pytest.raises(TopicsDiffer):
        client.start()
    assert client_threads() == []


def test_an_iteration_may_be_left(app: MemoryApp) -> None:
    with face(app) as client:
        sent = client.submit([1])
        sent.acknowledged()
        predictions = client.predictions(mine=True)  # from here on: before there is an answer
        app_answer(client, app, sent)
        for prediction in predictions:
            assert isinstance(prediction, Prediction)
            break
        assert sent.prediction().ref == sent.ref


def test_what_waits_when_the_client_is_closed_can_still_be_taken(app: MemoryApp) -> None:
    with face(app) as client:
        streams = [client.predictions(), client.predictions(mine=True)]
        refs = [answered(client, app).ref for _ in range(2)]
    assert [[prediction.ref for prediction in stream] for stream in streams] == [refs, refs]
    assert [list(stream) for stream in streams] == [[], []]


def test_what_waits_when_a_stream_is_closed_can_still_be_taken(app: MemoryApp) -> None:
    with face(app) as client:
        with client.predictions() as stream:
            refs = [answered(client, app).ref for _ in range(2)]
        answered(client, app)
        assert [prediction.ref for prediction in stream] == refs


def test_an_iteration_goes_on_after_it_has_told_what_was_lost(app: MemoryApp) -> None:
    with face(app) as client:
        streams = [client.predictions(max_waiting=2) for _ in range(2)]
        refs = [answered(client, app).ref for _ in range(3)]
        with pytest.raises(StreamserveError, match="1 predictions were lost to this iteration"):
            next(streams[0])
        assert [next(streams[0]).ref, next(streams[0]).ref] == refs[1:]
    with pytest.raises(StreamserveError, match="1 predictions were lost to this iteration"):
        next(streams[1])
    assert [prediction.ref for prediction in streams[1]] == refs[1:]


def test_a_stream_that_nobody_has_is_closed(app: MemoryApp) -> None:
    with face(app) as client:
        for _ in range(2):
            stream = client.predictions()
            answered(client, app)
            next(stream)
            del stream
        client.submit([1]).acknowledged()  # what was asked of the loop before has been done
        assert client._client._streams == []


def test_what_was_known_of_a_request_can_still_be_asked_when_the_client_is_closed(app: MemoryApp) -> None:
    with SyncClient.of(Client(app=APP, log=app, grace_ms=0)) as client:
        done, other, late = (client.submit([1], deadline_ms=ms) for ms in (10_000, 10_000, 1))
        mine = client.predictions(mine=True)
        app_answer(client, app, done)
        assert next(mine).ref == done.ref
        with pytest.raises(PredictionTimeout):
            late.prediction()
    assert (done.prediction().ref, done.acknowledged()) == (done.ref, done.ref)
    with pytest.raises(ShuttingDown, match=f"before request {other.ref} was answered"):
        other.prediction()
    with pytest.raises(PredictionTimeout, match=r"not answered within 1 ms .* who reads it was not asked"):
        late.prediction()
    assert {sent.acknowledged() for sent in (done, other, late)} == {done.ref, other.ref, late.ref}


def test_closing_on_the_way_to_an_answer_is_told_as_to_those_who_wait(app: MemoryApp) -> None:
    with face(app, Interrupted) as client:
        sent = client.submit([1])
        client.armed = True
        with pytest.raises(ShuttingDown, match=r"before request .* was answered"):
            sent.prediction()


def answered(client: SyncClient, app: MemoryApp) -> SyncSubmitted:
    """A request whose answer has come."""
    sent = client.submit([1])
    app_answer(client, app, sent)
    sent.prediction()
    return sent


def app_answer(client: SyncClient, app: MemoryApp, sent: SyncSubmitted) -> None:
    """Answer a request on the client's own thread, where its log lives."""
    partition, offset = map(int, sent.acknowledged().split("-"))
    loop = client._loop
    assert loop is not None
    loop.call_soon_threadsafe(app.answer, partition, offset)
