"""Dead letters in a log in memory: read, filtered, told."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from streamserve.client import UnusableInput
from streamserve.client.dead_letters import UNREADABLE, Filter, parse_place
from streamserve.client.letter_words import count_lines, counts, lines, plain, visible, whole
from streamserve.client.lines import dumps
from streamserve.client.targets import RouteHint
from streamserve.errors import TopicsDiffer
from streamserve.kafka.codecs.redrives import RedriveMark, encode_mark
from streamserve.testing.log import MemoryLog
from tests.client.conftest import REQUESTS, MemoryApp
from tests.client.lettered import DLQ, Lettered


@pytest.fixture
def app() -> Lettered:
    """Five dead letters: 0-0, 1-0, 1-1, 2-0, 1-2, in this order."""
    app = Lettered()
    app.letter(b'{"id":"order-1"}', at=(0, 5), reason="not_json", message="not JSON: here")
    app.letter(b"\xff\x00", ("ce_id", b"event-7"), at=(1, 6), model="linear@1", stack="File x\nboom")
    app.letter(b"{}", ("ss-ref", b"0-5"), at=(1, 9), source="feedback", reason="wrong_form")
    app.letter(None, at=(2, 1), reason="empty_value", key=None)
    app.letter(b'{"id":"order-2"}', ("ce_id", b"0-5"), ("x", b"needle"), at=(1, 8), model="forest@2")
    return app


ALL = ["0-0", "1-0", "1-1", "2-0", "1-2"]


@pytest.mark.parametrize(
    ("chosen", "places"),
    [
        ({}, ALL),
        ({"places": {(1, 1), (0, 0)}}, ["0-0", "1-1"]),
        ({"places": {(1, 7)}}, []),
        ({"reasons": ["not_json", "empty_value"]}, ["0-0", "2-0"]),
        ({"sources": ["feedback"]}, ["1-1"]),
        ({"sources": ["policy"]}, []),
        ({"models": ["linear"]}, ["1-0"]),
        ({"models": ["linear@1", "forest@2"]}, ["1-0", "1-2"]),
        ({"models": ["linear@2"]}, []),
        ({"partitions": [1]}, ["1-0", "1-1", "1-2"]),
        ({"partitions": [0, 2]}, ["0-0", "2-0"]),
        ({"ref": "0-5"}, ["0-0", "1-1", "1-2"]),  # itself, its feedback, the request that was put back for it
        ({"ref": "1-9"}, []),  # a place in the feedback topic
        ({"ref": "1-9", "sources": ["feedback"]}, ["1-1"]),
        ({"id": "order-1"}, ["0-0"]),
        ({"id": "event-7"}, ["1-0"]),
        ({"id": "order-2"}, ["1-2"]),
        ({"id": "0-5"}, []),  # the value's id comes first
        ({"contains": "order"}, ["0-0", "1-2"]),
        ({"contains": "needle"}, ["1-2"]),
        ({"contains": "boom"}, ["1-0"]),
        ({"contains": "JSON: here"}, ["0-0"]),
        ({"contains": "\udcff"}, ["1-0"]),  # a byte that is no text, as the shell hands it over
        ({"up_to": {1: 1, 2: 9}}, ["1-0", "1-1", "2-0"]),
        ({"reasons": ["refused"], "partitions": [1], "contains": "order"}, ["1-2"]),
    ],
)
async def test_a_filter_takes_what_it_says(app: Lettered, chosen: dict[str, Any], places: list[str]) -> None:
    assert await app.places(**chosen) == places
    found = await app.survey(Filter(**chosen), whole=True)
    assert [letter.place for letter in found.letters] == places


async def test_time_is_that_of_the_broker_since_counts_and_until_does_not(app: Lettered) -> None:
    third_ms = app.now_ms - 2000
    assert await app.places(since_ms=third_ms) == ["1-1", "2-0", "1-2"]
    assert await app.places(until_ms=third_ms) == ["0-0", "1-0"]
    assert await app.places(since_ms=third_ms, until_ms=third_ms + 1) == ["1-1"]
    assert await app.places(since_ms=app.now_ms + 1) == []


def test_what_names_a_single_one() -> None:
    assert Filter(ref="0-0").names_one
    assert Filter(id="x").names_one
    assert Filter(places={(0, 0)}).names_one
    assert not Filter(reasons=["refused"]).names_one


async def test_a_partition_that_is_not_there_and_an_app_without_topics(app: Lettered) -> None:
    for chosen in (Filter(partitions=[3]), Filter(places={(3, 0)}), Filter(up_to={7: 1})):
        with pytest.raises(UnusableInput, match=rf"partition [37] of {DLQ} is named; it has 0 to 2"):
            await app.survey(chosen)
    app.app = MemoryApp(MemoryLog({REQUESTS: 1}))
    with pytest.raises(TopicsDiffer, match=rf"no topic {DLQ}; `streamserve topics create CONFIG` makes it"):
        await app.survey()


@pytest.mark.parametrize("text", ["", "1", "1-", "01-2", "1-2-3", "a-b"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UnusableInput, match="is no place: expected <partition>-<offset>"):
        parse_place(text)
    assert parse_place("2-17") == (2, 17)


async def test_fronts_end_at_the_first_that_is_not_meant(app: Lettered) -> None:
    found = await app.survey(Filter(reasons=["refused"]), whole=True)
    assert {at.partition: front for at, front in found.fronts.items()} == {0: 0, 1: 1, 2: 0}
    found = await app.survey(whole=True)
    assert {at.partition: front for at, front in found.fronts.items()} == {0: 1, 1: 3, 2: 1}


async def test_the_route_s_codec_says_whether_a_value_can_hold_an_id(app: Lettered) -> None:
    text = {"words": RouteHint(deadline_ms=1, input="text")}
    found = await app.survey(routes=text)
    assert [letter.body_id for letter in found.letters] == [None] * 5
    two = {**text, "rows": RouteHint(deadline_ms=1, input="rows")}
    found = await app.survey(routes=two)  # and it names none of them
    assert [letter.body_id for letter in found.letters] == ["order-1", None, None, None, "order-2"]


async def test_lines_tell_place_age_source_reason_model_and_words(app: Lettered) -> None:
    found = await app.survey()
    assert lines(found, found.letters, app.now_ms) == [
        "0-0  4s  requests 0-5  not_json     -         not JSON: here",
        "1-0  3s  requests 1-6  refused      linear@1  it raised",
        "1-1  2s  feedback 1-9  wrong_form   -         it raised",
        "2-0  1s  requests 2-1  empty_value  -         it raised",
        "1-2  0s  requests 1-8  refused      forest@2  it raised",
    ]


async def test_counts_are_by_source_reason_and_model(app: Lettered) -> None:
    app.letter(at=(2, 7), model="linear@1")
    found = await app.survey()
    rows = counts(found)
    assert [(row["count"], row["source"], row["reason"], row["model"]) for row in rows] == [
        (2, "requests", "refused", "linear@1"),
        (1, "feedback", "wrong_form", ""),
        (1, "requests", "empty_value", ""),
        (1, "requests", "not_json", ""),
        (1, "requests", "refused", "forest@2"),
    ]
    told = count_lines(rows, app.now_ms)
    assert told[0].split() == ["count", "source", "reason", "model", "redriven", "oldest", "newest"]
    assert told[1].split() == ["2", "requests", "refused", "linear@1", "0", "4s", "0s"]


async def test_a_dead_letter_is_shown_whole(app: Lettered) -> None:
    found = await app.survey(keep_values=True)
    text = "\n".join(whole(found.letters[1], found, app.now_ms))
    assert text.startswith(f"dead letter 1-0 of {DLQ}, appended 20")
    for part in (
        "from       requests 1-6 of digits.requests.v1",
        "reason     refused",
        "model      linear@1, 2 calls with it",
        "exception  ValueError",
        "id         event-7 (ce_id)",
        "redriven   not yet",
        "header     ce_id: event-7",
        "stack\n  File x\n  boom",
        "value      2 bytes\n  000000  ff 00",
    ):
        assert part in text
    assert 'value      16 bytes, JSON\n  {\n    "id": "order-1"\n  }' in "\n".join(whole(found.letters[0], found, 0))
    assert "value      0 bytes, text" in "\n".join(whole(found.letters[3], found, 0))
    told = orjson.loads(dumps(plain(found.letters[1], found.marks, with_value=True)))
    assert (told["place"], told["source"]["ref"], told["stack"]) == ("1-0", "1-6", "File x\nboom")
    assert told["value"] == "base64:/wA="
    assert told["headers"] == [["ce_id", "event-7"]]


async def test_values_as_text_cut_or_binary() -> None:
    app = Lettered()
    app.letter("héllo\nthere".encode())
    app.letter(("x" + "é" * 40_000).encode())
    app.letter(b"\x1b[31mred")
    found = await app.survey(keep_values=True)
    text, cut, colour = ("\n".join(whole(letter, found, 0)) for letter in found.letters)
    assert "value      12 bytes, text\n  héllo\n  there" in text
    assert "65,536 bytes, the beginning of a longer one with SHA-256 " in cut
    assert ", text\n  xéé" in cut
    assert "[cut] it raised" in lines(found, found.letters, 0)[1]
    assert "\x1b" not in colour
    assert "1b 5b 33" in colour


async def test_what_a_sender_wrote_moves_no_cursor() -> None:
    app = Lettered()
    app.letter(b"{}", ("a\x1b", b"\x1b[2J"), message="bad\x1b[2J value", key=b"\x07")
    found = await app.survey(keep_values=True)
    for line in (*lines(found, found.letters, 0), *whole(found.letters[0], found, 0)):
        assert line.isprintable()
    assert visible("a\x1bé\n") == "a\\x1bé\\n"


async def test_what_is_no_dead_letter_is_listed_as_such_and_marks_are_not() -> None:
    app = Lettered()
    app.write(DLQ, 0, b"by somebody else", ("x", b"y"))
    mark = encode_mark(RedriveMark(is_done=True, sources=()))
    app.write(DLQ, 0, mark.value, *mark.headers)
    app.write(DLQ, 1, b"{", ("ss-redrive", b"done"))
    found = await app.survey()
    (letter,) = found.letters
    assert (letter.said.reason, letter.said.headers) == (UNREADABLE, (("x", b"y"),))
    assert "no header __connect.errors.topic" in lines(found, found.letters, 0)[0]
    assert "nowhere" in "\n".join(whole(letter, found, 0))
    assert len(found.marks.unreadable) == 1
    assert found.marks.unreadable[0].startswith("1-0: a mark of a redrive")
