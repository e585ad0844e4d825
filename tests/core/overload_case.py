"""More requests than the models of one process can answer, in simulated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamserve.core.effects import Count, Effect, EmitDeadLetters, EmitPredictions, RunBatch
from streamserve.core.events import BatchesFinished, BatchFinished, Produced, Tick
from streamserve.core.messages import Headers, Outputs
from streamserve.core.reasons import Outcome
from streamserve.core.stages.fused import FusedStage
from tests.core.kit import CODECS, START_MS, app, assigned, epochs, model_rules, requests, route

DEADLINE_MS = 200
FETCH_EVERY_MS = 3


@dataclass(kw_only=True)
class Source:
    """One client: Poisson arrivals while it is on."""

    per_ms: Callable[[int], float]
    key: bytes | None = None
    headers: Headers = ()
    good: int = 0
    sent: int = 0


@dataclass(kw_only=True)
class Overload:
    """One fused process whose models take `fixed_ms + row_ms * n`, one after the other on one core."""

    sources: Sequence[Source]
    models: int = 1
    fixed_ms: float = 2.0
    row_ms: float = 0.5
    weights: Sequence[float] = ()
    seconds: float = 6.0
    way_ms: int = 1
    """From the decision to the append."""
    good: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    shed: Counter[tuple[str, str]] = field(default_factory=Counter)
    good_by_second: Counter[int] = field(default_factory=Counter)
    members_by_second: Counter[int] = field(default_factory=Counter)
    most_open: int = 0

    def __post_init__(self) -> None:
        names = [f"m{i}@1" for i in range(self.models)]
        changes: dict[str, Any] = {"deadline_ms": DEADLINE_MS, "decide_early": False}
        rules = app(route(names, **changes), guard_ms=15)
        table = epochs(rules)
        table.known_until(START_MS * 10)
        self.stage = FusedStage(rules, model_rules(rules), CODECS, table)
        self._random = np.random.default_rng(5)
        self._of: list[tuple[Source, int]] = []
        self._running: list[tuple[float, float, RunBatch]] = []
        self._busy_until = 0.0

    def run(self) -> Overload:
        self.stage.handle(assigned(0), START_MS)
        acks: list[tuple[int, Produced]] = []
        ends_ms = int(self.seconds * 1000)
        for t in range(ends_ms + 2 * DEADLINE_MS):
            effects = self._arrive(t) if t % FETCH_EVERY_MS == 0 and t < ends_ms else []
            ended = [entry for entry in self._running if entry[0] <= t]
            self._running = [entry for entry in self._running if entry[0] > t]
            for _, took_ms, run in ended:
                outputs = Outputs(labels=np.zeros(len(run.inputs)))
                done = BatchFinished(batch=run.batch, outputs=outputs, duration_ms=took_ms)
                effects += self.stage.handle(BatchesFinished(batches=(done,)), START_MS + t)
            for produced in [produced for at, produced in acks if at <= t]:
                effects += self.stage.handle(produced, START_MS + t)
            acks = [entry for entry in acks if entry[0] > t]
            deadline = self.stage.next_deadline_ms()
            if deadline is not None and deadline <= START_MS + t:
                effects += self.stage.handle(Tick(), START_MS + t)
            for effect in effects:
                self._perform(effect, t, acks)
            self.most_open = max(self.most_open, len(self.stage._worker._table))
        return self

    def _arrive(self, t: int) -> list[Effect]:
        effects: list[Effect] = []
        for source in self.sources:
            n = int(self._random.poisson(source.per_ms(t) * FETCH_EVERY_MS))
            if not n:
                continue
            event = requests([b"x:1,1"] * n, first=len(self._of), append_ms=START_MS + t, headers=source.headers)
            event = replace(event, requests=replace(event.requests, keys=[source.key] * n))
            self._of += [(source, t)] * n
            source.sent += n
            effects += self.stage.handle(event, START_MS + t)
        return effects

    def _perform(self, effect: Effect, t: int, acks: list[tuple[int, Produced]]) -> None:
        match effect:
            case RunBatch():
                n = len(effect.inputs)
                took_ms = (self.fixed_ms + self.row_ms * n) * float(np.exp(self._random.normal(0, 0.1)))
                self._busy_until = max(self._busy_until, t) + took_ms
                self._running.append((self._busy_until, self._busy_until - t, effect))
            case EmitDeadLetters():
                acks.append(self._appended(t, effect.token))
            case EmitPredictions():
                acks.append(self._appended(t, effect.token))
                block = effect.predictions
                for offset, outcome, answered in zip(
                    block.offsets.tolist(), block.outcome.tolist(), block.answered.tolist(), strict=True
                ):
                    source, sent = self._of[offset]
                    self.reasons[str(Outcome(outcome))] += 1
                    if outcome in (Outcome.OK, Outcome.PARTIAL) and t + self.way_ms - sent <= DEADLINE_MS:
                        self.good += 1
                        source.good += 1
                        self.good_by_second[t // 1000] += 1
                        self.members_by_second[t // 1000] += answered.bit_count()
            case Count() if effect.what == "shed":
                self.shed[effect.model, effect.label] += effect.n

    def _appended(self, t: int, token: int) -> tuple[int, Produced]:
        return t + self.way_ms + 1, Produced(token=token, append_ms=START_MS + t + self.way_ms)

    @property
    def sent(self) -> int:
        return len(self._of)


def steady(per_s: float) -> Callable[[int], float]:
    return lambda _t: per_s / 1000
