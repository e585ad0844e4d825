"""The async client on a log in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import numpy as np
import pytest

from streamserve.client import Client, PredictionFailed, RouteHint, TooManyOutstanding, UnusableInput
from streamserve.client import client as client_module
from streamserve.errors import (
    BrokerError,
    ConfigError,
    ContractError,
    PredictionTimeout,
    ShuttingDown,
    StreamserveError,
    TopicsDiffer,
)
from streamserve.kafka.ports import At, Chunk, Columns, Committed, Record
from streamserve.testing.log import MemoryLog, MemoryReader
from tests.client.conftest import APP, FEEDBACK, PARTITIONS, PREDICTIONS, REQUESTS, MemoryApp, terminal

ROW = np.arange(4.0)
#: Of Kafka's own UtilsTest.
PAIRS = [("foobar", -790332482), ("a-little-bit-long-string", -985981536)]


def client(app: MemoryApp, **more: object) -> Client:
    return Client(app=APP, log=app, **more)  # type: ignore[arg-type]


async def test_a_request_is_answered_by_its_ref(app: MemoryApp) -> None:
    async with client(app) as asking:
        answering = asyncio.create_task(app.answer_all(1))
        prediction = await asking.predict(ROW, deadline_ms=1_000, route="digits", key="k", id="mine")
        await answering
    ((partition, request),) = app.requests()
    assert prediction.ref == f"{partition}-{request.offset}"
    assert prediction.outcome == "ok"
    assert prediction.label == 0
    assert request.key == b"k"
    assert dict(request.headers) == {"ss-route": b"digits", "ss-deadline-ms": b"1000"}
    body = json.loads(request.value or b"")
    assert body["id"] == "mine"
    assert body["inputs"][0]["shape"] == [1, 4]


async def test_no_more_than_the_bound_are_outstanding_and_the_rest_is_not_sent(app: MemoryApp) -> None:
    async with client(app, deadline_ms=5_000, max_outstanding=3) as asking:
        with pytest.raises(TooManyOutstanding, match="0 requests wait for their answers, and 4 more"):
            await asking.predict_many([ROW] * 4)
        sent = [asking.submit(ROW) for _ in range(3)]
        with pytest.raises(TooManyOutstanding, match=r"max_outstanding \(3\)"):
            asking.submit(ROW)
        await asyncio.gather(app.answer_all(3), *(each.prediction() for each in sent))
        await asyncio.gather(app.answer_all(4), asking.predict(ROW))
    assert len(app.requests()) == 4


async def test_no_more_feedback_than_the_bound_is_on_its_way(app: MemoryApp) -> None:
    async with client(app, max_outstanding=2) as asking:
        told = await asyncio.gather(*(asking.feedback("0-1", label=1) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in told] == [str, str, TooManyOutstanding]
        assert await asking.feedback("0-1", label=1) == "0-2"


async def test_many_are_sent_together_and_come_back_in_order(app: MemoryApp) -> None:
    xs = np.arange(200.0).reshape(50, 4)
    async with client(app, deadline_ms=5_000) as asking:
        answering = asyncio.create_task(app.answer_all(50))
        predictions = await asking.predict_many(xs, ids=[f"i{n}" for n in range(50)])
        await answering
    sent = {f"{partition}-{r.offset}": json.loads(r.value or b"") for partition, r in app.requests()}
    assert [sent[p.ref]["id"] for p in predictions] == [f"i{n}" for n in range(50)]
    assert [sent[p.ref]["inputs"][0]["data"] for p in predictions] == xs.tolist()
    assert {p.ref.split("-")[0] for p in predictions} == {str(n) for n in range(PARTITIONS)}


@pytest.mark.parametrize(("key", "murmur2"), PAIRS)
async def test_equal_keys_are_in_the_partition_where_java_puts_them(app: MemoryApp, key: str, murmur2: int) -> None:
    async with client(app) as asking:
        sent = [asking.submit(ROW, key=key) for _ in range(5)]
        refs = [await each.acknowledged() for each in sent]
    assert refs == [f"{(murmur2 & 0x7FFFFFFF) % PARTITIONS}-{offset}" for offset in range(5)]


async def test_an_answer_may_come_before_the_acknowledgement(app: MemoryApp) -> None:
    async with client(app) as asking:
        app.writers[0].hold()
        first, second = asking.submit(ROW, key="a"), asking.submit(ROW, key="a")
        await app.log.wait(5.0)
        ((partition, _), _) = app.requests()
        everything, stream = asking.predictions(), asking.predictions(mine=True)
        app.answer(partition, 1, label=41)
        app.answer(partition, 0, label=40)
        assert [(await anext(everything)).label, (await anext(everything)).label] == [41, 40]
        assert first.ref is None
        assert not first.done
        app.writers[0].release()
        assert ((await first.prediction()).label, (await second.prediction()).label) == (40, 41)
        assert {(await anext(stream)).label, (await anext(stream)).label} == {40, 41}
    assert asking._matcher._early == {}


async def test_a_second_record_of_a_ref_is_dropped(app: MemoryApp) -> None:
    async with client(app) as asking:
        everything, mine = asking.predictions(), asking.predictions(mine=True)
        sent = asking.submit(ROW)
        ref = await sent.acknowledged()
        partition, offset = map(int, ref.split("-"))
        app.answer(partition, offset, label=1)
        app.answer(partition, offset, label=2)
        app.answer(partition, 999, label=3)
        assert (await sent.prediction()).label == 1
        assert [(await anext(everything)).label, (await anext(everything)).label] == [1, 3]
        assert (await anext(mine)).label == 1
    assert [p async for p in mine] == []


async def test_what_was_written_before_the_client_started_is_not_its_own(app: MemoryApp) -> None:
    app.answer(0, 0, label=7)
    async with client(app) as asking:
        everything = asking.predictions()
        app.answer(0, 1, label=8)
        assert (await anext(everything)).label == 8


async def test_a_time_out_says_where_the_request_was_last_seen(app: MemoryApp) -> None:
    async with client(app, grace_ms=0) as asking:
        with pytest.raises(PredictionTimeout) as caught:
            await asking.predict(ROW, deadline_ms=20, id="mine")
    ((partition, _),) = app.requests()
    words = str(caught.value)
    assert f"request {partition}-0 (id 'mine') was not answered within 20 ms (deadline 20, grace 0)" in words
    assert f"appended to {REQUESTS}, partition {partition}, offset 0, at 2" in words
    assert "nothing after it in that partition has been answered" in words
    assert "group digits.terminal has never read this topic" in words


async def test_a_time_out_names_the_lag_of_who_should_have_answered(app: MemoryApp) -> None:
    async with client(app, grace_ms=0) as asking:
        group = app.log.group("digits.terminal", REQUESTS)
        first = asking.submit(ROW, deadline_ms=20, key="a")
        second = asking.submit(ROW, deadline_ms=20, key="a")
        await second.acknowledged()
        group.commits[At(REQUESTS, first.partition)] = Committed(offset=1, metadata="")
        app.answer(first.partition, 5)
        await asyncio.gather(first.settled(), second.settled())
        with pytest.raises(
            PredictionTimeout, match=r"later requests .* up to offset 5; group digits.terminal has settled"
        ):
            await first.prediction()
        with pytest.raises(PredictionTimeout, match=rf"not settled it; its lag: 1 in partition {second.partition}"):
            await second.prediction()


async def test_a_time_out_before_the_acknowledgement_says_that(app: MemoryApp) -> None:
    async with client(app, grace_ms=0) as asking:
        app.writers[0].hold()
        sent = asking.submit(ROW, deadline_ms=10)
        with pytest.raises(PredictionTimeout, match="has not acknowledged it: is that broker up"):
            await sent.prediction()
        app.writers[0].release()
        await sent.acknowledged()
        assert len(asking._matcher) == 0


async def test_many_time_outs_are_told_as_one(app: MemoryApp) -> None:
    async with client(app, grace_ms=0) as asking:
        with pytest.raises(PredictionTimeout, match=r"3 of 3 requests had no answer; the first: request "):
            await asking.predict_many([ROW] * 3, deadline_ms=10)


async def test_a_late_answer_still_reaches_the_stream(app: MemoryApp) -> None:
    async with client(app, grace_ms=0) as asking:
        mine = asking.predictions(mine=True)
        sent = asking.submit(ROW, deadline_ms=1)
        ref = await sent.acknowledged()
        await sent.settled()
        app.answer(sent.partition, sent.offset, outcome="expired")
        assert (await anext(mine)).ref == ref


async def test_deadlines_and_codecs_of_known_routes_are_used(app: MemoryApp) -> None:
    routes = {"a": RouteHint(deadline_ms=7, input="raw"), "b": RouteHint(deadline_ms=9, input="rows")}
    async with client(app, grace_ms=1, routes=routes) as asking:
        raw, rows = asking.submit(ROW, route="a"), asking.submit([1, 2], route="b")
        other = asking.submit(ROW)
        await asyncio.gather(raw.acknowledged(), rows.acknowledged(), other.acknowledged())
        assert (raw.wait_ms, rows.wait_ms, other.wait_ms) == (8, 10, 10_001)
    records = {r.headers[-1][1]: r for _, r in app.requests() if r.headers}
    assert records[b"a"].value == ROW.tobytes()
    assert records[b"a"].headers == (("ss-dtype", b"float64"), ("ss-shape", b"1,4"), ("ss-route", b"a"))
    assert records[b"b"].value == b'{"rows":[[1,2]]}' or json.loads(records[b"b"].value) == {"rows": [[1, 2]]}


async def test_the_only_route_needs_no_name(app: MemoryApp) -> None:
    async with client(app, grace_ms=0, routes={"a": RouteHint(deadline_ms=7, input="text")}) as asking:
        assert asking.submit("good film").wait_ms == 7
        await asking.close()
    ((_, request),) = app.requests()
    assert (request.value, request.headers) == (b"good film", ())


async def test_feedback_goes_to_the_requests_partition_with_its_ref_and_key(app: MemoryApp) -> None:
    async with client(app) as asking:
        answering = asyncio.create_task(app.answer_all(1))
        prediction = await asking.predict(ROW, deadline_ms=1_000, key="k")
        await answering
        place = await asking.feedback(prediction, label=np.int64(3))
        await asking.feedback("2-9", reward=0.5, model="linear@1", key="k2")
    partition = int(prediction.ref.split("-")[0])
    assert place == f"{partition}-0"
    records = app.log.records(FEEDBACK)
    first = records[partition][0]
    assert json.loads(first.value or b"") == {"id": prediction.ref, "label": 3}
    assert first.headers == (("ss-ref", prediction.ref.encode()),)
    assert first.key == prediction.ref.encode()  # this responder writes no key; the id stands in
    second = records[2][-1]
    assert json.loads(second.value or b"") == {"id": "2-9", "reward": 0.5, "model": "linear@1"}
    assert second.key == b"k2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prediction": "2-9"}, "needs a label or a reward"),
        ({"prediction": "nonsense", "label": 1}, "'nonsense' is no ref"),
        ({"prediction": "99-1", "label": 1}, "the app has partitions 0 to 2"),
        ({"prediction": "2-9", "reward": 1.5}, "reward = 1.5: allowed are 0 to 1"),
        ({"prediction": "2-9", "label": float("nan")}, "NaN"),
        ({"prediction": "2-9", "label": object()}, "cannot be written as JSON"),
    ],
)
async def test_feedback_that_cannot_be_used_is_refused_in_words(
    app: MemoryApp, arguments: dict[str, object], words: str
) -> None:
    async with client(app) as asking:
        with pytest.raises(UnusableInput, match=words):
            await asking.feedback(**arguments)  # type: ignore[arg-type]
    assert not any(app.log.records(FEEDBACK).values())


async def test_a_null_label_is_a_label(app: MemoryApp) -> None:
    async with client(app) as asking:
        await asking.feedback("0-1", label=None)
    assert json.loads(app.log.records(FEEDBACK)[0][0].value or b"") == {"id": "0-1", "label": None}


async def test_a_broker_that_refuses_is_an_error_in_words(app: MemoryApp) -> None:
    async with client(app) as asking:
        app.log.fail_next[REQUESTS] = 1
        with pytest.raises(BrokerError, match="at memory did not take it: refused"):
            await asking.predict(ROW)
        app.log.fail_next[FEEDBACK] = 1
        with pytest.raises(BrokerError, match="did not take the feedback: refused"):
            await asking.feedback("0-1", label=1)
        answering = asyncio.create_task(app.answer_all(1))
        assert (await asking.predict(ROW)).outcome == "ok"
        await answering


async def test_closing_fails_what_is_not_answered_and_ends_the_streams(app: MemoryApp) -> None:
    asking = client(app)
    await asking.start()
    sent, stream = asking.submit(ROW), asking.predictions()
    waiting = asyncio.create_task(sent.prediction())
    await sent.acknowledged()
    await asking.close()
    with pytest.raises(ShuttingDown, match=f"before request {sent.ref} was answered"):
        await waiting
    assert [p async for p in stream] == []
    await asking.close()
    with pytest.raises(StreamserveError, match="does not run"):
        asking.submit(ROW)


async def test_a_stream_that_is_not_taken_says_what_it_lost(app: MemoryApp) -> None:
    async with client(app) as asking, asking.predictions(max_waiting=2) as stream:
        other = asking.predictions()
        for offset in range(5):
            app.answer(0, offset)
        for _ in range(5):
            await anext(other)
        with pytest.raises(StreamserveError, match="3 predictions were lost to this iteration"):
            await anext(stream)
        assert [(await anext(stream)).label, (await anext(stream)).label] == [3, 4]


async def test_records_that_are_none_of_ours_are_passed_over(app: MemoryApp) -> None:
    async with client(app) as asking:
        stream = asking.predictions()
        value, _ = terminal(0, 0)
        at = At(PREDICTIONS, 0)
        for headers in ((), (("ss-ref", b"x"),), (("ss-ref", b"1-5"),), (("ss-ref", None),)):
            app.log.append(at, Columns.of([Record(value=value, headers=headers)]))
        app.log.append(at, Columns.of([Record(value=b"{}", headers=(("ss-ref", b"0-3"),))]))
        app.answer(0, 4)
        with pytest.raises(ContractError, match="the prediction of request 0-3 cannot be read"):
            await anext(stream)
        assert (await anext(stream)).ref == "0-4"


async def test_an_outcome_without_an_answer_can_be_raised(app: MemoryApp) -> None:
    async with client(app) as asking:
        sent = asking.submit(ROW)
        await sent.acknowledged()
        app.answer(sent.partition, sent.offset, outcome="expired")
        prediction = await sent.prediction()
    with pytest.raises(PredictionFailed, match=f"request {sent.ref} ended as expired: deadline passed") as caught:
        prediction.raise_for_outcome()
    assert caught.value.prediction is prediction
    with pytest.raises(PredictionFailed):
        _ = prediction.label


class Faulty(MemoryReader):
    """Its first fetch raises what no reader should."""

    faults = 1

    async def fetch(self, *, max_records: int, timeout_ms: int) -> Sequence[Chunk]:  # type: ignore[override]
        if self.faults:
            self.faults -= 1
            raise KeyError("a fault")
        return await super().fetch(max_records=max_records, timeout_ms=timeout_ms)


async def test_a_fault_in_reading_leaves_nobody_waiting(
    app: MemoryApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "_RETRY_S", 0.0)
    monkeypatch.setattr(app, "reader", lambda: Faulty(app.log))
    async with client(app) as asking:
        lost = asyncio.Event()
        take = asking._take_chunk

        def faulty(chunk: Chunk) -> None:
            if lost.is_set():
                take(chunk)
            else:
                lost.set()
                raise IndexError

        monkeypatch.setattr(asking, "_take_chunk", faulty)
        stream = asking.predictions()
        app.answer(0, 0)
        await lost.wait()
        app.answer(0, 1)
        assert (await anext(stream)).ref == "0-1"
    assert "cannot be read, trying again: KeyError('a fault')" in caplog.text
    assert "partition 0, were not taken" in caplog.text


async def test_missing_topics_are_named(app: MemoryApp) -> None:
    bare = MemoryApp(MemoryLog({REQUESTS: 2}))
    with pytest.raises(TopicsDiffer, match=r"no topic digits.predictions.v1 at memory"):
        await client(bare).start()
    uneven = MemoryApp(MemoryLog({REQUESTS: 2, PREDICTIONS: 3}))
    with pytest.raises(TopicsDiffer, match="same number of partitions"):
        await client(uneven).start()
    with pytest.raises(ConfigError, match="app name 'No'"):
        Client("localhost:1", app="No")


async def test_a_cancelled_caller_leaves_the_others_alone(app: MemoryApp) -> None:
    async with client(app) as asking:
        sent = asking.submit(ROW)
        ref = await sent.acknowledged()
        waiting = asyncio.create_task(sent.prediction())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        app.answer(sent.partition, sent.offset)
        assert (await sent.prediction()).ref == ref
