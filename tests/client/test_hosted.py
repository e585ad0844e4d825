"""What pools say that they hold, read from a log in memory."""

from __future__ import annotations

import pytest

from streamserve.client.hosted import hosted_plans
from streamserve.errors import TopicsDiffer
from streamserve.kafka.codecs.hosts import LEASE_MS, encode_hosts
from streamserve.kafka.codecs.switches import encode_switch
from streamserve.kafka.ports import At, Columns, Record
from streamserve.testing.log import ManualClock, MemoryLog
from streamserve.topics import Kind, topic_name
from tests.client.conftest import APP, PARTITIONS, MemoryApp

MODELS = topic_name(APP, Kind.MODELS)
LARGE = 1 << 20


async def test_the_newest_word_of_each_process_counts() -> None:
    log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=ManualClock().epoch)
    first = encode_hosts("p", "0", ["a@1"], {"a@1": {"old": LARGE}})
    gone = encode_hosts("p", "1", ["c@1"], {"c@1": {"y": LARGE}})
    records = [
        (0, first),
        (1, encode_hosts("q", "0", ["b@1", "plain@1"], {"b@1": {"x": LARGE, "small": 8}})),
        (1, gone),
        (0, encode_switch("a@1", disabled=True)),
        (0, Record(key=b"p/9", value=b"{")),
        (0, encode_hosts("p", "0", ["a@2"], {"a@2": {"x": LARGE}})),
        (1, Record(key=gone.key, value=None)),
    ]
    for partition, record in records:
        log.append(At(MODELS, partition), Columns.of([record]))
    assert await hosted_plans(MemoryApp(log), APP) == {"a@2": {"x": LARGE}, "b@1": {"x": LARGE}}


async def test_a_process_that_is_gone_for_good_holds_nothing() -> None:
    clock = ManualClock()
    log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=clock.epoch)
    for instance, model in (("0", "a@1"), ("1", "b@1")):
        hosts = encode_hosts("p", instance, [model], {model: {model: LARGE}}, lease_ms=LEASE_MS)
        log.append(At(MODELS, 0), Columns.of([hosts]))
        clock.advance(LEASE_MS + 1)
    assert await hosted_plans(MemoryApp(log), APP) == {"b@1": {"b@1": LARGE}}


async def test_an_app_without_topics() -> None:
    with pytest.raises(TopicsDiffer, match="has never been started"):
        await hosted_plans(MemoryApp(MemoryLog({}, epoch=ManualClock().epoch)), APP)
