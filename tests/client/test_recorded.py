"""Terminal records and labels found for requests, whatever order they stand in, in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
from hypothesis import given
from hypothesis import strategies as st

from streamserve.client.recorded import Pad, Said
from streamserve.client.scanning import LogRecord
from streamserve.kafka.ports import At
from streamserve.testing.policy_checks import outcome_of

AT = At("predictions", 3)


def record(place: int, request: int, value: bytes) -> LogRecord:
    headers = (("ss-ref", f"3-{request}".encode()),)
    return LogRecord(at=AT, offset=place, append_ms=0, key=None, value=value, headers=headers)


@given(
    st.lists(st.integers(0, 40), max_size=80),
    st.integers(0, 20),
    st.integers(1, 20),
    st.integers(1, 9),
    st.frozensets(st.integers(0, 40)),
)
def test_every_request_finds_its_first_terminal_record(
    order: list[int], start: int, n: int, window: int, not_wanted: frozenset[int]
) -> None:
    """`order`: the requests that predictions are of, as they stand in the log; some twice, some outside."""
    end = start + n
    expected: dict[int, bytes] = {}
    for place, request in enumerate(order):
        expected.setdefault(request, b"%d" % place)

    async def records() -> AsyncIterator[LogRecord]:
        for place, request in enumerate(order):
            yield record(place, request, b"%d" % place)

    async def find() -> dict[int, bytes]:
        said, found = Said(pad, records(), end), {}
        for first in range(start, end, window):
            below = min(first + window, end)
            wanted = [offset for offset in range(first, below) if offset not in not_wanted]
            answers = await said.of(wanted, below)
            found.update({offset: answers[offset] for offset in wanted if offset in answers})
        return found

    pad = Pad()
    try:
        wanted = set(range(start, end)) - not_wanted
        assert asyncio.run(find()) == {offset: raw for offset, raw in expected.items() if offset in wanted}
    finally:
        pad.close()


@given(st.permutations(range(6)))
def test_the_label_given_last_counts_in_whatever_order_labels_are_read(order: list[int]) -> None:
    given_at = [(5, 0, 1), (5, 0, 0), (4, 1, 9), (5, 1, 0), (1, 0, 0), (5, 0, 7)]
    pad = Pad()
    try:
        for number in order:
            ms, *place = given_at[number]
            made = outcome_of({"a@1": 0.0}, chosen=("a@1",), offset=0)
            made = replace(
                made, ref=(3, 7), feedback_ms=ms, feedback=(place[0], place[1]), label=number, has_label=True
            )
            pad.keep_label(made)
            pad.keep_label(replace(made, ref=(2, 8), label=[None, "x"]))
        assert pad.labels(3, 0, 10) == {7: 3}
        assert pad.labels(3, 8, 10) == pad.labels(3, 0, 7) == {}
        assert pad.labels(2, 0, 10) == {8: [None, "x"]}
    finally:
        pad.close()


def test_what_waits_takes_no_more_memory_than_is_stated() -> None:
    """192 MiB of predictions wait behind one request that has none."""
    pad, process = Pad(), psutil.Process()
    before = process.memory_info().rss
    try:
        for first in range(0, 192, 4):
            pad.keep_said([(first * 256 + i, bytes(4096)) for i in range(1024)])
        assert process.memory_info().rss - before < 64 << 20
        assert len(pad.take_said(100)) == 100
    finally:
        pad.close()
