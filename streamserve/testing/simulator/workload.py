"""The clients of the simulated app: they write requests, see terminal records, and say what really happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from streamserve.kafka.perform import Topics
from streamserve.kafka.ports import At, Columns, Record
from streamserve.kafka.sweeper import Skipped
from streamserve.testing.simulator.app import Bytes, feedback_of
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.plan import Ask, Burst, FeedbackAsk, Form, Plan


@dataclass(slots=True)
class Written:
    """What the clients have seen of one requests partition."""

    asks: list[Ask | None] = field(default_factory=list)
    """By offset; None where no request stands: a marker, or one of a transaction that is not committed."""
    answered: list[bool] = field(default_factory=list)
    """True too where no request stands."""
    deleted: set[int] = field(default_factory=set)
    """Requests that were deleted before they were answered: some of them nobody has read."""
    gone: list[tuple[float, int]] = field(default_factory=list)
    """When requests were deleted, answered or not, and below which offset."""
    missing: int = 0
    """Requests without a terminal record."""
    prefix: int = 0
    """Below it all are answered."""


@dataclass(slots=True, kw_only=True)
class TerminalBatch:
    """One append to a predictions partition: which records, when, by whom."""

    start: int
    at_ms: float
    writer: str
    sent_ms: float


class Clients:
    """Writes the plan's requests and feedback."""

    def __init__(self, plan: Plan, log: SimulatedLog, topics: Topics) -> None:
        self._log, self._world, self._topics, self._form = log, log.world, topics, plan.form
        self._bytes = Bytes(plan.form)
        self.written = [Written() for _ in range(plan.form.partitions)]
        self.terminal: list[list[TerminalBatch]] = [[] for _ in range(plan.form.partitions)]
        self.to_come = len(plan.bursts)
        self.feedback_to_come = 0
        self.orphans = 0
        self.counts: dict[str, int] = {}
        self._transactions = 0
        self.held_up: Callable[[float, float], None] = lambda from_ms, to_ms: None
        """Told when requests stood in the log, for nobody to read."""
        self._waiting: list[dict[int, list[FeedbackAsk]]] = [{} for _ in range(plan.form.partitions)]
        self.deadline_of_input: dict[int, int] = {}
        """Input -> latest deadline of a request that holds it."""
        log.observers[topics.predictions] = self._predicted
        for burst in plan.bursts:
            self._world.at(burst.at_ms, self._write, burst)

    def _write(self, burst: Burst, stamp: int | None = None) -> None:
        at = At(self._topics.requests, burst.partition)
        if stamp is None:
            again = partial(self._write, burst)
            if not self._log.reached(again, (at,), "client without a leader") or not self._log.replicated(again):
                return
        self.to_come -= 1
        asks = [*burst.asks, *(ask for ask in burst.asks for _ in range(ask.copies - 1))]
        self._count("request written twice", len(asks) - len(burst.asks))
        records = [self._bytes.requests(asks)]
        if not burst.held_ms:
            self._place(burst, asks, *self._log.append(at, records, stamp=stamp))
            return
        self._transactions += 1
        self.to_come += 1
        first, stamp = self._log.begin(at, self._transactions, records, stamp)
        self.held_up(self._world.now, self._world.now + burst.held_ms)
        self._world.after(burst.held_ms, self._decide, burst, asks, self._transactions, first, stamp)

    def _decide(self, burst: Burst, asks: list[Ask], transaction: int, first: int, stamp: int) -> None:
        """Commit, or abort, what has stood there undecided."""
        again = partial(self._decide, burst, asks, transaction, first, stamp)
        if not self._log.reached(again, (At(self._topics.requests, burst.partition),), "marker without a leader"):
            return
        self.to_come -= 1
        if burst.aborted:
            self._count("transaction aborted", 1)
        else:
            self._count("transaction committed", 1)
            self._place(burst, asks, first, stamp)
        self.held_up(self._world.now, self._world.now)
        self._log.end(At(self._topics.requests, burst.partition), transaction, commit=not burst.aborted)

    def _place(self, burst: Burst, asks: list[Ask], first: int, stamp: int) -> None:
        """They stand in the log, for all to see."""
        written = self.written[burst.partition]
        gap = first + len(asks) - len(written.asks)
        written.asks += [None] * gap
        written.answered += [True] * gap
        written.asks[first : first + len(asks)] = asks
        written.answered[first : first + len(asks)] = [False] * len(asks)
        written.prefix = min(written.prefix, first)
        written.missing += len(asks)
        for offset, ask in enumerate(asks, first):
            if ask.kind != "good":
                self._count(f"request {ask.kind}", 1)
                continue
            due_ms = stamp + (ask.deadline_ms or self._form.deadline_ms)
            for given in range(ask.input, ask.input + ask.rows):
                if self.deadline_of_input.get(given, 0) < due_ms:
                    self.deadline_of_input[given] = due_ms
            if ask.feedback is not None:
                self._plan_feedback(burst.partition, offset, ask.feedback)

    def _plan_feedback(self, partition: int, offset: int, feedback: FeedbackAsk) -> None:
        self.feedback_to_come += 1
        if feedback.delay_ms < 0:
            self._world.after(-feedback.delay_ms, self._feed, partition, offset, feedback)
        else:
            self._waiting[partition].setdefault(offset, []).append(feedback)

    def _predicted(self, at: At, index: int, writer: str, sent: float) -> None:
        partition = self._log.partition(at)
        batch = TerminalBatch(start=index, at_ms=self._world.now, writer=writer, sent_ms=sent)
        self.terminal[at.partition].append(batch)
        written = self.written[at.partition]
        waiting, prefix = self._waiting[at.partition], len(str(at.partition)) + 1
        for headers in partition.headers[index:]:
            offset = int((headers[0][1] or b"")[prefix:])
            if offset >= len(written.answered) or written.answered[offset]:
                continue
            written.answered[offset] = True
            written.missing -= 1
            if offset in waiting:
                for feedback in waiting.pop(offset):
                    self._world.after(feedback.delay_ms, self._feed, at.partition, offset, feedback)

    def deleted(self, partition: int, before: int) -> int:
        """Requests below an offset are gone; how many of them had no terminal record."""
        written = self.written[partition]
        lost = [offset for offset in range(min(before, len(written.asks))) if not written.answered[offset]]
        for offset in lost:
            written.answered[offset] = True
            written.missing -= 1
            self.feedback_to_come -= len(self._waiting[partition].pop(offset, ()))
        written.deleted.update(lost)
        written.gone.append((self._world.now, before))
        return len(lost)

    def _feed(self, partition: int, offset: int, feedback: FeedbackAsk) -> None:
        to = At(self._topics.feedback, partition)
        if feedback.kind == "elsewhere":
            to = At(self._topics.feedback, (partition + 1) % self._form.partitions)
        if not self._log.reached(lambda: self._feed(partition, offset, feedback), (to,), "client without a leader"):
            return
        self.feedback_to_come -= 1
        ask = self.written[partition].asks[offset]
        if ask is None:
            return
        ref: str | None = f"{partition}-{offset}"
        request_id = f"q{ask.number}" if self._form.input == "oip" else f"{partition}-{offset}"
        match feedback.kind:
            case "id":
                ref = None
            case "orphan":
                ref, self.orphans = f"{partition}-{offset + 1_000_000}", self.orphans + 1
        value, headers = feedback_of(feedback.kind, ask, ref, request_id, self._form.combine == "mean")
        record = Record(value=value, key=b"k%d" % (ask.number % 97), headers=headers)
        written = self.written[partition]
        early = not written.answered[offset]
        kind = "early" if early else "late" if feedback.delay_ms > self._form.join_window_ms else feedback.kind
        self._count(f"feedback {kind}", 1)
        self._count("feedback duplicate", feedback.copies - 1)
        self._log.append(to, [Columns.of([record] * feedback.copies)])

    def all_below(self, partition: int, offset: int, skipped: Skipped | None) -> bool:
        """Whether every request below this offset, but for the skipped ones, has a terminal record."""
        written = self.written[partition]
        while written.prefix < min(offset, len(written.asks)) and written.answered[written.prefix]:
            written.prefix += 1
        end = min(offset, len(written.asks))  # no request stands behind these yet
        if written.prefix >= end:
            return True
        return skipped is not None and written.prefix >= skipped.start and all(written.answered[skipped.end : end])

    @property
    def satisfied(self) -> bool:
        """Everything was written, and every request has its terminal record."""
        return not self.to_come and not self.feedback_to_come and not any(w.missing for w in self.written)

    def _count(self, what: str, n: int) -> None:
        if n:
            self.counts[what] = self.counts.get(what, 0) + n


def form_words(form: Form) -> str:
    """The app in one line."""
    models = ", ".join(
        f"{m.name}@{m.version} in {m.pool} ({m.a_ms} + {m.b_ms} n ms, {m.batching})" for m in form.models
    )
    if form.deployed:
        models += "; after the deploy " + ", ".join(f"{m.name}@{m.version} in {m.pool}" for m in form.deployed)
    once = ("exactly once, " if form.exactly_once else "") + ("static members, " if form.static else "")
    if form.second is not None:
        models += f"; {form.second.name} in {form.second.pool} for second opinions"
    if form.baseline:
        poor = ", ".join(model.name for model in form.models if model.poor)
        models += f"; compared with {form.baseline}, {poor} is poor"
    kind = "fused" if form.fused else "split"
    return (
        f"{kind}, {once}{form.partitions} partitions, {form.policy}, combine {form.combine}, input {form.input}, "
        f"deadline {form.deadline_ms} ms{', with a default' if form.has_default else ''}; models {models}"
    )
