"""The dead letters of an app: read from its topic, with the marks that redrives left there, and filtered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from streamserve.client.failures import UnusableInput
from streamserve.client.inputs import CLOUD_EVENTS_ID_HEADER, ROUTE_HEADER
from streamserve.client.scanning import LogRecord, Scanner
from streamserve.client.targets import RouteHint
from streamserve.errors import ContractError, TopicsDiffer
from streamserve.kafka.codecs import decode_dead_letter, format_ref, parse_ref
from streamserve.kafka.codecs.columns import id_text
from streamserve.kafka.codecs.dead_letters import DeadLetter, Source
from streamserve.kafka.codecs.jsonbody import parse
from streamserve.kafka.codecs.redrives import RedriveMark, decode_mark
from streamserve.kafka.codecs.refs import REF_HEADER
from streamserve.kafka.ports import At
from streamserve.topics import Kind, topic_name
from streamserve.topics.names import IllegalName, parse_topic_name

#: Stands for the reason of a record that is no dead letter of ours.
UNREADABLE = "unreadable"
#: Codecs whose values hold no id.
_WITHOUT_IDS = ("text", "raw")

State = Literal["new", "redriven", "unsure"]
"""`unsure`: a redrive began to put it back and broke off before it could say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter."""

    at: At
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    """None also where values were not to be kept."""
    size: int
    """Of the kept value, in bytes; -1: it is null."""
    said: DeadLetter
    body_id: str | None
    """The id that the value holds."""

    @property
    def place(self) -> str:
        """`<partition>-<offset>` in the dead-letter topic."""
        return format_ref(self.at.partition, self.offset)

    @property
    def id(self) -> str | None:
        """The caller's own: that of the value, else `ce_id`."""
        return self.body_id or self.header(CLOUD_EVENTS_ID_HEADER) or None

    @property
    def kind(self) -> str:
        """Kind of the source topic; its whole name where it is not one of ours."""
        return _kind(self.said.source.topic)

    @property
    def is_cut(self) -> bool:
        return bool(self.said.sha256)

    def header(self, name: str) -> str:
        """The last original header of that name as text; empty where there is none."""
        return (dict(self.said.headers).get(name) or b"").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which dead letters are meant; what is left empty lets all pass."""

    places: Collection[tuple[int, int]] = frozenset()
    """(partition, offset) in the dead-letter topic."""
    reasons: Collection[str] = frozenset()
    sources: Collection[str] = frozenset()
    """Kinds of the source topic."""
    models: Collection[str] = frozenset()
    """`name@version`, or the name alone."""
    partitions: Collection[int] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    """Appended before this."""
    up_to: Mapping[int, int] | None = None
    """Partition -> the last offset that is meant; no others are."""
    ref: str | None = None
    """Of a request: its own dead letters, those of its feedback, those of the request that was put back for it."""
    id: str | None = None
    contains: str | None = None

    @property
    def names_one(self) -> bool:
        """Something single is named: that it is not there is a failure."""
        return bool(self.places or self.ref or self.id)

    def takes(self, letter: Letter, value: bytes | None) -> bool:
        """`value`: the letter's, whether it is to be kept or not."""
        return (
            self._takes_place(letter)
            and (not self.reasons or letter.said.reason in self.reasons)
            and (not self.sources or letter.kind in self.sources)
            and (not self.models or bool({letter.said.model, letter.said.model.partition("@")[0]} & set(self.models)))
            and (self.ref is None or self._is_about(letter, self.ref))
            and (self.id is None or letter.id == self.id)
            and (self.contains is None or _holds(letter, value, self.contains))
        )

    def _takes_place(self, letter: Letter) -> bool:
        partition = letter.at.partition
        return (
            (not self.places or (partition, letter.offset) in self.places)
            and (not self.partitions or partition in self.partitions)
            and (self.since_ms is None or letter.append_ms >= self.since_ms)
            and (self.until_ms is None or letter.append_ms < self.until_ms)
            and (self.up_to is None or letter.offset <= self.up_to.get(partition, -1))
        )

    def _is_about(self, letter: Letter, ref: str) -> bool:
        # A place in the feedback topic is no request's ref; it is taken for what it is where that source is named.
        is_there = letter.said.source.ref == ref and (letter.kind == Kind.REQUESTS or bool(self.sources))
        named = (letter.header(REF_HEADER), letter.header(CLOUD_EVENTS_ID_HEADER))
        return is_there or ref in named or (letter.kind == Kind.FEEDBACK and letter.body_id == ref)


def _holds(letter: Letter, value: bytes | None, text: str) -> bool:
    said, raw = letter.said, text.encode("utf-8", "surrogateescape")
    headers = [content for _, content in said.headers]
    return any(raw in (part or b"") for part in (value, letter.key, *headers)) or any(
        text in words for words in (said.message, said.exception, said.stack)
    )


@dataclass(slots=True)
class Marks:
    """What redrives have said of each record, in the order of the log."""

    done: Counter[Source] = field(default_factory=Counter)
    """How often each was put back."""
    open: dict[Source, tuple[int, Mapping[At, int]]] = field(default_factory=dict)
    """Begun and not done: when last, and from where on it must be looked for."""

    unreadable: list[str] = field(default_factory=list)
    """Places of marks of another version, or damaged, and why."""

    def add(self, mark: RedriveMark, append_ms: int) -> None:
        for source in mark.sources:
            if mark.is_done:
                self.done[source] += 1
                self.open.pop(source, None)
            else:
                # More than one may have broken off: it is looked for from where the first began, until the last ended.
                self.open[source] = (append_ms, self.open.get(source, (0, mark.since))[1])

    def read(self, record: LogRecord) -> bool:
        """Take a record that is a mark; False: it is none."""
        try:
            mark = decode_mark(record.value, record.headers)
        except ContractError as error:
            self.unreadable.append(f"{format_ref(record.at.partition, record.offset)}: {error}")
            return True
        if mark is not None:
            self.add(mark, record.append_ms)
        return mark is not None

    def state(self, letter: Letter) -> State:
        source = letter.said.source
        if source in self.open:
            return "unsure"
        return "redriven" if self.done[source] else "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the topic held when it was read."""

    topic: str
    letters: Sequence[Letter]
    """Those that the filter takes, newest last."""
    marks: Marks
    ends: Mapping[At, int]
    fronts: Mapping[At, int]
    """Up to here (not included) each partition holds nothing that the filter does not take."""


async def survey(
    app: str,
    scanner: Scanner,
    chosen: Filter,
    *,
    routes: Mapping[str, RouteHint] | None = None,
    keep_values: bool = False,
    whole: bool = False,
) -> Survey:
    """Read the dead letters that `chosen` takes. `whole`: from the first one kept, so that every mark is seen and
    `fronts` holds; else from where the filter begins.

    Raises TopicsDiffer where the app has no such topic, UnusableInput for a partition that it has not.
    """
    topic = topic_name(app, Kind.DLQ)
    places = await _partitions(app, scanner, topic, chosen)
    starts, ends = await scanner.lookups.starts(places), await scanner.lookups.ends(places)
    if not whole:
        starts = await _begins(scanner, chosen, starts, ends)
    letters: list[Letter] = []
    marks = Marks()
    fronts = dict(ends)
    for at in places:
        async for record in scanner.read(at, starts[at], ends[at]):
            if marks.read(record):
                continue
            letter = letter_of(record, routes or {}, keep_value=keep_values)
            if chosen.takes(letter, record.value):
                letters.append(letter)
            else:
                fronts[at] = min(fronts[at], record.offset)
    letters.sort(key=lambda letter: (letter.append_ms, letter.at, letter.offset))
    return Survey(topic=topic, letters=letters, marks=marks, ends=ends, fronts=fronts)


async def _partitions(app: str, scanner: Scanner, topic: str, chosen: Filter) -> list[At]:
    count = await scanner.lookups.partition_count(topic)
    if not count:
        raise TopicsDiffer(f"app {app} has no topic {topic}; `streamserve topics create CONFIG` makes it")
    named = {*chosen.partitions, *(partition for partition, _ in chosen.places), *(chosen.up_to or ())}
    beyond = sorted(partition for partition in named if not 0 <= partition < count)
    if beyond:
        raise UnusableInput(f"partition {beyond[0]} of {topic} is named; it has 0 to {count - 1}")
    return [At(topic, partition) for partition in range(count)]


async def _begins(scanner: Scanner, chosen: Filter, starts: Mapping[At, int], ends: Mapping[At, int]) -> dict[At, int]:
    """Where reading may begin: at the first that may be meant. Marks always follow what they speak of."""
    begins = dict(starts)
    if chosen.since_ms is not None:
        found = await scanner.lookups.first_since(dict.fromkeys(starts, chosen.since_ms))
        begins = {at: max(start, found.get(at, ends[at])) for at, start in begins.items()}
    if chosen.places:
        for at in begins:
            mine = [offset for partition, offset in chosen.places if partition == at.partition]
            begins[at] = max(begins[at], min(mine)) if mine else ends[at]
    if chosen.partitions:
        begins = {at: begin if at.partition in chosen.partitions else ends[at] for at, begin in begins.items()}
    return begins


async def newer_marks(scanner: Scanner, ends: Mapping[At, int]) -> Marks:
    """Marks that came behind these ends."""
    marks = Marks()
    now = await scanner.lookups.ends(list(ends))
    for at, end in ends.items():
        async for record in scanner.read(at, end, now[at]):
            marks.read(record)
    return marks


def letter_of(record: LogRecord, routes: Mapping[str, RouteHint], *, keep_value: bool) -> Letter:
    """A record of the topic; of one that is no dead letter of ours, the reason is `UNREADABLE`."""
    try:
        said = decode_dead_letter(record.headers)
    except ContractError as error:
        nowhere = Source("", -1, -1)
        said = DeadLetter(source=nowhere, stage="", reason=UNREADABLE, message=str(error), headers=record.headers)
    return Letter(
        at=record.at,
        offset=record.offset,
        append_ms=record.append_ms,
        key=record.key,
        value=record.value if keep_value else None,
        size=-1 if record.value is None else len(record.value),
        said=said,
        body_id=_body_id(record.value, said, routes),
    )


def _kind(topic: str) -> str:
    try:
        return parse_topic_name(topic).kind
    except IllegalName:
        return topic


def _body_id(value: bytes | None, said: DeadLetter, routes: Mapping[str, RouteHint]) -> str | None:
    """The id in a JSON object; of a route whose codec holds none, none, whatever the value looks like."""
    named = (dict(said.headers).get(ROUTE_HEADER) or b"").decode("utf-8", "replace")
    hint = routes.get(named) or (next(iter(routes.values())) if len(routes) == 1 else None)
    has_none = hint is not None and hint.input in _WITHOUT_IDS and _kind(said.source.topic) == Kind.REQUESTS
    if not value or not value.lstrip().startswith(b"{") or has_none:
        return None
    body = parse(value)
    return (id_text(body.get("id")) or None) if isinstance(body, dict) else None


def parse_place(text: str) -> tuple[int, int]:
    """Raises UnusableInput where the text is not `<partition>-<offset>`."""
    place = parse_ref(text)
    if place is None:
        raise UnusableInput(f"{text!r} is no place: expected <partition>-<offset>, such as 2-17")
    return place
