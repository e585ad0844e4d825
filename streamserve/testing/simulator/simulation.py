"""One run of one plan: the world is built, the faults happen, and it goes on until all is settled or time is over."""

from __future__ import annotations

import gc
import hashlib
import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from streamserve.kafka.ports import At, Committed
from streamserve.kafka.sweeper import Skipped
from streamserve.kafka.takeover import read_metadata
from streamserve.testing.simulator.app import APP, GUARD_MS, models_of, settings_of, topics
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.clock import WORLD_EPOCH_MS
from streamserve.testing.simulator.groups import Group
from streamserve.testing.simulator.models import SimulatedModel, Weather
from streamserve.testing.simulator.plan import Plan
from streamserve.testing.simulator.processes import Environment, SimulatedProcess
from streamserve.testing.simulator.trouble import Trouble
from streamserve.testing.simulator.workload import Clients
from streamserve.testing.simulator.world import World

#: After the last planned thing a run has so long to settle.
SETTLE_MS = 30_000.0
SLOT_MS = 50.0
#: How far a process may be wrong about the broker's time.
_CLOCK_MS = 6.0
_STOPPED_LOOK_MS = 100.0
#: How long after what becomes of a send its effects may still be seen.
_SEND_TROUBLE_MS = 2_500.0


def settle_ms(plan: Plan) -> float:
    """Feedback that names no prediction may wait for ten seconds in each partition."""
    return SETTLE_MS + 12_000.0 * plan.form.partitions


@dataclass(slots=True, kw_only=True)
class Commit:
    """One accepted commit."""

    at_ms: float
    group: str
    partition: int
    offset: int
    passes_open: bool = False
    """Of the terminal group: a request below it had no terminal record in the log, and was not noted as skipped."""
    skipped: Skipped | None = None


@dataclass(slots=True, kw_only=True)
class BadCut:
    """A call for a row that could not make it."""

    at_ms: float
    process: str
    model: str
    input: int
    short_ms: float


@dataclass(slots=True)
class Seen:
    """What was noted while the run went on."""

    story: list[tuple[float, str, str]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    bad_slots: set[int] = field(default_factory=set)
    """Slots of `SLOT_MS` in which not every partition was served as it should be."""
    slow_slots: set[int] = field(default_factory=set)
    """Slots in which sends could not arrive, or a process could not send."""
    leaderless: list[tuple[float, float]] = field(default_factory=list)
    """From the death of a leader until everybody has seen what was appended meanwhile."""
    cuts: int = 0
    judged_cuts: int = 0
    bad_cuts: list[BadCut] = field(default_factory=list)
    failed_sends: set[tuple[str, At]] = field(default_factory=set)
    memory_looks: int = 0
    over_memory: list[str] = field(default_factory=list)
    settled: bool = False
    settled_ms: float = 0.0


class Simulation:
    """Everything of one run; `run` once, then look."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        form = plan.form
        self.world = World(plan.seed ^ 0x5EED)
        self.topics, names, compacted = topics(form)
        self.log = SimulatedLog(self.world, names, compacted)
        self.weather = Weather()
        self.env = Environment(
            world=self.world,
            log=self.log,
            settings=[settings_of(form, variant) for variant in range(len(form.variants))],
            models=[models_of(form, variant) for variant in range(len(form.variants))],
            weather=self.weather,
        )
        self.env.static = form.static
        self.seen = Seen()
        self.clients = Clients(plan, self.log, self.topics)
        self.processes = {process.name: SimulatedProcess(process, self.env, self.told) for process in form.processes}
        for process in self.processes.values():
            process.effects.used = partial(self.used, process)
            process.effects.slow = partial(self._answer_is_slow, process)
            process.effects.failed = partial(self._failed, process)
        self.env.coordinator.observer = self._committed
        self.weather.used = self.count
        self.weather.cut = self._cut
        self.clients.held_up = lambda from_ms, to_ms: self.bad(from_ms - 200, to_ms + 300)
        self.trouble = Trouble(self)
        self.left_of_outages: dict[int, Skipped] = {}
        """By partition, what the newest commit says that is to be swept."""
        self._last_call: dict[tuple[str, str], float] = {}
        self._calls: dict[tuple[str, str], int] = {}
        self.terminal_group = f"{APP}.terminal"
        pools = () if form.fused else sorted({model.pool for model in form.models})
        groups = [self.terminal_group, *(f"{APP}.pool.{pool}" for pool in pools)]
        self._to_be_served = groups
        self._requests = frozenset(self.log.partitions(self.topics.requests))

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        plan, world = self.plan, self.world
        late = {fault.process for fault in plan.faults if fault.kind == "start"}
        with _quietly():
            for process in self.processes.values():
                if process.form.name not in late:
                    world.at(world.delay(0, 30), process.start)
            for fault in plan.faults:
                world.at(fault.at_ms, self.trouble.happen, fault)
            last = max(
                [burst.at_ms + burst.held_ms for burst in plan.bursts]
                + [fault.at_ms + fault.for_ms for fault in plan.faults]
            )
            world.after(SLOT_MS, self._look)
            try:
                world.run(last + settle_ms(plan))
            finally:
                for process in self.processes.values():
                    process.bury()

    def _look(self) -> None:
        """Every slot: is every partition served, is anything held that should not be, is all over?"""
        if not self._served():
            slot = int(self.world.now / SLOT_MS)
            self.seen.bad_slots.update((slot - 1, slot))
        slot_number = int(self.world.now / SLOT_MS)
        if slot_number % 20 == 0:
            self._look_at_memory()
        if slot_number % 4 == 0 and self.clients.satisfied and self._is_over():
            self.seen.settled, self.seen.settled_ms = True, self.world.now
            self.world.over = True
        self.world.after(SLOT_MS, self._look)

    def _served(self) -> bool:
        if self.world.now < max(self.log.away_until, self.log.leaders.fenced_at):
            return False
        served: dict[str, set[At]] = {}
        for process in self.processes.values():
            if not process.alive or process.connections is None or process.machine is None or process.machine.stopped:
                continue
            for reader in process.connections.groups:
                if reader.owned:
                    served.setdefault(reader.group_name, set()).update(reader.owned)
        return all(group in served and served[group] >= self._requests for group in self._to_be_served)

    def _is_over(self) -> bool:
        if self.left_of_outages or not all(process.idle for process in self.processes.values()):
            return False
        for group in self.env.coordinator.groups.values():
            for at in self.log.partitions(group.topic):
                end = self.log.partition(at).end_of_records
                if end and (at not in group.commits or group.commits[at].offset < end):
                    return False
        return True

    def _look_at_memory(self) -> None:
        """Open in a process: at most what is not answered, and what was written within the longest deadline."""
        now = self.world.clock.broker_ms()
        bound = 0
        for number, written in enumerate(self.clients.written):
            stamps = self.log.partition(At(self.topics.requests, number)).stamps
            recent = len(stamps) - bisect_right(stamps, now - 6_000)
            answers = self.log.partition(At(self.topics.predictions, number)).stamps
            recent += len(answers) - bisect_right(answers, now - _SEND_TROUBLE_MS)  # it may not have heard of these
            bound += recent + written.missing + len(written.deleted)  # whoever had read them goes on with them
        for process in self.processes.values():
            if process.form.role != "learn" and process.alive:
                self.seen.memory_looks += 1
                if process.open_requests > bound:
                    words = f"{process.form.name} holds {process.open_requests} requests, {bound} can be open"
                    self.seen.over_memory.append(words)

    # -- what is noted ---------------------------------------------------------------------------------------------

    def told(self, who: str, words: str) -> None:
        self.seen.story.append((self.world.now, who, words))
        if words.startswith("owns"):
            self.bad(self.world.now - 600, self.world.now + 200)

    def bad(self, from_ms: float, to_ms: float) -> None:
        self.seen.bad_slots.update(range(int(from_ms / SLOT_MS), int(to_ms / SLOT_MS) + 1))

    def slow(self, from_ms: float, to_ms: float) -> None:
        self.bad(from_ms, to_ms)
        self.seen.slow_slots.update(range(int(from_ms / SLOT_MS), int(to_ms / SLOT_MS) + 1))

    def count(self, what: str) -> None:
        self.seen.faults[what] = self.seen.faults.get(what, 0) + 1

    def used(self, process: SimulatedProcess, fate: str) -> None:
        self.count(fate)
        self.told("broker", f"answers {process.form.name} with: {fate}")
        self.slow(self.world.now, self.world.now + _SEND_TROUBLE_MS)

    def _answer_is_slow(self, process: SimulatedProcess, for_ms: float) -> None:
        self.count("slow answer")
        self.told("broker", f"takes {for_ms:.0f} ms to answer {process.form.name}")
        self.slow(self.world.now, self.world.now + for_ms + 600)

    def _failed(self, process: SimulatedProcess, at: At) -> None:
        self.seen.failed_sends.add((process.life, at))

    def _committed(self, group: Group, at: At, committed: Committed) -> None:
        skipped, passes = None, False
        if group.name == self.terminal_group:
            skipped = Skipped.read(read_metadata(committed.metadata))
            passes = not self.clients.all_below(at.partition, committed.offset, skipped)
            self._note_skipped(at.partition, skipped)
        self.seen.commits.append(
            Commit(
                at_ms=self.world.now,
                group=group.name,
                partition=at.partition,
                offset=committed.offset,
                passes_open=passes,
                skipped=skipped,
            )
        )

    def _note_skipped(self, number: int, skipped: Skipped | None) -> None:
        before = self.left_of_outages.get(number)
        if skipped is None:
            self.left_of_outages.pop(number, None)
            return
        self.left_of_outages[number] = skipped
        if before is None or skipped.end > before.end:
            self.count("old requests passed over")
            self.told("log", f"has requests {number}-{skipped.start} to before {skipped.end} to be swept")

    def _cut(self, model: SimulatedModel, process: str, inputs: object, now: float, odd: bool) -> None:
        """Judged against what the model takes at least, with the share that an idle time leaves of a prediction."""
        rows = inputs[:, 0].astype(int).tolist()  # type: ignore[index]
        key = (f"{process}#{self.processes[process].lives}", model.model)
        idle_s = (now - self._last_call.get(key, now)) / 1000
        self._last_call[key] = now
        self._calls[key] = self._calls.get(key, 0) + 1
        self.seen.cuts += 1
        if odd or self._calls[key] < 5 or any(key[0].startswith(name) for name, _ in self.weather.modes):
            return
        self.seen.judged_cuts += 1
        least_ms = GUARD_MS - _CLOCK_MS + 0.7 * (model.a_ms + model.b_ms) * 0.5 ** max(0.0, idle_s)
        due = self.clients.deadline_of_input
        for given in rows:
            short_ms = WORLD_EPOCH_MS + now + least_ms - due.get(given, 1 << 60)
            if short_ms > 0:
                bad = BadCut(at_ms=now, process=process, model=model.model, input=given, short_ms=short_ms)
                self.seen.bad_cuts.append(bad)

    # -- what invariants ask ---------------------------------------------------------------------------------------

    def lost_an_acknowledgement(self, life: str, at: At) -> bool:
        """Whether a send of this process's life to this partition failed, or nobody knows."""
        return (life, at) in self.seen.failed_sends

    def wrote_as_zombie(self, life: str, partition: int, at_ms: float) -> bool:
        """Whether at that time another was the owner already."""
        given = [(at, who) for at, who in self.env.ownerships.get((self.terminal_group, partition), []) if at <= at_ms]
        return bool(given) and given[-1][1] != life

    def faults(self) -> dict[str, int]:
        """Everything that went wrong or was odd, by kind."""
        groups = self.env.coordinator.groups.values()
        found = self.seen.faults | self.clients.counts | self.log.counts
        found["session expired"] = sum(group.expired for group in groups)
        found["commit refused"] = sum(group.refused_commits for group in groups)
        found["static member returned"] = sum(group.returned for group in groups)
        found["rebalance"] = sum(max(0, group.rebalances - 1) for group in groups)
        found["fetch of a prefix"] = self.log.prefix_fetches
        found |= {name: self.env.counts.get(name, 0) for name in ("shut out by a fence", "partition taken anew")}
        if self.env.transactions is not None:
            found["fence raised"] = self.env.transactions.fences
        found["machine with another clock"] = sum(1 for process in self.plan.form.processes if process.skew_ms)
        return found

    def forget(self) -> None:
        """Once it has been judged: what is large is freed at once, not when the collector comes."""
        self.world.forget()
        self.log.forget()
        for process in self.processes.values():
            process.forget()

    # -- for comparison --------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """Of everything that was written, committed and told: equal runs, equal digests."""
        digest = hashlib.blake2b(digest_size=16)
        for topic in sorted(vars_of(self.topics)):
            for at in self.log.partitions(topic):
                part = self.log.partition(at)
                digest.update(repr((at, part.offsets, part.stamps, part.keys, part.values, part.headers)).encode())
        for commit in self.seen.commits:
            digest.update(repr((commit.at_ms, commit.group, commit.partition, commit.offset)).encode())
        digest.update(repr(self.seen.story).encode())
        return digest.hexdigest()


def vars_of(names: object) -> list[str]:
    return [str(getattr(names, slot)) for slot in names.__dataclass_fields__]  # type: ignore[attr-defined]


@contextmanager
def _quietly() -> Iterator[None]:
    """No log lines of a hundred processes, no collector that walks them."""
    enabled = gc.isenabled()
    gc.disable()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        if enabled:
            gc.enable()
