from __future__ import annotations

import pytest

from streamserve.topics import TOPICS, IllegalName, Kind, catalogue, spec_of

DAY_MS = 86_400_000


def test_every_kind_is_declared_once_and_named_after_the_app() -> None:
    topics = catalogue("digits", 4, 1)
    assert [topic.spec.kind for topic in topics] == list(Kind)
    assert [topic.name for topic in topics] == [f"digits.{kind}.v1" for kind in Kind]


def test_all_topics_of_an_app_have_the_same_layout_and_the_brokers_time() -> None:
    topics = catalogue("digits", 7, 3)
    assert {(topic.partitions, topic.replication) for topic in topics} == {(7, 3)}
    assert {topic.configs()["message.timestamp.type"] for topic in topics} == {"LogAppendTime"}


@pytest.mark.parametrize(("replication", "min_insync"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_one_broker_may_be_down_where_there_are_more(replication: int, min_insync: int) -> None:
    assert {topic.configs()["min.insync.replicas"] for topic in catalogue("a", 1, replication)} == {str(min_insync)}


def test_requests_take_4_mib_and_the_others_8() -> None:
    sizes = {topic.spec.kind: int(topic.configs()["max.message.bytes"]) for topic in catalogue("a", 1, 1)}
    assert sizes.pop(Kind.REQUESTS) == 4 << 20
    assert set(sizes.values()) == {8 << 20}


def test_a_compacted_topic_is_compacted_soon_and_has_no_retention_but_that_of_insights() -> None:
    compacted = {topic.spec.kind: topic for topic in catalogue("a", 1, 1) if "compact" in topic.spec.cleanup}
    assert set(compacted) == {Kind.POLICY, Kind.CONTEXTS, Kind.MODELS, Kind.INSIGHTS}
    for kind, topic in compacted.items():
        assert ("retention.ms" in topic.configs()) == (kind is Kind.INSIGHTS)
        assert int(topic.tuning()["segment.bytes"]) > topic.spec.max_message_bytes
        assert topic.spec.key  # Kafka refuses a record without a key in a compacted topic


@pytest.mark.parametrize("join_window_ms", [1_000, 600_000, 30 * DAY_MS, 90 * DAY_MS])
def test_what_the_join_reads_is_kept_for_its_window_and_an_outage(join_window_ms: int) -> None:
    topics = {topic.spec.kind: topic for topic in catalogue("a", 1, 1, join_window_ms=join_window_ms)}
    for kind in (Kind.ANSWERS, Kind.PREDICTIONS, Kind.FEEDBACK):
        kept = int(topics[kind].configs()["retention.ms"])
        assert kept >= join_window_ms + 3 * DAY_MS
        assert kept >= (spec_of(kind).retention_ms or 0)


def test_learnt_states_are_kept_as_long_as_the_requests_they_decide_on() -> None:
    assert spec_of(Kind.EPOCHS).retention_ms == spec_of(Kind.REQUESTS).retention_ms


def test_every_topic_has_a_writer_and_a_reader() -> None:
    assert all(spec.written_by and spec.read_by and spec.purpose for spec in TOPICS)


def test_topics_are_written_and_read_by_what_exists() -> None:
    named = {name for spec in TOPICS for name in (*spec.written_by, *spec.read_by)}
    commands = {"the command `learn-head`", "the commands `models` and `learn-head`"}
    assert named == {"anyone", "worker", "worker (fused)", "aggregator", "join", "update", "insights", *commands}


@pytest.mark.parametrize(("partitions", "replication"), [(0, 1), (1, 0), (-4, 1)])
def test_a_layout_that_cannot_be_is_refused(partitions: int, replication: int) -> None:
    with pytest.raises(ValueError, match="allowed are 1 and more"):
        catalogue("digits", partitions, replication)


def test_an_app_that_cannot_be_in_a_topics_name_is_refused() -> None:
    with pytest.raises(IllegalName, match="My_App"):
        catalogue("My_App", 1, 1)
