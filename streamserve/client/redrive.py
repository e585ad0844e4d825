"""Dead letters put back on the topic that they came from: planned by pure functions, then done batch by batch.

What may repeat: nothing, as long as one redrive works at a time. A batch is marked as begun before and as done after
it is sent; what a crash left between the two is looked for in the source topic before anything is sent again. Two
redrives at the same time may each put the same record back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from streamserve.client.connection import ClientLog
from streamserve.client.dead_letters import Letter, Marks, Survey, letter_of, newer_marks
from streamserve.client.inputs import CLOUD_EVENTS_ID_HEADER
from streamserve.client.scanning import Scanner
from streamserve.errors import BrokerError, ContractError
from streamserve.kafka.codecs.dead_letters import MAX_VALUE_BYTES, Source
from streamserve.kafka.codecs.redrives import RedriveMark, encode_mark, redriven_from, redriven_record
from streamserve.kafka.ports import At, Columns, LogWriter
from streamserve.topics import Kind, topic_name

#: Records of one batch: what a crash leaves to be looked for.
BATCH_RECORDS = 200
#: What a redrive that broke off had sent is in the log within this, or never: its process and its connections are gone.
SETTLED_MS = 600_000
_REDRIVABLE = (Kind.REQUESTS, Kind.FEEDBACK)

Fate = Literal["to send", "redriven", "already redriven", "repeated", "impossible", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What becomes, or became, of one dead letter."""

    letter: Letter
    fate: Fate
    to: At | None = None
    """Where it is put back."""
    ref: str = ""
    """Its new place there, once it has one."""
    ce_id: str | None = None
    """The header that keeps its identity, where it has no id of its own."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """What came of records that a redrive began to put back and did not say to be done."""

    sent: frozenset[Source] = frozenset()
    unknown: frozenset[Source] = frozenset()
    """The source topic no longer holds what would tell."""


def plan(
    app: str,
    found: Survey,
    partitions: Mapping[str, int],
    unsure: Unsure,
    *,
    again: bool = False,
    limit: int | None = None,
) -> list[Result]:
    """What to do with each letter, oldest first. `partitions`: of each source topic; `limit`: so many are sent.

    Raises ContractError where a mark cannot be read: nobody knows then what was put back.
    """
    if found.marks.unreadable:
        raise ContractError(
            f"{found.topic} {found.marks.unreadable[0]}. It may say that something was redriven already: use the "
            "version of streamserve that wrote it, or purge the dead letters up to it"
        )
    sources = {topic_name(app, kind) for kind in _REDRIVABLE}
    results: list[Result] = []
    taken: set[Source] = set()
    for letter in found.letters:
        source = letter.said.source
        why = _impossible(letter, sources, partitions)
        if why:
            results.append(Result(letter=letter, fate="impossible", why=why))
        elif not again and (found.marks.done[source] or source in unsure.sent):
            words = "by a redrive that was stopped before it could say so" if source in unsure.sent else ""
            results.append(Result(letter=letter, fate="already redriven", why=words))
        elif not again and source in unsure.unknown:
            words = "a redrive of it broke off, and the source topic no longer tells whether it was put back; --again"
            results.append(Result(letter=letter, fate="impossible", why=f"{words} puts it back all the same"))
        elif source in taken:
            words = f"{source.ref} is there twice (its role was stopped between two commits): put back once"
            results.append(Result(letter=letter, fate="repeated", why=words))
        elif limit is None or len(taken) < limit:
            taken.add(source)
            to = At(source.topic, source.partition % partitions[source.topic])
            results.append(Result(letter=letter, fate="to send", to=to, ce_id=_new_id(letter)))
    return results


def _impossible(letter: Letter, sources: Collection[str], partitions: Mapping[str, int]) -> str:
    """Why a letter cannot be put back; empty where it can."""
    topic = letter.said.source.topic
    if not topic:
        return f"it does not say where it came from: {letter.said.message}"
    if topic not in sources:
        return f"it came from {topic}; only requests and feedback of this app are put back, the rest has one writer"
    if letter.is_cut:
        kept = f"only the first {MAX_VALUE_BYTES >> 10} KiB of its value are kept"
        return f"{kept}; send the whole one (SHA-256 {letter.said.sha256}) again from where it came"
    if not partitions.get(topic):
        return f"there is no topic {topic}; `streamserve topics create CONFIG` makes it"
    return ""


def _new_id(letter: Letter) -> str | None:
    """The original ref of a request that has no id of its own: its prediction has had it, and has it again."""
    if letter.kind != Kind.REQUESTS or letter.body_id or letter.header(CLOUD_EVENTS_ID_HEADER):
        return None
    return letter.said.source.ref


async def look_for_unsure(scanner: Scanner, marks: Marks, wanted: Collection[Source]) -> Unsure:
    """Look for what was begun and not said to be done, from where it could stand."""
    asked = {
        source: (begun_ms, {at: offset for at, offset in since.items() if at.topic == source.topic})
        for source, (begun_ms, since) in marks.open.items()
        if source in wanted
    }
    sent: set[Source] = set()
    unknown: set[Source] = set()
    for at in sorted({at for _, since in asked.values() for at in since}):
        here = {source: (begun_ms, since[at]) for source, (begun_ms, since) in asked.items() if at in since}
        start, end = await scanner.bounds(at)
        unknown |= {source for source, (_, offset) in here.items() if offset < start}
        latest_ms = max(begun_ms for begun_ms, _ in here.values()) + SETTLED_MS
        async for record in scanner.read(at, max(start, min(offset for _, offset in here.values())), end):
            if record.append_ms > latest_ms:
                break
            source = redriven_from(record.headers, at.topic)
            if source is not None and source in here:
                sent.add(source)
    return Unsure(sent=frozenset(sent), unknown=frozenset(unknown - sent))


async def settle(writer: LogWriter, found: Survey, unsure: Unsure) -> None:
    """Mark as done what was found to be: the source topic is kept for a shorter time than the dead letters.

    Raises BrokerError where a mark cannot be written.
    """
    at_home: dict[At, set[Source]] = {}
    for letter in found.letters:
        if letter.said.source in unsure.sent:
            at_home.setdefault(letter.at, set()).add(letter.said.source)
    for at, sources in at_home.items():
        error = await _mark(writer, at, RedriveMark(is_done=True, sources=tuple(sorted(sources))))
        if error:
            raise BrokerError(
                f"{at.topic}, partition {at.partition}: a mark of a redrive could not be written: {error}"
            )


async def redrive(
    scanner: Scanner, writer: LogWriter, found: Survey, results: Sequence[Result]
) -> AsyncIterator[Result]:
    """Put back what is planned as "to send"; what became of each, as soon as the broker has said it.

    Raises BrokerError where a mark cannot be written: then nothing of its batch was sent.
    """
    newer = await newer_marks(scanner, found.ends)  # somebody may have been quicker than the one who was asked
    planned = {(result.letter.at, result.letter.offset): result for result in results if result.fate == "to send"}
    for at in sorted({at for at, _ in planned}):
        mine = {offset: result for (place, offset), result in planned.items() if place == at}
        batch: list[tuple[Result, Letter]] = []
        start, _ = await scanner.bounds(at)
        async for record in scanner.read(at, max(start, min(mine)), max(mine) + 1):
            if record.offset not in mine:
                continue
            result = mine.pop(record.offset)
            if newer.state(result.letter) != "new":
                yield Result(letter=result.letter, fate="already redriven", why="by somebody else, just now")
                continue
            batch.append((result, letter_of(record, {}, keep_value=True)))
            if len(batch) >= BATCH_RECORDS:
                for each in await _send(scanner, writer, found.marks, batch):
                    yield each
                batch = []
        if batch:
            for each in await _send(scanner, writer, found.marks, batch):
                yield each
        for result in mine.values():
            yield Result(letter=result.letter, fate="failed", why="it is no longer kept")


async def _send(
    scanner: Scanner, writer: LogWriter, marks: Marks, batch: Sequence[tuple[Result, Letter]]
) -> list[Result]:
    """One batch of one partition of dead letters: a mark, the records, a mark."""
    home = batch[0][1].at
    places = [result.to for result, _ in batch if result.to is not None]
    since = await scanner.lookups.ends(sorted(set(places)))
    sources = tuple(letter.said.source for _, letter in batch)
    error = await _mark(writer, home, RedriveMark(is_done=False, sources=sources, since=since))
    if error:
        raise BrokerError(
            f"{home.topic}, partition {home.partition}: the mark that a redrive begins could not be written: {error}. "
            f"Nothing of its {len(batch)} records was put back"
        )
    sends = []
    for (result, letter), to in zip(batch, places, strict=True):
        record = redriven_record(
            letter.said,
            key=letter.key,
            value=letter.value,
            earlier=marks.done[letter.said.source],
            id=result.ce_id,
        )
        sends.append((result, to, writer.send(to, Columns.of([record]))))
    acks = await asyncio.gather(*(ack for _, _, ack in sends))
    done: list[Result] = []
    failed: list[Result] = []
    for (result, to, _), ack in zip(sends, acks, strict=True):
        if ack.error:
            failed.append(Result(letter=result.letter, fate="failed", to=to, why=f"not put back: {ack.error}"))
        else:
            ref = f"{to.partition}-{ack.offset}"
            done.append(Result(letter=result.letter, fate="redriven", to=to, ref=ref, ce_id=result.ce_id))
    sources = tuple(result.letter.said.source for result in done)
    error = await _mark(writer, home, RedriveMark(is_done=True, sources=sources)) if done else ""
    if error:
        why = f"put back, but the mark that says so could not be written ({error}); the next redrive looks for it"
        done = [Result(letter=each.letter, fate="redriven", to=each.to, ref=each.ref, why=why) for each in done]
    return [*done, *failed]


@asynccontextmanager
async def writing(log: ClientLog) -> AsyncIterator[LogWriter]:
    """A writer, for as long as the context lasts."""
    writer = log.writer()
    await writer.start()
    try:
        yield writer
    finally:
        await writer.stop()


async def _mark(writer: LogWriter, at: At, mark: RedriveMark) -> str:
    """Write a mark; the error, empty where there is none."""
    return (await writer.send(at, Columns.of([encode_mark(mark)]))).error
