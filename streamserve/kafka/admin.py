"""Topics on a broker: planned, created and verified from their declarations.

Nothing here makes a topic larger, smaller or emptier: what is missing is created, settings that differ are set one by
one, anything else is refused with words.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

from streamserve.errors import BrokerError, TopicsDiffer
from streamserve.kafka.clients import no_answer
from streamserve.settings import Settings
from streamserve.topics.catalogue import Topic, catalogue
from streamserve.topics.comparison import Difference, FoundTopic, Repair, differences, listed

ClientOptions = Mapping[str, Any]
"""Keyword arguments of an aiokafka client but its address: see `security.connection_options`."""

REQUEST_TIMEOUT_MS = 15_000
#: A broker learns of a new topic some milliseconds after the controller has acknowledged it.
SETTLE_MS = 10_000
_LOOK_AGAIN_MS = 50
_SET = 0
_REPLICATION = 3
_CLOSE_S = 3.0


class _AlterResponse(Response):  # type: ignore[misc]
    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
            ),
        ),
    )


class _AlterStruct(RequestStruct):  # type: ignore[misc]
    """IncrementalAlterConfigs v0 (KIP-339).

    aiokafka has AlterConfigs only, which sets back to its default whatever one does not repeat.
    """

    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = _AlterResponse
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                (
                    "configs",
                    Array(("name", String("utf-8")), ("config_operation", Int8), ("value", String("utf-8"))),
                ),
            ),
        ),
        ("validate_only", Boolean),
    )


class _Alter(Request[_AlterStruct]):  # type: ignore[misc]
    API_KEY = 44

    def __init__(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        self._settings = settings

    def build(self, request_struct_class: type[_AlterStruct]) -> _AlterStruct:
        resources = [
            (int(ConfigResourceType.TOPIC), topic, [(name, _SET, value) for name, value in configs.items()])
            for topic, configs in self._settings.items()
        ]
        return request_struct_class(resources, False)


async def plan(
    bootstrap_servers: str, topics: Sequence[Topic], client_options: ClientOptions, *, allow_create_time: bool = False
) -> tuple[Difference, ...]:
    """How the broker differs from `topics`; changes nothing. Raises `BrokerError` where it cannot be asked."""
    async with _client(bootstrap_servers, client_options) as client:
        return differences(topics, await _found(client, topics), allow_create_time=allow_create_time)


async def create(
    bootstrap_servers: str, topics: Sequence[Topic], client_options: ClientOptions, *, allow_create_time: bool = False
) -> tuple[Difference, ...]:
    """Create what is missing, set what can be set in place; return what was mended, once the broker shows it.

    Raises `TopicsDiffer`, having changed nothing, where something cannot be mended so; `BrokerError` where the broker
    cannot be asked or refuses.
    """
    async with _client(bootstrap_servers, client_options) as client:
        before = differences(topics, await _found(client, topics), allow_create_time=allow_create_time)
        by_hand = [difference for difference in before if difference.repair is Repair.BY_HAND]
        if by_hand:
            raise TopicsDiffer(_listing("topics cannot be mended in place; nothing was changed:", by_hand))
        missing = {difference.topic for difference in before if difference.repair is Repair.CREATE}
        await _create(client, [topic for topic in topics if topic.name in missing])
        await _alter(client, [difference for difference in before if difference.repair is Repair.ALTER])
        await _shown(client, topics, allow_create_time)
        return before


async def verify(
    bootstrap_servers: str,
    topics: Sequence[Topic],
    client_options: ClientOptions,
    *,
    allow_create_time: bool = False,
    config: str = "CONFIG",
) -> None:
    """Raise `TopicsDiffer`, naming every difference and what mends it, unless the broker is as declared.

    `config`: the config's path, as it stands in the command that the message names.
    """
    found = await plan(bootstrap_servers, topics, client_options, allow_create_time=allow_create_time)
    if found:
        raise TopicsDiffer(explain(found, bootstrap_servers, config))


def explain(found: Sequence[Difference], bootstrap_servers: str, config: str) -> str:
    """The differences and what mends them, for a person."""
    words = _listing(f"the topics at {bootstrap_servers} are not as declared:", found)
    if all(difference.repair is Repair.BY_HAND for difference in found):
        return words
    return f"{words}\nTo mend this: streamserve topics create {config}"


async def declared_topics(
    settings: Settings, bootstrap_servers: str, client_options: ClientOptions
) -> tuple[Topic, ...]:
    """The topics of a config's app. Where it names no replication: 3 on three brokers and more, else 1.

    Raises `BrokerError` where the brokers must be counted and none answers.
    """
    app = settings.app
    replication = app.replication
    if replication is None:
        async with _client(bootstrap_servers, client_options) as client:
            count = len((await client.describe_cluster())["brokers"])
        replication = _REPLICATION if count >= _REPLICATION else 1
    return catalogue(app.name, app.partitions, replication, join_window_ms=settings.learn.join_window_ms)


async def members(
    bootstrap_servers: str, group: str, client_options: ClientOptions, *, but: str | None = None
) -> list[str] | None:
    """The members of a consumer group now, but one of this instance name: whoever joins under it takes its place.

    None where the group has no coordinator yet, as on a broker that has just started. Raises `BrokerError` where the
    broker cannot be asked.
    """
    async with _client(bootstrap_servers, client_options) as client:
        try:
            (answer,) = await client.describe_consumer_groups([group])
        except GroupCoordinatorNotAvailableError:
            return None
        (found,) = answer.to_object()["groups"]
        return sorted(
            f"{member['client_id']} at {member['client_host'].lstrip('/')}"
            for member in found["members"]
            if but is None or not member["member_id"].startswith(f"{but}-")  # KIP-345: so begins a static member's id
        )


def _listing(head: str, found: Sequence[Difference]) -> str:
    return "\n  ".join([head, *listed(found)])


@contextlib.asynccontextmanager
async def _client(bootstrap_servers: str, options: ClientOptions) -> AsyncIterator[AIOKafkaAdminClient]:
    """A started client; every trouble with the broker leaves as a `BrokerError` that names the address."""
    client = AIOKafkaAdminClient(
        bootstrap_servers=bootstrap_servers, request_timeout_ms=REQUEST_TIMEOUT_MS, **dict(options)
    )
    try:
        await client.start()
        yield client
    except KafkaConnectionError as error:
        raise no_answer(bootstrap_servers) from error
    except (KafkaError, TimeoutError) as error:
        raise BrokerError(f"the Kafka broker at {bootstrap_servers} did not do as asked: {error!r}") from error
    finally:
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(client.close(), _CLOSE_S)


async def _found(client: AIOKafkaAdminClient, topics: Sequence[Topic]) -> dict[str, FoundTopic]:
    # Not `describe_topics`: it lets a broker with auto.create.topics.enable create what it is asked about.
    names = [topic.name for topic in topics]
    metadata = await client._send_request(MetadataRequest(names, allow_auto_topic_creation=False))
    layouts = {}
    for entry in metadata.to_object()["topics"]:
        error = for_code(entry["error_code"])
        if error is UnknownTopicOrPartitionError:
            continue
        if not entry["partitions"]:
            raise error(f"topic {entry['topic']} cannot be described")
        replicas = [len(partition["replicas"]) for partition in entry["partitions"]]
        layouts[entry["topic"]] = (len(replicas), min(replicas))
    configs = await _configs(client, list(layouts))
    return {
        name: FoundTopic(partitions=partitions, replication=replication, configs=configs[name])
        for name, (partitions, replication) in layouts.items()
        if name in configs
    }


async def _configs(client: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    found: dict[str, dict[str, str]] = {}
    for response in await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names]):
        for code, words, _, name, entries in response.resources:
            error = for_code(code)
            if error is UnknownTopicOrPartitionError:  # deleted, or not yet known, between the two questions
                continue
            if code:
                raise error(f"settings of topic {name} cannot be read: {words}")
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def _create(client: AIOKafkaAdminClient, missing: Sequence[Topic]) -> None:
    if not missing:
        return
    response = await client.create_topics(
        [
            NewTopic(topic.name, topic.partitions, topic.replication, topic_configs=topic.configs() | topic.tuning())
            for topic in missing
        ]
    )
    for name, code, words in (entry[:3] for entry in response.topic_errors):
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:  # another process may create them at the same time
            raise BrokerError(f"the broker refused to create {name}: {error.__name__}: {words}")


async def _alter(client: AIOKafkaAdminClient, found: Sequence[Difference]) -> None:
    settings: dict[str, dict[str, str]] = {}
    for difference in found:
        settings.setdefault(difference.topic, {})[difference.what] = difference.declared
    if not settings:
        return
    try:
        response = await client._send_request(_Alter(settings))
    except (IncompatibleBrokerVersion, NotImplementedError) as error:
        raise BrokerError(
            _listing("the broker is older than Kafka 2.3 and cannot change single settings; set by hand:", found)
        ) from error
    for code, words, _, name in response.responses:
        if code:
            raise BrokerError(f"the broker refused to alter {name}: {for_code(code).__name__}: {words}")


async def _shown(client: AIOKafkaAdminClient, topics: Sequence[Topic], allow_create_time: bool) -> None:
    """Wait until the broker shows what was done."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + SETTLE_MS / 1000
    while left := differences(topics, await _found(client, topics), allow_create_time=allow_create_time):
        made_otherwise = any(difference.repair is Repair.BY_HAND for difference in left)
        if made_otherwise or loop.time() > give_up:
            raise TopicsDiffer(_listing("topics were created or altered by somebody else at the same time:", left))
        await asyncio.sleep(_LOOK_AGAIN_MS / 1000)
