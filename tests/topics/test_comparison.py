from __future__ import annotations

from dataclasses import replace

import pytest

from streamserve.topics import Kind, Topic, catalogue
from streamserve.topics.comparison import FoundTopic, Repair, differences, listed

TOPICS = catalogue("digits", 4, 3)
REQUESTS = "digits.requests.v1"
POLICY = "digits.policy.v1"


def as_declared(topics: tuple[Topic, ...] = TOPICS) -> dict[str, FoundTopic]:
    return {
        topic.name: FoundTopic(
            partitions=topic.partitions,
            replication=topic.replication,
            configs=topic.configs() | {"retention.ms": topic.configs().get("retention.ms", "604800000"), "x": "y"},
        )
        for topic in topics
    }


def with_config(name: str, setting: str, value: str) -> dict[str, FoundTopic]:
    found = as_declared()
    found[name] = replace(found[name], configs={**found[name].configs, setting: value})
    return found


def test_a_broker_as_declared_has_no_differences() -> None:
    assert differences(TOPICS, as_declared()) == ()


def test_an_empty_broker_misses_every_topic_in_order() -> None:
    found = differences(TOPICS, {})
    assert [(d.topic, d.what, d.repair) for d in found] == [(t.name, "missing", Repair.CREATE) for t in TOPICS]
    assert str(found[0]) == f"{REQUESTS}: missing"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "delete,compact"),
        ("message.timestamp.type", "CreateTime"),
        ("retention.ms", "604799999"),
        ("max.message.bytes", "1048588"),
        ("min.insync.replicas", "1"),
        ("min.insync.replicas", "4"),  # more than there are replicas: refuses every record
        ("retention.ms", ""),
    ],
)
def test_a_setting_that_breaks_a_promise_is_a_difference_and_can_be_altered(setting: str, value: str) -> None:
    (difference,) = differences(TOPICS, with_config(REQUESTS, setting, value))
    assert (difference.topic, difference.what, difference.found) == (REQUESTS, setting, value)
    assert difference.repair is Repair.ALTER
    declared = {topic.name: topic.configs()[setting] for topic in TOPICS if setting in topic.configs()}
    assert str(difference) == f"{REQUESTS}: {setting} is {value}, declared is {declared[REQUESTS]}"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", "604800001"),
        ("max.message.bytes", "20000000"),
        ("min.insync.replicas", "3"),
        ("segment.bytes", "1073741824"),
    ],
)
def test_a_more_generous_broker_is_no_difference(setting: str, value: str) -> None:
    assert differences(TOPICS, with_config(REQUESTS, setting, value)) == ()


def test_a_setting_that_the_broker_does_not_tell_is_a_difference() -> None:
    found = as_declared()
    configs = {name: value for name, value in found[POLICY].configs.items() if name != "cleanup.policy"}
    found[POLICY] = replace(found[POLICY], configs=configs)
    assert [(d.what, d.found) for d in differences(TOPICS, found)] == [("cleanup.policy", "unknown")]


def test_only_requests_may_carry_their_producers_times_and_only_where_allowed() -> None:
    create_time = with_config(REQUESTS, "message.timestamp.type", "CreateTime")
    assert differences(TOPICS, create_time, allow_create_time=True) == ()
    assert len(differences(TOPICS, create_time)) == 1
    elsewhere = with_config("digits.answers.v1", "message.timestamp.type", "CreateTime")
    assert [d.topic for d in differences(TOPICS, elsewhere, allow_create_time=True)] == ["digits.answers.v1"]


@pytest.mark.parametrize(
    ("partitions", "words"),
    [(8, "Kafka cannot take partitions away: set `[app] partitions = 8`"), (2, "Adding partitions moves keys")],
)
def test_another_number_of_partitions_is_for_a_person_to_mend(partitions: int, words: str) -> None:
    found = as_declared()
    found[REQUESTS] = replace(found[REQUESTS], partitions=partitions)
    (difference,) = differences(TOPICS, found)
    assert difference.repair is Repair.BY_HAND
    assert str(difference) == f"{REQUESTS}: partitions is {partitions}, declared is 4"
    assert difference.advice.startswith(words)
    assert difference.advice.endswith("or give the app a new name.")  # where the other topics are as declared


def test_fewer_replicas_are_for_a_person_to_mend_and_more_are_welcome() -> None:
    found = as_declared()
    found[REQUESTS] = replace(found[REQUESTS], replication=5)
    assert differences(TOPICS, found) == ()
    found[REQUESTS] = replace(found[REQUESTS], replication=2)
    (difference,) = differences(TOPICS, found)
    assert (difference.what, difference.repair) == ("replication", Repair.BY_HAND)
    assert "kafka-reassign-partitions" in difference.advice


def test_advice_that_holds_for_many_is_given_once() -> None:
    found = {name: replace(topic, partitions=2) for name, topic in as_declared().items()}
    lines = listed(differences(TOPICS, found))
    assert len(lines) == len(TOPICS) + 1
    assert lines[-1].startswith("Adding partitions moves keys")


def test_every_kind_is_compared() -> None:
    for kind in Kind:
        name = f"digits.{kind}.v1"
        found = as_declared()
        del found[name]
        assert [d.topic for d in differences(TOPICS, found)] == [name]
