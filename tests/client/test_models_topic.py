"""Who is a member of a pool, by what the models topic says alone."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from streamserve.client.models_topic import ModelsTopic, read_models_topic
from streamserve.client.scanning import scanning
from streamserve.kafka.codecs.hosts import LEASE_MS, SAY_EVERY_MS, encode_hosts
from streamserve.kafka.ports import At, Columns, Record
from streamserve.testing.log import ManualClock, MemoryLog
from streamserve.topics import Kind, topic_name
from tests.client.conftest import APP, PARTITIONS, MemoryApp

MODELS = topic_name(APP, Kind.MODELS)
PLACES = [At(MODELS, number) for number in range(PARTITIONS)]
NAMES = ("p/0", "p/1", "q/0")
SAYS, SAYS_WITHOUT_LEASE, LEAVES, WAITS = "says", "says without lease", "leaves", "waits"


def record_of(name: str, what: str) -> Record:
    pool, _, instance = name.partition("/")
    hosts = encode_hosts(pool, instance, ["a@1"], lease_ms=LEASE_MS if what == SAYS else 0)
    return Record(key=hosts.key, value=None) if what == LEAVES else hosts


def read(log: MemoryLog) -> ModelsTopic:
    async def run() -> ModelsTopic:
        async with scanning(MemoryApp(log)) as scanner:
            return await read_models_topic(scanner, PLACES)

    return asyncio.run(run())


steps = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from([SAYS, SAYS, SAYS_WITHOUT_LEASE, LEAVES, WAITS]),
    st.sampled_from([0, 1, SAY_EVERY_MS, LEASE_MS, LEASE_MS + 1]),
)


@given(st.lists(steps, max_size=15), st.integers(0, 2 * LEASE_MS))
def test_a_member_is_who_has_not_left_and_was_heard_of_within_its_lease(
    history: list[tuple[str, str, int]], later_ms: int
) -> None:
    clock = ManualClock()
    log = MemoryLog({MODELS: PARTITIONS}, epoch=clock.epoch)
    newest: dict[str, tuple[str, int]] = {}
    for name, what, gap_ms in history:
        clock.advance(gap_ms)
        if what == WAITS:
            continue
        newest[name] = (
            what,
            log.append(PLACES[NAMES.index(name) % PARTITIONS], Columns.of([record_of(name, what)])).append_ms,
        )
    topic = read(log)
    now_ms = topic.newest_ms + later_ms  # the broker's time, as somebody has heard it
    there = {
        name
        for name, (what, said_ms) in newest.items()
        if what == SAYS_WITHOUT_LEASE or (what == SAYS and said_ms + LEASE_MS >= now_ms)
    }
    assert set(topic.members(now_ms)) == there
    assert set(topic.members(now_ms)) | set(topic.gone(now_ms)) == set(topic.said)
    assert set(topic.members(now_ms)) <= set(topic.members())  # who knows less of the time takes nobody for gone


def test_who_says_it_as_often_as_workers_do_may_fail_twice_in_a_row() -> None:
    assert 3 * SAY_EVERY_MS <= LEASE_MS
