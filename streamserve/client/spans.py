"""Which piece of a topic is meant: `--from` and `--to` as a person types them, and the offsets that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamserve.client.scanning import Scanner
from streamserve.client.times import parse_time_ms
from streamserve.kafka.ports import At


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From where to where a topic is read: times of the broker, or offsets in each partition; None: to its end."""

    from_ms: int | None = None
    to_ms: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Offsets [start, end) of one partition that a span names, of those that it holds now."""

    at: At
    start: int
    end: int
    first_kept: int
    """The lowest offset that retention has left."""
    is_cut: bool
    """What the span names began below `first_kept`; where it names a time, may have."""


def span_of(begin: str | None, end: str | None, now_ms: int) -> Span:
    """What `--from` and `--to` mean: a whole number is an offset, all else a time.

    Raises UnusableInput for what is neither.
    """
    from_offset, to_offset = _offset(begin), _offset(end)
    return Span(
        from_ms=parse_time_ms(begin, now_ms) if begin is not None and from_offset is None else None,
        to_ms=parse_time_ms(end, now_ms) if end is not None and to_offset is None else None,
        from_offset=from_offset,
        to_offset=to_offset,
    )


def _offset(text: str | None) -> int | None:
    digits = (text or "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


async def stretches(scanner: Scanner, places: Sequence[At], span: Span) -> list[Stretch]:
    """What a span names of each partition, as of now."""
    kept, ends = await scanner.lookups.starts(places), await scanner.lookups.ends(places)
    begins = await _resolved(scanner, span.from_ms, span.from_offset, kept, ends)
    stops = await _resolved(scanner, span.to_ms, span.to_offset, ends, ends)
    found = []
    for at in places:
        start, end = max(begins[at], kept[at]), min(stops[at], ends[at])
        named = begins[at] if span.from_offset is not None else 0
        is_cut = begins[at] <= kept[at] and named < min(kept[at], stops[at])
        found.append(Stretch(at=at, start=start, end=max(start, end), first_kept=kept[at], is_cut=is_cut))
    return found


async def _resolved(
    scanner: Scanner, time_ms: int | None, offset: int | None, otherwise: Mapping[At, int], ends: Mapping[At, int]
) -> dict[At, int]:
    """The first offset at that time or offset or behind it."""
    if time_ms is not None:
        found = await scanner.lookups.first_since(dict.fromkeys(otherwise, time_ms))
        return {at: found.get(at, ends[at]) for at in otherwise}
    return dict(otherwise) if offset is None else dict.fromkeys(otherwise, max(offset, 0))
