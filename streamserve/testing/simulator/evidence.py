"""What a run left in its log, read back once for all invariants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from streamserve.assembly import app_rules
from streamserve.core.records import OutcomeRecord, StateRecord
from streamserve.core.routes import AppRules
from streamserve.kafka.codecs.answers import decode_answers
from streamserve.kafka.codecs.dead_letters import place_of
from streamserve.kafka.codecs.learning import decode_epoch, decode_outcome
from streamserve.kafka.codecs.refs import parse_ref
from streamserve.kafka.once import Key
from streamserve.kafka.ports import At
from streamserve.testing.simulator.clock import WORLD_EPOCH_MS
from streamserve.testing.simulator.plan import Ask
from streamserve.testing.simulator.simulation import SLOT_MS, Simulation
from streamserve.topics.values import PredictionValue

#: What was written before the last process of the old config had ended may be answered so long afterwards.
_AFTER_DEPLOY_MS = 6_000.0
_decode = msgspec.json.Decoder(PredictionValue).decode


class Request(NamedTuple):
    partition: int
    offset: int
    append_ms: int
    deadline_ms: int
    ask: Ask


class Terminal(NamedTuple):
    """One terminal record."""

    append_ms: int
    at_ms: float
    """World's time of the append."""
    writer: str
    sent_ms: float
    """World's time at which its writer handed it to its client."""
    value: PredictionValue

    @property
    def chosen(self) -> tuple[str, ...]:
        return _names(self.value.parameters.chosen)

    @property
    def second(self) -> str | None:
        """The model that was asked for a second opinion."""
        said = self.value.parameters.second_opinion
        return said if isinstance(said, str) else None

    @property
    def lacking(self) -> Mapping[str, str]:
        """Chosen members without an answer in it, and why."""
        missing = self.value.parameters.missing
        return _entries(missing) if isinstance(missing, str) else {}

    @property
    def absent(self) -> frozenset[str]:
        """Chosen members without an answer in it."""
        return frozenset(self.lacking)


@lru_cache(maxsize=256)
def _names(text: str) -> tuple[str, ...]:
    """Most records of a run name the same few."""
    return tuple(text.split(",")) if text else ()


@lru_cache(maxsize=256)
def _entries(text: str) -> Mapping[str, str]:
    """`name=why` of each."""
    parts = (entry.rpartition("=") for entry in text.split(","))
    return {name: why for name, _, why in parts}


class Answer(NamedTuple):
    """One model's answer to one request, as it stands in the answers topic."""

    model: str
    append_ms: int
    present: bool
    labels: list[object]


@dataclass(slots=True)
class Feedback:
    """One record of the feedback topic that a client wrote."""

    partition: int
    offset: int
    append_ms: int
    ref: tuple[int, int] | None
    value: bytes
    forwarded: bool = False
    """A copy of one that landed elsewhere."""
    sent_on: bool = False
    """A copy of it stands elsewhere."""
    ends: list[str] = field(default_factory=list)
    """What became of it: `outcome`, `dead letter <reason>`, `forwarded`."""


def _slots(from_ms: float, to_ms: float) -> range:
    return range(int(from_ms / SLOT_MS), int(to_ms / SLOT_MS) + 1)


class Evidence:
    """Lazy: an invariant that needs nothing of a topic does not pay for it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.form = simulation.plan.form
        self._log, self._topics = simulation.log, simulation.topics

    @cached_property
    def rules(self) -> list[AppRules]:
        """Before and after the deploy; of one that was not, once."""
        return [app_rules(settings) for settings in self.simulation.env.settings]

    def in_deploy(self, from_ms: float, to_ms: float) -> bool:
        """Whether processes of both configs ran in this span of world time."""
        env = self.simulation.env
        return to_ms >= env.deploy_ms and from_ms <= env.old_until_ms + _AFTER_DEPLOY_MS

    def disturbed(self, from_ms: float, to_ms: float) -> bool:
        """Whether something kept the app from serving, in this span of world time."""
        return not self.simulation.seen.bad_slots.isdisjoint(_slots(from_ms, to_ms))

    def delayed(self, from_ms: float, to_ms: float) -> bool:
        """Whether something kept what was sent from arriving, in this span of world time."""
        return not self.simulation.seen.slow_slots.isdisjoint(_slots(from_ms, to_ms))

    def leaderless(self, at_ms: float) -> bool:
        """Whether records were appended then that nobody could see."""
        spans = self.simulation.seen.leaderless
        return bool(spans) and any(start <= at_ms <= end for start, end in spans)

    @cached_property
    def requests(self) -> list[list[Request | None]]:
        """By partition and offset; None where no request stands."""
        found: list[list[Request | None]] = []
        for number, written in enumerate(self.simulation.clients.written):
            part = self._log.partition(At(self._topics.requests, number))
            mine: list[Request | None] = [None] * len(written.asks)
            for offset, stamp in zip(part.offsets, part.stamps, strict=True):
                ask = written.asks[offset] if offset < len(mine) else None
                if ask is not None:
                    deadline_ms = stamp + (ask.deadline_ms or self.form.deadline_ms)
                    mine[offset] = Request(number, offset, stamp, deadline_ms, ask)
            found.append(mine)
        return found

    @cached_property
    def terminals(self) -> list[dict[int, list[Terminal]]]:
        """By partition and request offset, in the order of the log."""
        found: list[dict[int, list[Terminal]]] = []
        new = tuple.__new__  # what a named tuple's own does, without a call of Python's
        for number, batches in enumerate(self.simulation.clients.terminal):
            part = self._log.partition(At(self._topics.predictions, number))
            mine: dict[int, list[Terminal]] = {}
            prefix = b"%d-" % number
            ends = [*(batch.start for batch in batches[1:]), len(part.values)][: len(batches)]
            skip = len(prefix)
            for batch, end in zip(batches, ends, strict=True):
                at_ms, writer, sent_ms, mine_of = batch.at_ms, batch.writer, batch.sent_ms, slice(batch.start, end)
                for stamp, headers, value in zip(
                    part.stamps[mine_of], part.headers[mine_of], part.values[mine_of], strict=True
                ):
                    text = headers[0][1] or b""
                    offset = int(text[skip:]) if text.startswith(prefix) else -1
                    record = new(Terminal, (stamp, at_ms, writer, sent_ms, _decode(value or b"")))
                    if offset in mine:
                        mine[offset].append(record)
                    else:
                        mine[offset] = [record]
            found.append(mine)
        return found

    @cached_property
    def pairs(self) -> list[tuple[Request, list[Terminal]]]:
        """Each request with its terminal records."""
        none: list[Terminal] = []
        return [
            (request, terminals.get(request.offset, none))
            for requests, terminals in zip(self.requests, self.terminals, strict=True)
            for request in requests
            if request is not None
        ]

    @cached_property
    def answers(self) -> list[dict[int, list[Answer]]]:
        """By partition and request offset, in the order of the log."""
        found: list[dict[int, list[Answer]]] = []
        for number in range(self.form.partitions):
            part = self._log.partition(At(self._topics.answers, number))
            mine: dict[int, list[Answer]] = {}
            for value, stamp in zip(part.values, part.stamps, strict=True):
                block = decode_answers(value, number)
                labels = [] if block.labels is None else block.labels.tolist()
                starts = block.row_starts.tolist()
                for i, (offset, missing) in enumerate(zip(block.offsets.tolist(), block.missing.tolist(), strict=True)):
                    answer = Answer(block.model, stamp, not missing, labels[starts[i] : starts[i + 1]])
                    mine.setdefault(offset, []).append(answer)
            found.append(mine)
        return found

    @cached_property
    def states(self) -> list[StateRecord]:
        """Learnt states in the order of their partitions' logs."""
        return [
            decode_epoch(value, partition=number, offset=offset, append_ms=stamp)
            for number in range(self.form.partitions)
            for part in (self._log.partition(At(self._topics.epochs, number)),)
            for offset, stamp, value in zip(part.offsets, part.stamps, part.values, strict=True)
        ]

    @cached_property
    def outcomes(self) -> list[OutcomeRecord]:
        return [
            decode_outcome(value, partition=number, offset=offset, append_ms=stamp)
            for number in range(self.form.partitions)
            for part in (self._log.partition(At(self._topics.outcomes, number)),)
            for offset, stamp, value in zip(part.offsets, part.stamps, part.values, strict=True)
        ]

    @cached_property
    def letters(self) -> list[Key]:
        """What each dead letter is about."""
        parts = [self._log.partition(At(self._topics.dlq, number)) for number in range(self.form.partitions)]
        return [place for part in parts for headers in part.headers if (place := place_of(headers)) is not None]

    @cached_property
    def dead_letters(self) -> dict[tuple[str, int, int], str]:
        """(topic, partition, offset) of what became one -> its reason."""
        found: dict[tuple[str, int, int], str] = {}
        for number in range(self.form.partitions):
            for headers in self._log.partition(At(self._topics.dlq, number)).headers:
                named = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}
                place = named["__connect.errors.partition"], named["__connect.errors.offset"]
                found[named["__connect.errors.topic"], int(place[0]), int(place[1])] = named["ss-reason"]
        return found

    @cached_property
    def feedback(self) -> dict[tuple[int, int], Feedback]:
        """By where it stands; what was forwarded is listed too, and says so of its original."""
        outcomes = {outcome.feedback for outcome in self.outcomes}
        found: dict[tuple[int, int], Feedback] = {}
        forwards: list[tuple[tuple[int, int], tuple[int, int]]] = []
        for number in range(self.form.partitions):
            part = self._log.partition(At(self._topics.feedback, number))
            for offset, stamp, value, headers in zip(part.offsets, part.stamps, part.values, part.headers, strict=True):
                named = dict(headers)
                origin = parse_ref(named.get("ss-origin"))
                record = Feedback(number, offset, stamp, parse_ref(named.get("ss-ref")), value or b"")
                found[number, offset] = record
                if origin is not None:
                    record.forwarded = True
                    forwards.append(((number, offset), origin))
                elif (number, offset) in outcomes:
                    record.ends.append("outcome")
                reason = self.dead_letters.get((self._topics.feedback, number, offset))
                if reason is not None:
                    record.ends.append(f"dead letter {reason}")
        for place, origin in forwards:
            found[origin].sent_on = True
            found[origin].ends += [f"forwarded: {end}" for end in found[place].ends]
        return found

    def world_ms(self, broker_ms: int) -> float:
        return float(broker_ms - WORLD_EPOCH_MS)

    @cached_property
    def _sayings(self) -> dict[str, list[object]]:
        """Model id -> what it says of each input."""
        highest = max(
            (ask.input + ask.rows for w in self.simulation.clients.written for ask in w.asks if ask), default=0
        )
        rows = np.stack([np.arange(highest + 1, dtype=np.float64)] * 2, axis=1)
        variants = self.simulation.env.models
        models = [model for variant in variants for pool in variant.values() for model in pool.values()]
        return {model.model: model.predict(rows).labels.tolist() for model in models}

    def said_by(self, model: str, ask: Ask) -> list[object]:
        """What this version of this model says of this request, one value a row."""
        return self._sayings[model][ask.input : ask.input + ask.rows]
