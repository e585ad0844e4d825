"""Fences on the real broker: who took a partition over shuts its predecessors out, wherever their batches are."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from streamserve.cli.entry import run
from streamserve.errors import BrokerError
from streamserve.kafka import fencing, rawfetch
from streamserve.kafka.brokers.options import BrokerOptions
from streamserve.kafka.brokers.own import OwnBroker
from streamserve.kafka.fencing import Fences, Transactions
from streamserve.kafka.lookups import KafkaLookups
from streamserve.kafka.once import read_spans
from streamserve.kafka.ports import Ack, At, Chunk, Columns, Record
from streamserve.kafka.rawfetch import RawFetcher, RawReader
from streamserve.kafka.writer import KafkaWriter

pytestmark = pytest.mark.broker

WAIT_S = 20.0
CONFIG = """
[app]
name = "{app}"
delivery = "exactly_once"
[broker]
bootstrap_servers = "{servers}"
[pools.main]
models = ["m"]
[models.m]
source = "math:trunc"
[routes.r]
models = ["m"]
"""


def one(value: str) -> Columns:
    return Columns.of([Record(value=value.encode())])


class Owner:
    """A process that may write for the partitions of one app, as far as the log is concerned."""

    def __init__(self, servers: str, app: str) -> None:
        options = {"bootstrap_servers": servers}
        self.topics = (f"{app}.out", f"{app}.letters")
        self.writer = KafkaWriter(options)
        self.fences = Fences(
            Transactions(options, app),
            prefix=f"{app}.terminal",
            covers=lambda number: [At(topic, number) for topic in self.topics],
            send=self.writer.send,
        )
        self.lost: list[tuple[int, bool]] = []
        self.fences.on_lost = lambda number, shut_out: self.lost.append((number, shut_out))

    def send(self, value: str, number: int = 0, topic: int = 0) -> asyncio.Future[Ack]:
        return self.fences.send(number, At(self.topics[topic], number), one(value))


class App:
    """Two topics on a broker, and processes that write to them."""

    def __init__(self, servers: str) -> None:
        self.servers, self.name = servers, f"t{uuid.uuid4().hex[:10]}"
        self._started: list[Owner] = []

    async def owner(self) -> Owner:
        owner = Owner(self.servers, self.name)
        await owner.writer.start()
        await owner.fences.start()
        self._started.append(owner)
        return owner

    async def close(self) -> None:
        for owner in self._started:
            await owner.fences.stop()
            await owner.writer.stop()

    async def values(self, topic: str = "out", number: int = 0) -> list[str]:
        options = {"bootstrap_servers": self.servers}
        reader, lookups, at = RawReader(options), KafkaLookups(options), At(f"{self.name}.{topic}", number)
        found: list[bytes | None] = []
        await reader.start()
        await lookups.start()
        try:
            spans = {at: (0, (await lookups.ends([at]))[at])}
            await read_spans(reader, spans, lambda chunk: found.extend(chunk.values))
        finally:
            await lookups.stop()
            await reader.stop()
        return [(value or b"").decode() for value in found]


@asynccontextmanager
async def app_on(broker: Any) -> AsyncIterator[App]:
    app = App(broker.bootstrap_servers)
    admin = AIOKafkaAdminClient(bootstrap_servers=app.servers)
    await admin.start()
    await admin.create_topics([NewTopic(f"{app.name}.{topic}", 2, 1) for topic in ("out", "letters")])
    await admin.close()
    try:
        async with asyncio.timeout(WAIT_S):
            yield app
    finally:
        await app.close()


@pytest.mark.beside
async def test_a_predecessor_is_refused_in_every_topic_and_told_once(broker: Any) -> None:
    async with app_on(broker) as app:
        old, new = await app.owner(), await app.owner()
        await old.fences.take([0, 1])
        assert not (await old.send("a")).error
        await new.fences.take([0])
        refused = [old.send("late", topic=topic) for topic in (0, 1) for _ in range(3)]
        assert all(ack.error for ack in await asyncio.gather(*refused))
        assert old.lost == [(0, True)]
        assert "no longer ours" in (await old.send("later")).error
        assert not (await old.send("b", number=1)).error  # what it still owns it goes on with
        assert not (await new.send("c")).error
        assert await app.values() == ["a", "c"]
        assert await app.values("letters") == []
        assert new.lost == []


@pytest.mark.beside
async def test_the_markers_stand_in_the_log_when_a_take_over_returns(broker: Any) -> None:
    async with app_on(broker) as app:
        owner, raw = await app.owner(), RawFetcher({"bootstrap_servers": app.servers}, committed_only=False)
        for turn in range(20):
            await owner.fences.take([0, 1])
            for topic in owner.topics:
                chunk = await raw.fetch(At(topic, 1), turn)
                assert chunk is not None
                assert (len(chunk), chunk.next_offset) == (0, turn + 1)
        await raw.stop()


class Zealot:
    """Sends for ever, whether it is the owner or not; `turn`: when it last became it."""

    def __init__(self, owner: Owner) -> None:
        self.owner, self.turn, self.acknowledged, self._sent = owner, -1, 0, 0
        self.looks = False
        self._more = asyncio.Event()

    async def send_for_ever(self) -> None:
        while True:
            if not self.looks:
                ack = self.owner.send(f"{self.turn}.{self._sent}")
                ack.add_done_callback(self._heard)
                self._sent += 1
            await asyncio.sleep(0.001)

    def _heard(self, done: asyncio.Future[Ack]) -> None:
        if not done.result().error:
            self.acknowledged += 1
            self._more.set()

    async def hears(self, n: int) -> None:
        """Until so many more are acknowledged."""
        n += self.acknowledged
        while self.acknowledged < n:
            self._more.clear()
            await self._more.wait()


async def test_a_look_at_the_log_ends_at_once_where_it_ends_in_a_marker(broker: Any) -> None:
    async with app_on(broker) as app:
        owner = await app.owner()
        for turn in range(3):
            await owner.fences.take([0, 1])
            await asyncio.gather(*(owner.send(f"{turn}.{number}", number=number) for number in (0, 1)))
        await owner.fences.take([0, 1])
        reader, places = (
            RawReader({"bootstrap_servers": app.servers}),
            [At(owner.topics[0], number) for number in (0, 1)],
        )
        found: list[Chunk] = []
        await reader.start()
        began_s = time.monotonic()
        await read_spans(reader, {places[0]: (1, 7), places[1]: (3, 7)}, found.append)
        took_s = time.monotonic() - began_s
        assert [reader.lag(at) for at in places] == [0, 0]
        await reader.stop()
        values = {at: [v for chunk in found if chunk.at == at for v in chunk.values] for at in places}
        assert values == {places[0]: [b"0.0", b"1.0", b"2.0"], places[1]: [b"1.1", b"2.1"]}
        assert took_s < 0.4  # aiokafka's own reader waits half a second there


@pytest.mark.beside
async def test_what_is_gone_from_the_log_is_not_waited_for(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rawfetch, "_MOST_FRUITLESS", 2)
    async with app_on(broker) as app:
        reader, at = RawReader({"bootstrap_servers": app.servers}), At(f"{app.name}.out", 0)
        with pytest.raises(BrokerError, match="nothing can be read from"):
            await read_spans(reader, {at: (5, 9)}, lambda _chunk: None)  # out of range, as after its deletion
        await reader.stop()


@pytest.mark.beside
async def test_two_processes_swap_a_partition_under_load_and_what_is_seen_behind_the_fence_is_all(broker: Any) -> None:
    async with app_on(broker) as app:
        zealots = [Zealot(await app.owner()) for _ in range(2)]
        sending = [asyncio.create_task(zealot.send_for_ever()) for zealot in zealots]
        behind: list[list[str]] = []
        for turn in range(20):
            zealot = zealots[turn % 2]
            zealot.looks, zealot.turn = True, turn
            await zealot.owner.fences.take([0])
            behind.append(await app.values())
            zealot.looks = False
            await zealot.hears(5)
        for task in sending:
            task.cancel()
        for zealot in zealots:
            await zealot.owner.fences.stop()
            await zealot.owner.writer.stop()
        found = await app.values()
        assert max(Counter(found).values()) == 1
        for turn, seen in enumerate(behind):
            assert found[: len(seen)] == seen
            assert {int(value.split(".")[0]) for value in found[len(seen) :]} == set(range(turn, 20))
        assert sum(zealot.acknowledged for zealot in zealots) == len(found)


@pytest.mark.beside
async def test_what_is_not_known_to_be_written_ends_the_ownership_and_the_shared_producer_goes_on(broker: Any) -> None:
    async with app_on(broker) as app:
        owner = await app.owner()
        await owner.fences.take([0, 1])
        assert not (await owner.writer.send(At(owner.topics[0], 0), one("plain"))).error
        assert not (await owner.send("a")).error
        owner.fences._fences[0].sequences[At(owner.topics[0], 0)] += 1  # as after a batch that the broker refused
        acks = await asyncio.gather(owner.send("x"), owner.send("b", number=1), owner.send("y"))
        assert [bool(ack.error) for ack in acks] == [True, False, True]
        assert owner.lost == [(0, False)]
        plain = await owner.writer.send(At(owner.topics[0], 0), one("plain"))  # no fence: the producer's own sequence
        assert not plain.error
        await owner.fences.take([0])
        assert not (await owner.send("c")).error
        assert await app.values() == ["plain", "a", "plain", "c"]
        assert await app.values(number=1) == ["b"]


@pytest.mark.beside
async def test_what_a_gone_ownership_hears_does_not_end_the_present_one(broker: Any) -> None:
    async with app_on(broker) as app:
        owner = await app.owner()
        await owner.fences.take([0])
        waiting = [owner.send(f"a{i}") for i in range(50)]
        await owner.fences.take([0])
        assert not (await owner.send("b")).error
        await asyncio.wait(waiting)
        assert owner.lost == []
        written = [f"a{i}" for i, ack in enumerate(waiting) if not ack.result().error]
        assert await app.values() == [*written, "b"]


@pytest.mark.beside
async def test_an_id_is_used_again_before_the_broker_forgets_it(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app_on(broker) as app:
        owner, other = await app.owner(), await app.owner()
        await owner.fences.take([0])
        assert not (await owner.send("a")).error
        monkeypatch.setattr(fencing, "REFRESH_S", 0.0)
        sending = [owner.send(f"b{i}") for i in range(20)]
        await owner.fences.refresh()
        assert not any(ack.error for ack in await asyncio.gather(*sending))
        assert not (await owner.send("c")).error  # the sequence goes on behind the marker
        await other.fences.take([0])
        await owner.fences.refresh()
        assert owner.lost == [(0, True)]


@pytest.mark.beside
def test_a_broker_that_does_not_allow_it_is_asked_by_check_and_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    guarded = BrokerOptions(
        state_dir=tmp_path / "broker",
        extra={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    monkeypatch.chdir(tmp_path)
    with OwnBroker(guarded) as own:
        deny("denied.", own.bootstrap_servers)
        for name, code in (("denied", 4), ("allowed", 5)):  # 5: its topics were not made
            Path("app.toml").write_text(CONFIG.format(app=name, servers=own.bootstrap_servers))
            with pytest.raises(SystemExit) as left:
                run(["check", "app.toml"])
            assert left.value.code == code
            out = capfd.readouterr().out
            assert ("TransactionalId with the prefix denied." in out) == (name == "denied")
        asyncio.run(starts_not(own.bootstrap_servers))


async def starts_not(servers: str) -> None:
    fences = Owner(servers, "denied").fences
    with pytest.raises(BrokerError, match=r'delivery = "exactly_once" needs the permission WRITE on it'):
        await fences.start()
    await fences.stop()


def deny(prefix: str, servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    rule = AclBinding(
        ResourceType.TRANSACTIONAL_ID,
        prefix,
        ResourcePatternType.PREFIXED,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for made in admin.create_acls([rule]).values():
        made.result(WAIT_S)


@pytest.mark.beside
async def test_fences_that_cannot_be_had_are_said_in_words() -> None:
    transactions = Transactions({"bootstrap_servers": "127.0.0.1:1"}, "a")
    with pytest.raises(BrokerError, match="no Kafka broker answers at"):
        await transactions.start()
    await transactions.stop()
