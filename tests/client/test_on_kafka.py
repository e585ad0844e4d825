"""The client on a real broker, against an app that shares no code with it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition

from streamserve import Client, SyncClient
from streamserve.errors import BrokerError, PredictionTimeout, TopicsDiffer
from streamserve.kafka import admin
from streamserve.testing.broker_fixture import BrokerForTests
from streamserve.topics import catalogue
from tests.client.responder import TIMEOUT_S, Responder

pytestmark = [pytest.mark.broker, pytest.mark.beside]
PARTITIONS = 4
DEADLINE_MS = 10_000


@pytest.fixture
def app(broker: BrokerForTests) -> str:
    """The name of an app whose topics are there."""
    name = f"client-{uuid.uuid4().hex[:10]}"
    asyncio.run(admin.create(broker.bootstrap_servers, catalogue(name, PARTITIONS, 1), {}))
    return name


@pytest.fixture
def consumer(broker: BrokerForTests, app: str) -> Iterator[Consumer]:
    """A foreign one, which knows of the app's topics."""
    # An end is waited at for so long: else each place is read half a second after the one before.
    one = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "look", "fetch.wait.max.ms": 10})
    one.list_topics(timeout=TIMEOUT_S)  # else a topic is looked up half a second after it was assigned
    yield one
    one.close()


async def test_many_outstanding_requests_each_get_their_own_answer(broker: BrokerForTests, app: str) -> None:
    xs = np.random.default_rng(7).integers(0, 100, (500, 3)).astype(np.float64)
    with Responder(broker.bootstrap_servers, app, PARTITIONS):
        async with Client(broker.bootstrap_servers, app=app, deadline_ms=DEADLINE_MS) as client:
            predictions = await client.predict_many(xs, ids=[f"r{n}" for n in range(len(xs))])
    assert [p.label for p in predictions] == xs.sum(axis=1).tolist()
    assert [p.id for p in predictions] == [f"r{n}" for n in range(len(xs))]
    assert len({p.ref for p in predictions}) == len(xs)
    one = predictions[0]
    assert (one.outcome, one.reason, one.confidence) == ("partial", "members_missing", 0.5)
    assert {model: labels.tolist() for model, labels in one.members.items()} == {
        "sum@1": [one.label],
        "odd@1": [one.label + 1],
    }
    assert one.missing == {"gone@1": "late"}


async def test_sends_that_overlap_know_their_own_refs(broker: BrokerForTests, app: str, consumer: Consumer) -> None:
    async with Client(broker.bootstrap_servers, app=app) as client:
        sent = []
        for n in range(60):
            sent.append(client.submit([n], key=f"k{n % 5}"))
            await asyncio.sleep(0)  # some leave together, some while others are on their way
        refs = [await each.acknowledged() for each in sent]
    found = {}
    for ref in refs:
        value, key = read(consumer, f"{app}.requests.v1", ref)
        found[ref] = (json.loads(value)["inputs"][0]["data"], key)
    assert [found[ref] for ref in refs] == [([n], b"k%d" % (n % 5)) for n in range(60)]


async def test_a_second_terminal_record_is_dropped(broker: BrokerForTests, app: str) -> None:
    with Responder(broker.bootstrap_servers, app, PARTITIONS, doubled=True):
        async with Client(broker.bootstrap_servers, app=app, deadline_ms=DEADLINE_MS) as client:
            everything = client.predictions()
            predictions = await client.predict_many([[n, n] for n in range(1, 21)])
            seen = [await anext(everything) for _ in range(20)]
    assert [p.label for p in predictions] == [2 * n for n in range(1, 21)]
    assert {p.ref: p.label for p in seen} == {p.ref: p.label for p in predictions}


async def test_feedback_lands_beside_its_request(broker: BrokerForTests, app: str, consumer: Consumer) -> None:
    with Responder(broker.bootstrap_servers, app, PARTITIONS):
        async with Client(broker.bootstrap_servers, app=app, deadline_ms=DEADLINE_MS) as client:
            prediction = await client.predict([[1.0, 2.0], [3.0, 4.0]], key="user-1")
            place = await client.feedback(prediction, label=np.array([3, 7]))
    assert prediction.labels is not None
    assert prediction.labels.tolist() == [3.0, 7.0]
    assert place.split("-")[0] == prediction.ref.split("-")[0]
    value, key = read(consumer, f"{app}.feedback.v1", place)
    assert (json.loads(value), key) == ({"id": prediction.id, "label": [3, 7]}, b"user-1")


async def test_a_time_out_asks_the_broker_who_is_behind(broker: BrokerForTests, app: str) -> None:
    async with Client(broker.bootstrap_servers, app=app, grace_ms=100) as client:
        with pytest.raises(PredictionTimeout) as caught:
            await client.predict([1.0], deadline_ms=2_000)
    words = str(caught.value)
    assert f"appended to {app}.requests.v1, partition " in words
    assert f"group {app}.terminal has never read this topic" in words


def test_the_sync_face(broker: BrokerForTests, app: str) -> None:
    with Responder(broker.bootstrap_servers, app, PARTITIONS):
        with SyncClient(broker.bootstrap_servers, app=app, deadline_ms=DEADLINE_MS) as client:
            everything = client.predictions()
            assert client.predict([1.0, 2.0]).label == 3.0
            sent = client.submit([2.0, 2.0])
            assert sent.prediction().label == 4.0
            assert sent.ref == sent.acknowledged()
            assert [p.label for p in client.predict_many(np.ones((3, 2)))] == [2.0] * 3
            assert client.feedback(sent.acknowledged(), reward=1.0)
            assert {next(everything).label for _ in range(2)} == {3.0, 4.0}
        assert [p.label for p in everything] == [2.0] * 3  # what was not taken before it closed


async def test_an_address_where_nothing_answers(app: str) -> None:
    with pytest.raises(BrokerError, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
        await Client("127.0.0.1:1", app=app).start()


async def test_an_app_without_topics(broker: BrokerForTests) -> None:
    with pytest.raises(TopicsDiffer, match=r"no topic nobody\.requests\.v1 and no topic nobody\.predictions\.v1 at"):
        await Client(broker.bootstrap_servers, app="nobody").start()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "look"})
    assert not [name for name in consumer.list_topics(timeout=TIMEOUT_S).topics if name.startswith("nobody.")]
    consumer.close()


def read(consumer: Consumer, topic: str, place: str) -> tuple[bytes, bytes | None]:
    """Value and key of the record at `<partition>-<offset>`."""
    partition, offset = map(int, place.split("-"))
    consumer.assign([TopicPartition(topic, partition, offset)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert (message.topic(), message.partition(), message.offset()) == (topic, partition, offset)
    return message.value(), message.key()
