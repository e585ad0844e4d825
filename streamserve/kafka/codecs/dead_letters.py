"""Dead letters: what could not be used, as it came, with headers that say from where and why.

The header names are those of Kafka Connect's dead-letter queues (KIP-298), so its tools read them.
"""

from __future__ import annotations

from hashlib import sha256

from streamserve.core.messages import DeadLetters, Failure
from streamserve.kafka.codecs.encoded import EncodedRecords

#: A value is kept up to here; of a longer one the hash of the whole is kept too.
MAX_VALUE_BYTES = 64 << 10
_PREFIX = "__connect.errors."


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
