"""One request's story, found in a log in memory among the records of others."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest

from streamserve.client import UnusableInput
from streamserve.client import scanning as scanning_module
from streamserve.client.lines import dumps, line, plain
from streamserve.client.scanning import Scanner, scanning
from streamserve.client.story import tell
from streamserve.core.epochs import outcome_partition
from streamserve.core.messages import PROBABILITY_ONE, Answers, Choice
from streamserve.core.reasons import Missing
from streamserve.core.records import Decision, OutcomeRecord, StateRecord
from streamserve.errors import BrokerError, StreamserveError, TopicsDiffer
from streamserve.kafka.codecs import encode_answers, encode_epoch, encode_outcome
from streamserve.kafka.ports import At, Columns, Record
from streamserve.testing.log import ManualClock, MemoryLog
from streamserve.topics import Kind, topic_name
from tests.client.conftest import APP, PARTITIONS, REQUESTS, MemoryApp, terminal

REF = "1-1"
SHARED = outcome_partition("digits", "", PARTITIONS)


class Written:
    """An app's log, written by hand; each record a millisecond after the last."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=self.clock.epoch)
        self.app = MemoryApp(self.log)

    def write(self, kind: Kind, partition: int, value: bytes | None, *headers: tuple[str, bytes]) -> None:
        self.clock.advance(1)
        record = Record(value=value, key=b"k", headers=headers)
        self.log.append(At(topic_name(APP, kind), partition), Columns.of([record]))

    def answers(self, offsets: list[int], *, missing: int = 0, model: str = "linear@1") -> None:
        n = len(offsets)
        rows = np.zeros(n + 1, np.int64) if missing else np.arange(n + 1)
        block = Answers(
            partition=1,
            route="digits",
            model=model,
            offsets=np.array(offsets, np.int64),
            row_starts=rows,
            labels=None if missing else np.array(offsets) * 10,
            probabilities=None,
            classes=None,
            missing=np.full(n, missing, np.uint8),
            ids=[None] * n,
            choice=Choice(
                chosen=np.full(n, 1, np.uint64),
                probability=np.full(n, PROBABILITY_ONE, np.int64),
                epoch=np.zeros(n, np.int64),
                stale=np.zeros(n, np.bool_),
            ),
            queue_ms=np.full(n, 2, np.int32),
            inference_ms=np.full(n, 3, np.int32),
            details={0: "it raised"} if missing else {},
        )
        for value in encode_answers(block):
            self.write(Kind.ANSWERS, 1, value)

    def prediction(self, offset: int, **parameters: Any) -> None:
        value, headers = terminal(1, offset)
        body = orjson.loads(value)
        body["parameters"] |= parameters
        self.write(Kind.PREDICTIONS, 1, orjson.dumps(body), *headers)

    def feedback(self, ref: str, label: int) -> None:
        self.write(Kind.FEEDBACK, 1, json.dumps({"id": "a", "label": label}).encode(), ("ss-ref", ref.encode()))

    def outcome(self, offset: int) -> None:
        decision = Decision(
            id="a",
            route="digits",
            outcome="ok",
            epoch=0,
            probability=1.0,
            off_epoch=False,
            chosen=("linear@1",),
            label=[offset],
            members={"linear@1": [offset]},
            rows=1,
        )
        record = OutcomeRecord(
            to_partition=SHARED,
            route="digits",
            context="",
            ref=(1, offset),
            decision=decision,
            feedback=(1, 0),
            feedback_ms=1,
            label=4,
            has_label=True,
            losses={"linear@1": 1.0},
        )
        self.write(Kind.OUTCOMES, SHARED, encode_outcome(record))

    def epoch(self) -> None:
        state = StateRecord(
            route="digits", context="", policy="hedge", data={"losses": [0.5]}, includes={}, partition=SHARED
        )
        self.write(Kind.EPOCHS, SHARED, encode_epoch(state))


@pytest.fixture
def written() -> Written:
    """Requests 1-0, 1-1, 1-2, each answered; REF has everything that a request can have."""
    written = Written()
    written.epoch()
    written.prediction(0)
    for _ in range(3):
        written.write(Kind.REQUESTS, 1, b'{"inputs":[]}', ("ss-route", b"digits"))
    written.answers([0, 1, 2])
    written.answers([1], missing=Missing.MODEL_ERROR, model="forest@1")
    written.answers([0, 2], model="other@1")
    for offset in (0, 1, 2):
        written.prediction(offset, epoch=0)
    written.feedback("1-0", 3)
    written.feedback(REF, 4)
    written.outcome(0)
    written.outcome(1)
    return written


async def story_of(written: Written, ref: str) -> Any:
    async with scanning(written.app) as scanner:
        return await tell(APP, ref, scanner, join_window_ms=600_000)


async def test_every_part_of_the_story_is_found_and_nothing_of_others(written: Written) -> None:
    story = await story_of(written, REF)
    assert story.request.offset == 1
    assert [(record.offset, index) for record, _, index in story.answers] == [(0, 1), (1, 0)]
    assert [record.offset for record in story.predictions] == [2]
    assert story.epoch is not None
    assert (story.epoch.policy, story.epoch.epoch) == ("hedge", 0)
    assert [record.offset for record in story.feedback] == [1]
    assert [record.offset for record in story.outcomes] == [1]
    assert (story.dead_letters, story.notes) == ([], [])
    lines = story.lines()
    assert [text.split(" ms  ")[1].split()[0] for text in lines[1:]] == [
        "epoch",
        "request",
        "answer",
        "answer",
        "prediction",
        "feedback",
        "outcome",
    ]
    assert "linear@1: label 10, queue 2 ms, inference 3 ms" in lines[3]
    assert "forest@1: no answer (model_error): it raised" in lines[4]
    assert "ok (all answered), label 1, 5 ms (queue 2, inference 1); chosen with probability 1: linear@1" in lines[5]
    assert "digits: label 4, answered [1]; losses linear@1 1" in lines[7]
    told = json.loads(dumps(story.plain()))
    assert [answer["labels"] for answer in told["answers"]] == [[10], None]
    assert told["predictions"][0]["value"]["parameters"]["epoch"] == 0
    assert told["epoch"]["data"] == {"losses": [0.5]}


async def test_what_is_not_there_is_said(written: Written) -> None:
    written.write(Kind.REQUESTS, 1, b"{}")
    story = await story_of(written, "1-3")
    assert story.lines()[-1] == "note: no prediction yet"
    written.prediction(3, epoch=77)
    story = await story_of(written, "1-3")
    assert story.notes == ["epoch 77, under which it was decided, is no longer kept"]


async def test_a_second_prediction_and_a_dead_letter_are_shown(written: Written) -> None:
    written.write(Kind.REQUESTS, 1, b"\xff")
    for _ in range(2):
        value, headers = terminal(1, 3, outcome="error")
        written.write(Kind.PREDICTIONS, 1, value, *headers)
    for offset in (2, 3):
        place = {"topic": REQUESTS, "partition": "1", "offset": str(offset), "stage": "worker"}
        headers = [(f"__connect.errors.{name}", text.encode()) for name, text in place.items()]
        written.write(Kind.DLQ, 1, b"\xff", *headers, ("ss-reason", b"not_json"))
    story = await story_of(written, "1-3")
    assert len(story.predictions) == 2
    assert story.lines()[3].endswith("(a second one: dropped by readers)")
    assert [record.offset for record in story.dead_letters] == [1]
    assert story.lines()[4].endswith(f"{REQUESTS} 1-3 by worker: not json")


async def test_what_cannot_be_told_is_refused_in_words(written: Written) -> None:
    with pytest.raises(UnusableInput, match="'x' is no ref"):
        await story_of(written, "x")
    with pytest.raises(StreamserveError, match=r"names partition 9; .* has 0 to 2"):
        await story_of(written, "9-0")
    with pytest.raises(StreamserveError, match=r"no request stands at 0-0: partition 0 of .* is empty$"):
        await story_of(written, "0-0")
    with pytest.raises(StreamserveError, match=r"no request stands at 1-99: partition 1 of .* holds 0 to 2"):
        await story_of(written, "1-99")
    written.log.delete_before(At(REQUESTS, 1), 2)
    with pytest.raises(StreamserveError, match=r"no request stands at 1-1: .* holds 2 to 2"):
        await story_of(written, REF)
    written.log = MemoryLog({})
    written.app = MemoryApp(written.log)
    with pytest.raises(TopicsDiffer, match=r"has no topic digits\.requests\.v1"):
        await story_of(written, REF)


async def test_a_piece_is_read_to_its_end_and_no_further(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning_module, "SILENCE_MS", 0)
    at = At(REQUESTS, 1)
    async with scanning(written.app) as scanner:
        assert [r.offset async for r in scanner.read(at, 1, 3)] == [1, 2]
        assert [r.offset async for r in scanner.read(at, 0, 2)] == [0, 1]
        assert [r.offset async for r in scanner.read(at, 3, 3)] == []
        written.log.punch(at, [1])
        assert [r.offset async for r in scanner.read(at, 0, 2)] == [0]
        assert await scanner.one(at, 1) is None
        assert await everything(scanner) == [(0, 0), (1, 0), (1, 2)]
        written.log.punch(at, [2])
        with pytest.raises(BrokerError, match=r"nothing came from .* for 0 s, although it ends at 3"):
            await anext(scanner.read(at, 2, 3))


async def everything(scanner: Scanner) -> list[tuple[int, int]]:
    places = [At(REQUESTS, partition) for partition in range(PARTITIONS)]
    await scanner.lookups.ends(places)
    ends = {place: 3 if place.partition == 1 else 1 if place.partition == 0 else 0 for place in places}
    scanner_log: MemoryLog = scanner.lookups._memory  # type: ignore[attr-defined]
    scanner_log.append(At(REQUESTS, 0), Columns.of([Record(value=b"{}")]))
    found = scanner.follow(dict.fromkeys(places, 0), ends)
    return sorted([(record.at.partition, record.offset) async for record in found])


@pytest.mark.parametrize("kind", list(Kind))
async def test_every_topic_has_words_and_values_even_for_what_is_unreadable(written: Written, kind: Kind) -> None:
    for value in (None, b"", b"\xff\x00", b"{}", b"[]", b'"x"'):
        for partition in range(PARTITIONS):
            written.write(kind, partition, value, ("h", b"\xff"))
    async with scanning(written.app) as scanner:
        places = [At(topic_name(APP, kind), partition) for partition in range(PARTITIONS)]
        ends = await scanner.lookups.ends(places)
        records = [record async for record in scanner.follow(dict.fromkeys(places, 0), ends)]
    assert len(records) >= 18
    for record in records:
        text = line(kind, record)
        assert "\n" not in text
        assert f" {record.at.partition}-{record.offset} " in text
        assert json.loads(dumps(plain(kind, record)))["offset"] == record.offset
