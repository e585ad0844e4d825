"""The head of a model learnt while it serves: outcomes read in their order, their texts looked up, heads published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamserve.client.connection import ClientLog, common_partitions
from streamserve.client.failures import UnusableInput
from streamserve.client.outcomes import outcome_of
from streamserve.client.scanning import LogRecord, Scanner, scanning
from streamserve.core.codec import InputCodec
from streamserve.core.head_order import HeadOrder, Publication, label_of_row, newest
from streamserve.core.records import OutcomeRecord
from streamserve.errors import BrokerError, ContractError, PlanError
from streamserve.kafka.codecs.heads import decode_head, encode_head, head_place
from streamserve.kafka.ports import At, Columns, LogWriter
from streamserve.kafka.tasks import happens_or
from streamserve.plan.compile import Plan
from streamserve.plan.learning import HeadLearner
from streamserve.plan.packing import keep, stored
from streamserve.plan.store import Store
from streamserve.topics import Kind, topic_name

_log = logging.getLogger(__name__)

_LOOK_S = 0.05
_MOST_READ = 1_000
_MOST_WAITING = 10_000
#: Requests this close to one another are read in one go.
_GAP = 200
_HEADS_KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What is learnt, and how often it is published."""

    app: str
    model: str
    """`name@version`."""
    plan: Plan
    """The one that the config names."""
    rate: float
    store: Store
    codecs: Mapping[str, InputCodec]
    """Of the routes that ask the model, by name: their labels teach it."""
    every_rows: int
    every_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One head that is in the log."""

    rows: int
    """It has learnt from."""
    new_rows: int
    right: int
    """Of the new ones, those whose label the head would have given before it learnt from them."""
    passed_over: int
    """Outcomes since the last publication that teach nothing: without a label, a class or a text."""
    append_ms: int
    plan: str


async def learn_head(
    log: ClientLog, learning: Learning, told: Callable[[Published], object], stop: asyncio.Event
) -> None:
    """Learn until `stop`; each publication is `told`.

    Raises UnusableInput where the version has learnt from another plan or at another rate, PlanError where its newest
    head is not in the store, BrokerError, TopicsDiffer.
    """
    async with scanning(log) as scanner:
        kinds = (Kind.OUTCOMES, Kind.REQUESTS, Kind.MODELS)
        topics = [topic_name(learning.app, kind) for kind in kinds]
        partitions = await common_partitions(scanner.lookups, learning.app, topics, log.address)
        writer = log.writer()
        await writer.start()
        try:
            follower = _Follower(scanner, writer, learning, partitions)
            await follower.begin()
            while not stop.is_set():
                for published in await follower.turn():
                    told(published)
                await happens_or(stop, _LOOK_S)
        finally:
            await writer.stop()


class _Follower:
    def __init__(self, scanner: Scanner, writer: LogWriter, learning: Learning, partitions: int) -> None:
        self._scanner, self._writer, self._learning = scanner, writer, learning
        self._outcomes = [At(topic_name(learning.app, Kind.OUTCOMES), number) for number in range(partitions)]
        self._requests = [At(topic_name(learning.app, Kind.REQUESTS), number) for number in range(partitions)]
        self._place = head_place(topic_name(learning.app, Kind.MODELS), learning.model, partitions)
        self._looked_to = 0
        self._newest: Publication | None = None
        self._name = f"head of {learning.app}: {learning.model}"
        self._kept: deque[str] = deque()
        self._go_on_from(None)

    def _go_on_from(self, publication: Publication | None) -> None:
        learning = self._learning
        plan = learning.plan if publication is None else stored(publication.plan, learning.store)
        self._learner = HeadLearner(plan, rate=learning.rate)
        self._order = HeadOrder(len(self._outcomes), {} if publication is None else publication.read)
        self._rows = 0 if publication is None else publication.rows
        self._new = self._right = self._passed_over = 0
        self._due_s: float | None = None

    # -- publications

    async def begin(self) -> None:
        """Go on from the newest publication."""
        held = await asyncio.to_thread(self._learning.store.manifests)
        self._kept = deque(digest for digest, manifest in held.items() if manifest.get("name") == self._name)
        await self._look()
        if self._newest is not None:
            self._check(self._newest)
            with contextlib.suppress(ValueError):
                self._kept.remove(self._newest.plan)
            self._kept.append(self._newest.plan)
            await asyncio.to_thread(self._go_on_from, self._newest)
        starts = await self._scanner.lookups.starts(self._outcomes)
        for number, at in enumerate(self._outcomes):
            gone = starts[at] - self._order.read[number].offset
            if gone > 0 and self._newest is not None:
                _log.warning(
                    "%s, partition %d: %d outcomes are gone that it has not learnt from", at.topic, number, gone
                )

    def _check(self, publication: Publication) -> None:
        learning = self._learning
        for what, before, now in (
            ("plan", publication.base, learning.plan.digest),
            ("rate", publication.rate, learning.rate),
        ):
            if before != now:
                raise UnusableInput(
                    f"{learning.model} has learnt from {publication.rows} rows with {what} {before}; the config says "
                    f"{now}. Give the model another version, or take the change back"
                )

    async def _look(self) -> None:
        """What others, and earlier processes, have published."""
        end = (await self._scanner.lookups.ends([self._place]))[self._place]
        if end <= self._looked_to:
            return
        start = max(self._looked_to, (await self._scanner.lookups.starts([self._place]))[self._place])
        async for record in self._scanner.read(self._place, start, end):
            found = decode_head(record.value, f"{self._place.topic} {self._place.partition}-{record.offset}")
            if found is not None and found.model == self._learning.model:
                self._newest = newest([found] if self._newest is None else [self._newest, found])[found.model]
        self._looked_to = end

    async def _publish(self) -> Published | None:
        """None where another process is further: then this one goes on from there."""
        await self._look()
        learning = self._learning
        reach = sum(place.offset for place in self._order.read.values())
        if self._newest is not None and self._newest.reach >= reach:
            self._check(self._newest)
            _log.info("another process has learnt %s from %d rows; going on there", learning.model, self._newest.rows)
            await asyncio.to_thread(self._go_on_from, self._newest)
            return None
        plan = await asyncio.to_thread(self._keep)
        publication = Publication(
            model=learning.model,
            base=learning.plan.digest,
            rate=learning.rate,
            rows=self._rows,
            read=dict(self._order.read),
            plan=plan,
            store=f"{socket.gethostname()}, {learning.store.folder}",
        )
        ack = await self._writer.send(self._place, Columns.of([encode_head(publication)]))
        if ack.error:
            raise BrokerError(f"a head of {learning.model} is not in the log: {ack.error}; start it again")
        self._newest = publication
        published = Published(
            rows=self._rows,
            new_rows=self._new,
            right=self._right,
            passed_over=self._passed_over,
            append_ms=ack.append_ms,
            plan=plan,
        )
        self._new = self._right = self._passed_over = 0
        self._due_s = None
        await asyncio.to_thread(self._forget_old)
        return published

    def _keep(self) -> str:
        digest: str = keep(self._learner.plan(), self._learning.store, name=self._name)["signature"]
        if digest in self._kept:
            self._kept.remove(digest)
        self._kept.append(digest)
        return digest

    def _forget_old(self) -> None:
        old = [self._kept.popleft() for _ in range(len(self._kept) - _HEADS_KEPT)]
        if old:
            self._learning.store.drop(old)

    # -- learning

    async def turn(self) -> list[Published]:
        """Learn from what is ripe; what was published meanwhile."""
        asked_ms = time.monotonic_ns() // 1_000_000
        found = await self._scanner.lookups.ends(self._outcomes)
        ends = {number: found[at] for number, at in enumerate(self._outcomes)}
        for number in self._order.to_read(ends, _MOST_WAITING):
            await self._read(number, ends[number])
        told: list[Published] = []
        while True:
            ripe = self._order.ripe(asked_ms, ends, max(1, self._learning.every_rows - self._new))
            if ripe:
                await self._learn(ripe)
            if self._is_due():
                published = await self._publish()
                if published is None:
                    return told  # it stands elsewhere now
                told.append(published)
            elif not ripe:
                return told

    async def _read(self, number: int, end: int) -> None:
        at = self._outcomes[number]
        starts = await self._scanner.lookups.starts([at])
        start = max(self._order.next_offset[number], starts[at])
        end = min(end, start + _MOST_READ)
        records: list[OutcomeRecord] = []
        async for record in self._scanner.read(at, start, end):
            try:
                records.append(outcome_of(record))
            except ContractError as error:
                self._passed_over += 1
                _log.error("an outcome teaches nothing: %s", error)
        self._order.take(number, records, end, time.monotonic_ns() // 1_000_000)

    def _is_due(self) -> bool:
        if not self._new:
            return False
        if self._due_s is None:
            self._due_s = time.monotonic() + self._learning.every_ms / 1000
        return self._new >= self._learning.every_rows or time.monotonic() >= self._due_s

    async def _learn(self, outcomes: Sequence[OutcomeRecord]) -> None:
        mine = [one for one in outcomes if one.primary and one.has_label and one.route in self._learning.codecs]
        texts = await self._texts(mine)
        rows: list[tuple[str, Any]] = []
        for one in mine:
            of_request = texts.get(one.ref, ())
            labels = [label_of_row(one, row, len(of_request)) for row in range(len(of_request))]
            if of_request and all(self._learner.knows(label) for label in labels):
                rows += zip(of_request, labels, strict=True)
            else:
                self._passed_over += 1
        self._passed_over += len(outcomes) - len(mine)
        if rows:
            await asyncio.to_thread(self._teach, rows)

    def _teach(self, rows: Sequence[tuple[str, Any]]) -> None:
        try:
            learnt = self._learner.learn([text for text, _ in rows], [label for _, label in rows])
        except PlanError:
            if len(rows) == 1:
                self._passed_over += 1
                return
            for row in rows:
                self._teach([row])
            return
        self._rows += learnt.rows
        self._new += learnt.rows
        self._right += learnt.right

    async def _texts(self, outcomes: Sequence[OutcomeRecord]) -> dict[tuple[int, int], list[str]]:
        """By ref, the rows of each request that is still in the log and can be read."""
        wanted = {one.ref: one.route for one in outcomes}
        found: dict[tuple[int, int], list[str]] = {}
        for number, at in enumerate(self._requests):
            offsets = sorted(offset for partition, offset in wanted if partition == number)
            if not offsets:
                continue
            first, end = await self._scanner.bounds(at)
            for low, high in stretches_of(offsets, _GAP):
                async for record in self._scanner.read(at, max(low, first), min(high + 1, end)):
                    route = wanted.get((number, record.offset))
                    if route is not None:
                        found[number, record.offset] = _rows_of(record, self._learning.codecs[route])
        return found


def stretches_of(offsets: Sequence[int], gap: int) -> list[tuple[int, int]]:
    """(first, last) of each run of rising offsets that are at most `gap` apart."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and offset - found[-1][1] <= gap:
            found[-1] = found[-1][0], offset
        else:
            found.append((offset, offset))
    return found


def _rows_of(record: LogRecord, codec: InputCodec) -> list[str]:
    """The texts of a request; none where it holds something else."""
    decoded = codec.decode([record.value], [record.headers])
    group, first, count = int(decoded.group[0]), int(decoded.first_row[0]), int(decoded.n_rows[0])
    if group < 0:
        return []
    rows = decoded.groups[group].array[first : first + count].reshape(-1).tolist()
    return rows if len(rows) == count and all(isinstance(row, str) for row in rows) else []
