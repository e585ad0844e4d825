"""Redrives on a log in memory: what is put back and how, and that a crash loses and doubles nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.client import redrive as module
from streamserve.client.dead_letters import Filter, Marks
from streamserve.client.letter_words import lines, result_line, result_plain
from streamserve.client.redrive import SETTLED_MS, Result, Unsure, plan
from streamserve.client.targets import RouteHint
from streamserve.errors import BrokerError, ContractError
from streamserve.kafka.codecs.dead_letters import Source
from streamserve.kafka.codecs.redrives import RedriveMark
from streamserve.kafka.ports import Ack, At, RecordColumns
from streamserve.testing.log import MemoryLog, MemoryWriter
from tests.client.conftest import APP, FEEDBACK, REQUESTS
from tests.client.lettered import DLQ, Lettered
from tests.effort import examples


def fates(results: list[Result]) -> list[tuple[str, str]]:
    return [(result.letter.place, result.fate) for result in results]


async def test_a_record_comes_back_as_it_was_where_it_was() -> None:
    app = Lettered()
    app.letter(b'{"id":"a"}', ("ss-route", b"r"), ("ss-deadline-ms", b"50"), ("n", None), at=(2, 7), key=None)
    app.letter(b'{"id":"a","label":1}', ("ss-ref", b"2-7"), source="feedback", at=(1, 3))
    results = await app.redrive()
    assert [(result.fate, result.to, result.ref) for result in results] == [
        ("redriven", At(FEEDBACK, 1), "1-0"),
        ("redriven", At(REQUESTS, 2), "2-0"),
    ]
    ((partition, record),) = app.records(REQUESTS)
    assert (partition, record.key, record.value) == (2, None, b'{"id":"a"}')
    assert record.headers == (
        ("ss-route", b"r"),
        ("ss-deadline-ms", b"50"),
        ("n", None),
        ("ss-redriven", b"1"),
        ("ss-redriven-from", b"2-7"),
    )
    ((partition, record),) = app.records(FEEDBACK)
    assert (partition, record.key, record.value) == (1, b"k", b'{"id":"a","label":1}')
    assert record.headers == (("ss-ref", b"2-7"), ("ss-redriven", b"1"), ("ss-redriven-from", b"1-3"))


@pytest.mark.parametrize(
    ("value", "headers", "expected"),
    [
        (b'{"id":"a"}', (), None),
        (b'{"id":7}', (), None),
        (b"[1,2]", (("ce_id", b"event"),), b"event"),
        (b'{"id":"a"}', (("ce_id", b"event"),), b"event"),
        (b"[1,2]", (), b"0-4"),
        (b'{"id":', (), b"0-4"),
        (b'{"id":{}}', (), b"0-4"),
        (b'{"inputs":[]}', (("ce_id", b""),), b"0-4"),
        (b"", (), b"0-4"),
    ],
)
async def test_what_has_no_id_keeps_its_ref_as_ce_id(
    value: bytes, headers: tuple[tuple[str, bytes], ...], expected: bytes | None
) -> None:
    app = Lettered()
    app.letter(value, *headers, at=(0, 4))
    (result,) = await app.redrive()
    assert dict(app.records(REQUESTS)[0][1].headers).get("ce_id") == expected
    assert ("its ref 0-4 is kept as ce_id" in result_line(result)) == (expected == b"0-4")


async def test_a_text_that_looks_like_json_has_no_id() -> None:
    app = Lettered()
    app.letter(b'{"id":"a"}', at=(0, 4))
    _, (planned,) = await app.plan(routes={"words": RouteHint(deadline_ms=1, input="text")})
    assert planned.ce_id == "0-4"
    app.letter(b'{"id":"a"}', source="feedback", at=(1, 4))
    _, planned_too = await app.plan(
        Filter(sources=["feedback"]), routes={"words": RouteHint(deadline_ms=1, input="text")}
    )
    assert planned_too[0].ce_id is None


async def test_what_was_put_back_is_not_again_unless_asked() -> None:
    app = Lettered()
    app.letter(at=(0, 1))
    app.letter(at=(1, 2))
    assert fates(await app.redrive(Filter(partitions=[0]))) == [("0-0", "redriven")]
    assert lines(await app.survey(), (await app.survey()).letters, app.now_ms)[0].endswith("[redriven] it raised")
    _, planned = await app.plan()
    assert fates(planned) == [("0-0", "already redriven"), ("1-0", "to send")]
    await app.redrive()
    assert len(app.records(REQUESTS)) == 2
    assert fates(await app.redrive(again=True)) == [("0-0", "redriven"), ("1-0", "redriven")]
    assert [dict(record.headers)["ss-redriven"] for _, record in app.records(REQUESTS)] == [b"1", b"2", b"1", b"2"]


async def test_its_history_goes_on_when_it_fails_again() -> None:
    app = Lettered()
    app.letter(b"[]", at=(0, 4))
    await app.redrive()
    ((_, record),) = app.records(REQUESTS)
    app.letter(record.value, *record.headers, at=(0, record.offset))
    await app.redrive()
    assert app.records(REQUESTS)[1][1].headers == (
        ("ce_id", b"0-4"),
        ("ss-redriven", b"2"),
        ("ss-redriven-from", b"0-0"),
    )
    assert await app.places(ref="0-4") == ["0-0", "0-3"]


async def test_what_cannot_be_put_back_is_said() -> None:
    app = Lettered()
    app.letter(b"x" * 65_537, reason="too_large", at=(0, 1))
    app.letter(source="epochs", at=(0, 2))
    app.write(DLQ, 0, b"?", ("x", b"y"))
    _, planned = await app.plan()
    assert [result.fate for result in planned] == ["impossible"] * 3
    cut, state, foreign = (result_line(result) for result in planned)
    assert "only the first 64 KiB of its value are kept; send the whole one (SHA-256 " in cut
    assert "it came from digits.epochs.v1; only requests and feedback of this app are put back" in state
    assert "it does not say where it came from" in foreign
    assert result_plain(planned[0])["result"] == "impossible"
    (gone,) = plan(APP, (await app.survey(Filter(places={(0, 0)}))), {}, Unsure())
    assert "SHA-256" in gone.why
    app.letter(at=(0, 3))
    gone = plan(APP, await app.survey(Filter(places={(0, 3)})), {REQUESTS: 0}, Unsure())[0]
    assert f"there is no topic {REQUESTS}" in gone.why
    other = plan("other", await app.survey(Filter(places={(0, 3)})), {REQUESTS: 1}, Unsure())[0]
    assert f"it came from {REQUESTS}" in other.why


async def test_a_topic_with_fewer_partitions_takes_it_elsewhere() -> None:
    app = Lettered()
    app.letter(at=(2, 1))
    (planned,) = plan(APP, await app.survey(), {REQUESTS: 2}, Unsure())
    assert planned.to == At(REQUESTS, 0)


async def test_a_record_given_up_twice_is_put_back_once() -> None:
    app = Lettered()
    app.letter(at=(0, 4))
    app.letter(at=(0, 4))
    assert fates((await app.plan())[1]) == [("0-0", "to send"), ("0-1", "repeated")]
    await app.redrive(Filter(places={(0, 1)}))
    assert fates((await app.plan())[1]) == [("0-0", "already redriven"), ("0-1", "already redriven")]


async def test_a_limit_counts_what_is_sent_and_goes_on_from_there() -> None:
    app = Lettered()
    for offset in range(5):
        app.letter(at=(offset % 3, offset))
    for expected in (["0-0", "1-0"], ["2-0", "0-1"], ["1-1"]):
        results = await app.redrive(limit=2)
        assert sorted(result.letter.place for result in results) == sorted(expected)
    assert Counter(dict(r.headers)["ss-redriven-from"] for _, r in app.records(REQUESTS)) == Counter(
        [b"0-0", b"1-1", b"2-2", b"0-3", b"1-4"]
    )


async def test_who_was_quicker_after_the_plan_is_noticed() -> None:
    app = Lettered()
    app.letter(at=(0, 4))
    found, planned = await app.plan()
    await app.redrive()
    assert fates(await app.do(found, planned)) == [("0-0", "already redriven")]
    assert len(app.records(REQUESTS)) == 1


async def test_what_is_no_longer_kept_when_its_turn_comes() -> None:
    app = Lettered()
    app.letter(at=(0, 4))
    app.letter(at=(0, 5))
    found, planned = await app.plan()
    app.log.delete_before(At(DLQ, 0), 1)
    results = await app.do(found, planned)
    assert sorted(fates(results)) == [("0-0", "failed"), ("0-1", "redriven")]
    assert "it is no longer kept" in result_line(next(each for each in results if each.fate == "failed"))


async def test_a_refused_send_is_said_and_can_be_tried_again() -> None:
    app = Lettered()
    app.letter(b'{"id":"a"}', at=(0, 4))
    app.letter(b'{"id":"b"}', at=(0, 5))
    app.log.fail_next[REQUESTS] = 1
    results = await app.redrive()
    assert sorted(fates(results)) == [("0-0", "failed"), ("0-1", "redriven")]
    assert "failed: not put back: refused" in result_line(results[-1])
    assert "[its redrive has not ended]" in lines(await app.survey(), (await app.survey()).letters, 0)[0]
    assert fates(await app.redrive()) == [("0-0", "redriven")]
    assert [record.value for _, record in app.records(REQUESTS)] == [b'{"id":"b"}', b'{"id":"a"}']


async def test_without_its_mark_nothing_is_sent() -> None:
    app = Lettered()
    app.letter(at=(0, 4))
    app.log.fail_next[DLQ] = 1
    with pytest.raises(BrokerError, match=r"could not be written: refused. Nothing of its 1 records was put back"):
        await app.redrive()
    assert app.records(REQUESTS) == []


class Crashes(Exception):
    """The process ends here."""


class CrashingWriter(MemoryWriter):
    """Ends with its process at the n-th record: before it is appended, or when it is and nobody heard of it."""

    def __init__(self, log: MemoryLog, at: int, *, appends: bool) -> None:
        super().__init__(log)
        self._left, self._appends = at, appends

    def send(self, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        self._left -= 1
        if self._left < 0:
            if self._appends:
                super().send(at, records)
            raise Crashes
        return super().send(at, records)


async def crash_and_go_on(count: int, crashes: list[tuple[int, bool]], pause_ms: int) -> list[bytes | None]:
    """The origins of what stands in the requests topic after redrives that crash and one that does not."""
    app = Lettered()
    for offset in range(count):
        app.letter(at=(offset % 2, offset))
    for at, appends in crashes:
        found, planned = await app.plan()
        try:
            await app.do(found, planned, CrashingWriter(app.log, at, appends=appends))
        except Crashes:
            app.clock.advance(pause_ms)
            app.write(REQUESTS, 0, b"of somebody else")
    await app.redrive()
    _, left = await app.plan()
    assert {result.fate for result in left} <= {"already redriven"}
    headers = [dict(record.headers) for _, record in app.records(REQUESTS)]
    return [each["ss-redriven-from"] for each in headers if "ss-redriven-from" in each]


@settings(max_examples=examples(100))
@given(
    count=st.integers(0, 7),
    crashes=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4),
    batch=st.integers(1, 4),
    pause_ms=st.sampled_from([5_000, 2 * SETTLED_MS]),
)
def test_a_crash_anywhere_loses_and_doubles_nothing(
    count: int, crashes: list[tuple[int, bool]], batch: int, pause_ms: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_RECORDS", batch)
        origins = asyncio.run(crash_and_go_on(count, crashes, pause_ms))
    assert Counter(origins) == Counter(b"%d-%d" % (offset % 2, offset) for offset in range(count))


async def crashed() -> Lettered:
    """One dead letter, put back by a redrive that was stopped before it could say so."""
    app = Lettered()
    app.letter(at=(0, 4))
    found, planned = await app.plan()
    with pytest.raises(Crashes):
        await app.do(found, planned, CrashingWriter(app.log, 2, appends=False))
    assert len(app.records(REQUESTS)) == 1
    return app


async def test_what_is_found_to_be_put_back_is_written_down() -> None:
    app = await crashed()
    assert fates((await app.plan())[1]) == [("0-0", "already redriven")]
    app.log.delete_before(At(REQUESTS, 0), 1)  # from now on the source topic tells no more
    assert fates((await app.plan())[1]) == [("0-0", "already redriven")]


async def test_where_the_source_no_longer_tells_a_person_decides() -> None:
    app = await crashed()
    app.log.delete_before(At(REQUESTS, 0), 1)
    (planned,) = (await app.plan())[1]
    assert planned.fate == "impossible"
    assert "the source topic no longer tells whether it was put back; --again puts it back all the same" in planned.why
    assert fates(await app.redrive(again=True)) == [("0-0", "redriven")]


async def test_the_source_is_looked_through_for_a_while_only() -> None:
    app = Lettered()
    app.letter(at=(0, 4))
    found, planned = await app.plan()
    with pytest.raises(Crashes):
        await app.do(found, planned, CrashingWriter(app.log, 1, appends=False))
    app.clock.advance(SETTLED_MS)
    app.write(REQUESTS, 0, b"by somebody else", ("ss-redriven-from", b"0-4"))
    assert fates((await app.plan())[1]) == [("0-0", "to send")]


def test_what_two_redrives_left_open_is_looked_for_from_the_first_until_after_the_last() -> None:
    """They may have been at work at the same time."""
    source, at = Source(REQUESTS, 0, 4), At(REQUESTS, 0)
    marks = Marks()
    marks.add(RedriveMark(is_done=False, sources=(source,), since={at: 10}), 1000)
    marks.add(RedriveMark(is_done=False, sources=(source,), since={at: 12}), 2000)
    assert marks.open == {source: (2000, {at: 10})}
    marks.add(RedriveMark(is_done=True, sources=(source,)), 3000)
    assert (marks.open, marks.done[source]) == ({}, 1)


async def test_a_mark_that_cannot_be_read_stops_a_redrive() -> None:
    app = Lettered()
    app.letter(at=(0, 4))
    app.write(DLQ, 0, b'{"v":2}', ("ss-redrive", b"done"))
    with pytest.raises(ContractError, match=rf"{DLQ} 0-1: .* It may say that something was redriven already"):
        await app.plan()
