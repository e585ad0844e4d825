"""Topics on a real broker: made, compared, mended."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from typer.testing import CliRunner, Result

from streamserve.cli.topics import app as cli
from streamserve.errors import BrokerError, TopicsDiffer
from streamserve.kafka import admin
from streamserve.testing.broker_fixture import BrokerForTests
from streamserve.topics import Topic, catalogue
from streamserve.topics.comparison import Difference
from tests.kafka.brokers.recorded import running

pytestmark = pytest.mark.beside

CONFIG = """
[app]
name = "{app}"
partitions = {partitions}

[pools.main]
models = ["linear"]

[models.linear]
version = "1"
source = "workers.digits_linear:model"

[routes.digits]
models = ["linear"]
policy = {{ name = "static" }}
combine = "vote"
deadline_ms = 100
"""


@pytest.fixture
def app() -> str:
    return f"admin-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topics(app: str) -> tuple[Topic, ...]:
    return catalogue(app, 2, 1)


def plan(broker: BrokerForTests, topics: tuple[Topic, ...], **options: bool) -> tuple[Difference, ...]:
    return asyncio.run(admin.plan(broker.bootstrap_servers, topics, {}, **options))


def create(broker: BrokerForTests, topics: tuple[Topic, ...], **options: bool) -> tuple[Difference, ...]:
    return asyncio.run(admin.create(broker.bootstrap_servers, topics, {}, **options))


def make_by_hand(broker: BrokerForTests, topic: Topic, *, partitions: int | None = None, **configs: str) -> None:
    """A topic as somebody else would make it (`cleanup_policy="compact"` for `cleanup.policy`), once it shows."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    layout = NewTopic(topic.name, partitions or topic.partitions, 1, config=settings)
    client.create_topics([layout])[topic.name].result(10)
    give_up = time.monotonic() + 10
    while "missing" in {difference.what for difference in plan(broker, (topic,))}:
        assert time.monotonic() < give_up


def settings_of(broker: BrokerForTests, name: str) -> dict[str, str]:
    """A topic's settings as a foreign client sees them."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, name)
    return {entry.name: entry.value for entry in client.describe_configs([resource])[resource].result(10).values()}


def set_by_hand(broker: BrokerForTests, name: str, setting: str, value: str) -> None:
    """Alter a topic with a foreign client, and wait until the broker shows it."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(10)
    give_up = time.monotonic() + 10
    while settings_of(broker, name)[setting] != value:
        assert time.monotonic() < give_up


@pytest.mark.broker
def test_what_create_makes_is_as_declared_and_foreign_clients_see_it(
    broker: BrokerForTests, topics: tuple[Topic, ...]
) -> None:
    assert [difference.what for difference in plan(broker, topics)] == ["missing"] * len(topics)
    assert [difference.topic for difference in create(broker, topics)] == [topic.name for topic in topics]
    assert plan(broker, topics) == ()
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10)
    for topic in topics:
        assert len(metadata.topics[topic.name].partitions) == topic.partitions
        wanted = topic.configs() | topic.tuning()
        assert wanted.items() <= settings_of(broker, topic.name).items()


@pytest.mark.broker
def test_creating_again_changes_nothing(broker: BrokerForTests, topics: tuple[Topic, ...]) -> None:
    create(broker, topics)
    assert create(broker, topics) == ()


@pytest.mark.broker
def test_two_processes_may_create_at_the_same_time(broker: BrokerForTests, topics: tuple[Topic, ...]) -> None:
    async def both() -> None:
        ask = [admin.create(broker.bootstrap_servers, topics, {}) for _ in range(3)]
        await asyncio.gather(*ask)

    asyncio.run(both())
    assert plan(broker, topics) == ()


@pytest.mark.broker
def test_asking_creates_nothing(broker: BrokerForTests, topics: tuple[Topic, ...]) -> None:
    plan(broker, topics)
    with pytest.raises(TopicsDiffer):
        asyncio.run(admin.verify(broker.bootstrap_servers, topics, {}))
    names = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics
    assert not {topic.name for topic in topics} & set(names)


@pytest.mark.broker
def test_settings_that_differ_are_set_and_others_are_left_alone(
    broker: BrokerForTests, topics: tuple[Topic, ...]
) -> None:
    requests, answers = topics[0], topics[1]
    make_by_hand(
        broker,
        requests,
        cleanup_policy="compact",
        message_timestamp_type="CreateTime",
        retention_ms="1000",
        max_message_bytes="1000000",
        segment_bytes="33554432",
    )
    make_by_hand(broker, answers, message_timestamp_type="LogAppendTime", max_message_bytes="9000000")
    found = [difference for difference in plan(broker, topics) if difference.what != "missing"]
    assert {(difference.topic, difference.what, difference.found) for difference in found} == {
        (requests.name, "cleanup.policy", "compact"),
        (requests.name, "message.timestamp.type", "CreateTime"),
        (requests.name, "retention.ms", "1000"),
        (requests.name, "max.message.bytes", "1000000"),
    }
    create(broker, topics)
    assert plan(broker, topics) == ()
    settings = settings_of(broker, requests.name)
    assert requests.configs().items() <= settings.items()
    assert settings["segment.bytes"] == "33554432"  # not ours: an AlterConfigs would have set it back
    assert settings_of(broker, answers.name)["max.message.bytes"] == "9000000"


@pytest.mark.broker
@pytest.mark.parametrize("partitions", [1, 3])
def test_another_number_of_partitions_is_refused_and_nothing_is_changed(
    broker: BrokerForTests, topics: tuple[Topic, ...], partitions: int
) -> None:
    make_by_hand(broker, topics[2], partitions=partitions)
    before = plan(broker, topics)
    with pytest.raises(TopicsDiffer, match=f"partitions is {partitions}, declared is 2") as refused:
        create(broker, topics)
    assert "nothing was changed" in str(refused.value)
    assert f"[app] partitions = {partitions}" in str(refused.value)
    assert plan(broker, topics) == before


@pytest.mark.broker
def test_a_topic_that_another_process_made_differently_meanwhile_is_said_at_once(
    broker: BrokerForTests, topics: tuple[Topic, ...]
) -> None:
    make_by_hand(broker, topics[0], partitions=5)

    async def create_unaware() -> None:
        async with admin._client(broker.bootstrap_servers, {}) as client:
            await admin._create(client, topics)
            await admin._shown(client, topics, False)

    with pytest.raises(TopicsDiffer, match="partitions is 5, declared is 2"):
        asyncio.run(create_unaware())


@pytest.mark.broker
def test_verify_names_each_difference_and_the_command(broker: BrokerForTests, topics: tuple[Topic, ...]) -> None:
    create(broker, topics)
    asyncio.run(admin.verify(broker.bootstrap_servers, topics, {}))
    set_by_hand(broker, topics[0].name, "message.timestamp.type", "CreateTime")
    set_by_hand(broker, topics[6].name, "cleanup.policy", "delete")
    more = (*topics, replace(topics[0], name=f"{topics[0].name}.more"))
    with pytest.raises(TopicsDiffer) as refused:
        asyncio.run(admin.verify(broker.bootstrap_servers, more, {}, config="digits.toml"))
    words = str(refused.value)
    assert f"{topics[0].name}: message.timestamp.type is CreateTime, declared is LogAppendTime" in words
    assert f"{topics[6].name}: cleanup.policy is delete, declared is compact" in words
    assert f"{topics[0].name}.more: missing" in words
    assert words.endswith("streamserve topics create digits.toml")


@pytest.mark.broker
def test_only_the_requests_topic_may_have_its_producers_times(
    broker: BrokerForTests, topics: tuple[Topic, ...]
) -> None:
    create(broker, topics)
    set_by_hand(broker, topics[0].name, "message.timestamp.type", "CreateTime")
    set_by_hand(broker, topics[3].name, "message.timestamp.type", "CreateTime")
    assert [d.topic for d in plan(broker, topics, allow_create_time=True)] == [topics[3].name]
    create(broker, topics, allow_create_time=True)
    assert settings_of(broker, topics[0].name)["message.timestamp.type"] == "CreateTime"


@pytest.mark.broker
def test_a_replication_that_the_cluster_cannot_give_is_said_in_words(broker: BrokerForTests, app: str) -> None:
    with pytest.raises(BrokerError, match="refused to create") as refused:
        create(broker, catalogue(app, 1, 5))
    assert "InvalidReplicationFactor" in str(refused.value)


def test_a_broker_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else can answer here
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerError, match=f"no Kafka broker answers at {address}") as refused:
            asyncio.run(admin.plan(address, catalogue("digits", 1, 1), {}))
        assert "AddressFamily" not in str(refused.value)


class TestCommand:
    @pytest.fixture
    def config(self, tmp_path: Path, app: str) -> Path:
        path = tmp_path / "digits.toml"
        path.write_text(CONFIG.format(app=app, partitions=2))
        return path

    def run(self, command: str, config: Path, *more: str) -> Result:
        return CliRunner().invoke(cli, [command, str(config), *more])

    def test_without_a_broker_it_says_how_to_name_one(
        self, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path / "state"))
        result = self.run("plan", config)
        assert isinstance(result.exception, BrokerError)
        assert "--bootstrap-servers" in str(result.exception)

    @pytest.mark.broker
    def test_our_own_broker_is_found_where_none_is_named(
        self, broker: BrokerForTests, config: Path, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path / "state"))
        running(tmp_path / "state" / app / "broker", broker.bootstrap_servers)
        assert self.run("plan", config).exit_code == TopicsDiffer.exit_code
        for command in ("create", "check", "plan"):
            assert self.run(command, config).exit_code == 0

    @pytest.mark.broker
    def test_plan_create_check(self, broker: BrokerForTests, config: Path, app: str) -> None:
        there = ("--bootstrap-servers", broker.bootstrap_servers)
        planned = self.run("plan", config, *there)
        assert planned.exit_code == TopicsDiffer.exit_code
        assert f"create   {app}.requests.v1: missing" in planned.stdout
        refused = self.run("check", config, *there)
        assert isinstance(refused.exception, TopicsDiffer)
        assert f"streamserve topics create {config}" in str(refused.exception)

        created = self.run("create", config, *there)
        assert created.exit_code == 0
        assert f"created  {app}.requests.v1 (2 partitions)" in created.stdout
        assert self.run("plan", config, *there).exit_code == 0
        assert "as declared" in self.run("check", config, *there).stdout

    @pytest.mark.broker
    def test_json_is_one_object_on_one_line(self, broker: BrokerForTests, config: Path, app: str) -> None:
        there = ("--bootstrap-servers", broker.bootstrap_servers, "--json")
        checked = self.run("check", config, *there)
        assert checked.exit_code == TopicsDiffer.exit_code
        differences = json.loads(checked.stdout)["differences"]
        assert differences[0] == {
            "topic": f"{app}.requests.v1",
            "what": "missing",
            "declared": "2 partitions",
            "found": "nothing",
            "repair": "create",
            "advice": "",
        }
        created = json.loads(self.run("create", config, *there).stdout)
        assert created["topics"]["requests"] == f"{app}.requests.v1"
        assert created["mended"] == differences
        planned = self.run("plan", config, *there)
        assert planned.exit_code == 0
        assert json.loads(planned.stdout)["differences"] == []
        assert planned.stdout.count("\n") == 1
