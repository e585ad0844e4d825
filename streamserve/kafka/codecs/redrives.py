"""What a redrive leaves in the log: headers on the record that it puts back, and marks among the dead letters.

A mark stands in the dead letters' partition, so it is kept longer than what it speaks of. *begun* is written before
anything is put back and says from which offsets the source partitions must be looked through; *done* names what the
broker has acknowledged. A redrive that broke off in between is finished by looking for `ss-redriven-from` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import msgspec

from streamserve.core.messages import Headers
from streamserve.core.values import unchanging
from streamserve.kafka.codecs.contract import VERSION, read
from streamserve.kafka.codecs.dead_letters import DeadLetter, Source
from streamserve.kafka.codecs.refs import parse_ref
from streamserve.kafka.ports import At, Record
from streamserve.topics.values import Version

REDRIVEN_HEADER = "ss-redriven"
REDRIVEN_FROM_HEADER = "ss-redriven-from"
MARK_HEADER = "ss-redrive"
_BEGUN, _DONE = b"begun", b"done"
_CE_ID = "ce_id"


class _Value(msgspec.Struct, frozen=True):
    """The value of a mark."""

    records: list[tuple[str, int, int]]
    since: list[tuple[str, int, int]] = []
    v: Version = VERSION


_decode = msgspec.json.Decoder(_Value).decode


@unchanging()
class RedriveMark:
    """One mark."""

    is_done: bool
    sources: tuple[Source, ...]
    since: Mapping[At, int] = field(default_factory=dict)
    """Of a begun one: what it puts back stands at these offsets or later."""


def encode_mark(mark: RedriveMark) -> Record:
    value = _Value(
        [(source.topic, source.partition, source.offset) for source in mark.sources],
        [(*at, offset) for at, offset in mark.since.items()],
    )
    return Record(value=msgspec.json.encode(value), headers=[(MARK_HEADER, _DONE if mark.is_done else _BEGUN)])


def decode_mark(value: bytes | None, headers: Headers) -> RedriveMark | None:
    """None where the record is no mark. Raises ContractError for one that cannot be read.

    A request may have a header of that name too: as a dead letter it has others behind it, as a mark it has not.
    """
    if len(headers) != 1 or headers[0][0] != MARK_HEADER or headers[0][1] not in (_BEGUN, _DONE):
        return None
    found = read(value, _decode, "a mark of a redrive")
    return RedriveMark(
        is_done=headers[0][1] == _DONE,
        sources=tuple(Source(*source) for source in found.records),
        since={At(topic, partition): offset for topic, partition, offset in found.since},
    )


def redriven_record(
    letter: DeadLetter, *, key: bytes | None, value: bytes | None, earlier: int, id: str | None
) -> Record:
    """The original, as it is put back. `earlier`: how often it was already; `id`: what becomes its `ce_id`."""
    headers = [pair for pair in letter.headers if pair[0] not in (REDRIVEN_HEADER, REDRIVEN_FROM_HEADER)]
    if id is not None:
        headers.append((_CE_ID, id.encode()))
    headers.append((REDRIVEN_HEADER, b"%d" % (times_redriven(letter.headers) + earlier + 1)))
    headers.append((REDRIVEN_FROM_HEADER, letter.source.ref.encode()))
    return Record(key=key, value=value, headers=headers)


def times_redriven(headers: Headers) -> int:
    """How often the record with these headers was put back before it came to where it is; 0 for what is no number."""
    text = dict(headers).get(REDRIVEN_HEADER) or b""
    return int(text) if text.isdigit() and len(text) < 10 else 0


def redriven_from(headers: Headers, topic: str) -> Source | None:
    """Of a record that was put back: where it stood before; None for any other record."""
    place = parse_ref(dict(headers).get(REDRIVEN_FROM_HEADER))
    return None if place is None else Source(topic, *place)
