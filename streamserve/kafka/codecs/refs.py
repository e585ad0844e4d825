"""The ref of a request, `<partition>-<offset>`: its identity inside the system, built and parsed here only."""

from __future__ import annotations

import re

REF_HEADER = "ss-ref"
ID_HEADER = "ss-id"
OUTCOME_HEADER = "ss-outcome"
TRACE_HEADER = "traceparent"
ORIGIN_HEADER = "ss-origin"
ORIGIN_MS_HEADER = "ss-origin-ms"

# Kafka's partitions are 32-bit, its offsets 64-bit; no leading zeros, so that each ref has one spelling.
_REF = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})", re.ASCII)
_REF_BYTES = re.compile(_REF.pattern.encode())
_MAX_PARTITION = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1


def format_ref(partition: int, offset: int) -> str:
    return f"{partition}-{offset}"


def parse_ref(text: str | bytes | None) -> tuple[int, int] | None:
    """(partition, offset), or None where the text is not a ref. Never raises for what is in it."""
    if text is None:
        return None
    match = _REF_BYTES.fullmatch(text) if isinstance(text, bytes) else _REF.fullmatch(text)
    if match is None:
        return None
    partition, offset = map(int, match.groups())
    return (partition, offset) if partition <= _MAX_PARTITION and offset <= _MAX_OFFSET else None
