"""Why a request has no answer: where it was last seen, and who has not read it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from streamserve.client.connection import ClientLookups
from streamserve.client.submitted import Submitted
from streamserve.errors import BrokerError, PredictionTimeout
from streamserve.kafka.ports import At, Committed

_ASK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a client knows when it gives up."""

    address: str
    requests: str
    """Topic."""
    predictions: str
    """Topic."""
    partitions: int
    terminal_group: str
    """The group that owes each request its terminal record."""
    grace_ms: int
    highest_seen: int
    """Highest request offset, in the request's partition, whose prediction was seen; -1: none."""
    reading_trouble: str
    """Why the client cannot read predictions; empty: it can."""


async def timed_out(submitted: Submitted, around: Surroundings, lookups: ClientLookups | None) -> PredictionTimeout:
    """The error that says where the request was last seen. `lookups` None: the client is closed, nothing is asked."""
    ref = submitted.ref
    named = f"request {ref or ''}".strip() + (f" (id {submitted.id!r})" if submitted.id is not None else "")
    budget = submitted.wait_ms - around.grace_ms
    head = f"{named} was not answered within {submitted.wait_ms} ms (deadline {budget}, grace {around.grace_ms})"
    if ref is None:
        words = (
            f"it was sent to partition {submitted.partition} of {around.requests}, and the broker at {around.address} "
            "has not acknowledged it: is that broker up, and can the partition's leader be reached?"
        )
        return PredictionTimeout(f"{head}. Last seen: {words}")
    at = datetime.fromtimestamp(submitted.append_ms / 1000, UTC).isoformat(timespec="milliseconds")
    seen = f"appended to {around.requests}, partition {submitted.partition}, offset {submitted.offset}, at {at}"
    answers = _answers_since(submitted, around)
    readers = "who reads it was not asked, as the client is closed"
    if lookups is not None:
        try:
            async with asyncio.timeout(_ASK_S):
                readers = await _readers(submitted, around, lookups)
        except (BrokerError, TimeoutError) as error:
            readers = f"the broker at {around.address} does not say who reads it ({error or 'no answer in time'})"
    trouble = (
        f" This client cannot read {around.predictions}: {around.reading_trouble}." if around.reading_trouble else ""
    )
    return PredictionTimeout(
        f"{head}. Last seen: {seen}; {answers}; {readers}.{trouble} `streamserve show {ref}` tells its story"
    )


def _answers_since(submitted: Submitted, around: Surroundings) -> str:
    if around.highest_seen > submitted.offset:
        return f"later requests of that partition have been answered, up to offset {around.highest_seen}"
    before = f", the last one seen is for offset {around.highest_seen}" if around.highest_seen >= 0 else ""
    return f"nothing after it in that partition has been answered{before}"


async def _readers(submitted: Submitted, around: Surroundings, lookups: ClientLookups) -> str:
    places = [At(around.requests, partition) for partition in range(around.partitions)]
    ends = await lookups.ends(places)
    commits = await lookups.committed(around.terminal_group, places)
    group = f"group {around.terminal_group}"
    if all(_offset(commits, at) < 0 for at in places):
        return f"{group} has never read this topic: is the app serving (`streamserve up CONFIG`)?"
    own = _offset(commits, At(around.requests, submitted.partition))
    lags = {at.partition: ends[at] - max(0, _offset(commits, at)) for at in places}
    behind = ", ".join(f"{lag} in partition {partition}" for partition, lag in lags.items() if lag > 0)
    if own > submitted.offset:
        return f"{group} has settled it, so its prediction was written before this client looked, or was not for it"
    return f"{group} has not settled it; its lag: {behind or 'none'}"


def _offset(commits: dict[At, Committed], at: At) -> int:
    return commits[at].offset if at in commits else -1
