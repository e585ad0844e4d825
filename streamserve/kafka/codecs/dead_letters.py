"""Dead letters: what could not be used, as it came, with headers that say from where and why.

The header names are those of Kafka Connect's dead-letter queues (KIP-298), so its tools read them.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from streamserve.core.messages import DeadLetters, Failure, Headers
from streamserve.core.values import unchanging
from streamserve.errors import MalformedRecord
from streamserve.kafka.codecs.encoded import EncodedRecords
from streamserve.kafka.codecs.refs import format_ref, parse_ref

#: A value is kept up to here; of a longer one the hash of the whole is kept too.
MAX_VALUE_BYTES = 64 << 10
_PREFIX = "__connect.errors."


class Source(NamedTuple):
    """Where a record stood before it became a dead letter: its identity, however often it was given up."""

    topic: str
    partition: int
    offset: int

    @property
    def ref(self) -> str:
        """`<partition>-<offset>`"""
        return format_ref(self.partition, self.offset)


@unchanging()
class DeadLetter:
    """What the headers of a dead letter say."""

    source: Source
    stage: str
    reason: str
    message: str
    exception: str = ""
    stack: str = ""
    model: str = ""
    attempts: str = ""
    """Calls of the model that held it, as a number's text; empty where no model failed on it."""
    sha256: str = ""
    """Of the whole value, where only its beginning is kept; empty: the value is whole."""
    headers: Headers
    """The original's own."""


def encode_dead_letters(letters: DeadLetters, topic: str) -> EncodedRecords:
    """Records of the dead-letter topic; `topic` is the name of the one that they come from.

    Key and headers are the original's; a null value becomes an empty one where the key is null too, since Kafka's
    clients refuse a record of neither.
    """
    records = EncodedRecords(keys=list(letters.keys), values=[], headers=[])
    for index, (key, value) in enumerate(zip(letters.keys, letters.values, strict=True)):
        headers = [
            *letters.headers[index],
            (f"{_PREFIX}topic", _text(topic)),
            (f"{_PREFIX}partition", b"%d" % letters.partition),
            (f"{_PREFIX}offset", b"%d" % letters.offsets[index]),
            (f"{_PREFIX}stage", _text(letters.stage)),
            (f"{_PREFIX}exception.message", _text(letters.details[index])),
            ("ss-reason", _text(letters.reasons[index])),
            *_failure_headers(letters.failures.get(index)),
        ]
        if value is not None and len(value) > MAX_VALUE_BYTES:
            headers.append(("ss-sha256", sha256(value).hexdigest().encode()))
        kept = None if value is None else value[:MAX_VALUE_BYTES]
        records.values.append(b"" if kept is None and key is None else kept)
        records.headers.append(headers)
    return records


def place_of(headers: Headers) -> tuple[str, int, int, str] | None:
    """Topic, partition and offset that a dead letter comes from, and who wrote it; None where it does not say."""
    # Ours are the last: the original may have been a dead letter itself.
    found = {name.removeprefix(_PREFIX): value for name, value in headers if name.startswith(_PREFIX)}
    try:
        topic, partition, offset, stage = (found[name] or b"" for name in ("topic", "partition", "offset", "stage"))
        return topic.decode(), int(partition), int(offset), stage.decode()
    except (KeyError, ValueError):
        return None


def decode_dead_letter(headers: Headers) -> DeadLetter:
    """Raises MalformedRecord where the headers are not those of a dead letter.

    Ours follow the original's: what stands before the last `topic` is the original's, even where the names are alike.
    """
    begins = max((i for i, (name, _) in enumerate(headers) if name == f"{_PREFIX}topic"), default=-1)
    if begins < 0:
        raise MalformedRecord(f"no header {_PREFIX}topic: it is no dead letter")
    told = {name: (text or b"").decode("utf-8", "replace") for name, text in headers[begins:]}
    place = parse_ref(f"{told.get(f'{_PREFIX}partition', '')}-{told.get(f'{_PREFIX}offset', '')}")
    if place is None:
        raise MalformedRecord(f"{_PREFIX}partition and {_PREFIX}offset name no place")
    return DeadLetter(
        source=Source(told[f"{_PREFIX}topic"], *place),
        stage=told.get(f"{_PREFIX}stage", ""),
        reason=told.get("ss-reason", ""),
        message=told.get(f"{_PREFIX}exception.message", ""),
        exception=told.get(f"{_PREFIX}exception.class.name", ""),
        stack=told.get(f"{_PREFIX}exception.stacktrace", ""),
        model=told.get("ss-model", ""),
        attempts=told.get("ss-attempts", ""),
        sha256=told.get("ss-sha256", ""),
        headers=tuple(headers[:begins]),
    )


def _failure_headers(failure: Failure | None) -> list[tuple[str, bytes | None]]:
    if failure is None:
        return []
    named = (
        (f"{_PREFIX}exception.class.name", failure.exception),
        (f"{_PREFIX}exception.stacktrace", failure.stack),
        ("ss-attempts", str(failure.attempts)),
        ("ss-model", failure.model),
    )
    return [(name, _text(words)) for name, words in named if words]


def _text(words: str) -> bytes:
    return words.encode("utf-8", "replace")
