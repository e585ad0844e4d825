"""Models of one lane in simulated time: calls of the thread and of the loop cost what they cost, nothing else does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from streamserve.core.desk import ModelRules
from streamserve.core.effects import Effect, EmitAnswers, RunBatch
from streamserve.core.events import BatchesFinished, BatchFinished, Event, Produced, Tick
from streamserve.core.lanes import LaneRules
from streamserve.core.messages import Outputs
from streamserve.core.reasons import PRESENT
from streamserve.core.stages.worker import WorkerStage
from tests.core import kit

GUARD_MS = 5


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request of one row."""

    at_ms: int
    model: int
    budget_ms: int


@dataclass(kw_only=True)
class Simulated:
    """A process whose calls take `fixed_ms + row_ms * n`; while the loop makes one it takes nothing in."""

    rules: LaneRules
    models: int = 20
    fixed_ms: float = 0.1
    row_ms: float = 0.05
    hand_over_ms: float = 0.0
    """From the loop to the thread and back."""
    own_thread: Sequence[int] = ()
    asked: Sequence[Asked] = ()
    answered_ms: dict[int, float] = field(default_factory=dict)
    """Place in `asked` -> when its answer was there."""
    most_rows: int = 0
    """In calls that had not ended, at most."""

    def run(self) -> Simulated:
        names = [f"m{i}@1" for i in range(self.models)]
        app = kit.app(*(kit.route([name], name=name, deadline_ms=60_000) for name in names), guard_ms=GUARD_MS)
        hosted = {
            name: ModelRules(model=name, lane=f"of {name}" if i in self.own_thread else "plans")
            for i, name in enumerate(names)
        }
        self.stage = WorkerStage(app, hosted, kit.CODECS, kit.epochs(app), lane_rules=self.rules)
        self.stage.handle(kit.assigned(0), kit.START_MS)
        self._lane_of = {name: rules.lane or "" for name, rules in hosted.items()}
        self._free_ms: dict[str, float] = {}
        self._ends: list[tuple[float, int, float, RunBatch]] = []
        self._rows = 0
        now_ms, first = 0.0, 0
        while first < len(self.asked) or self._ends:
            next_ms = min(
                self.asked[first].at_ms if first < len(self.asked) else np.inf,
                self._ends[0][0] if self._ends else np.inf,
            )
            now_ms = max(now_ms, next_ms)
            came = first
            while first < len(self.asked) and self.asked[first].at_ms <= now_ms:
                first += 1
            for i in range(came, first):
                one = self.asked[i]
                headers = (("ss-route", names[one.model].encode()), ("ss-deadline-ms", b"%d" % one.budget_ms))
                event = kit.requests([b"x:1"], first=i, append_ms=kit.START_MS + one.at_ms, headers=headers)
                now_ms = self._give(event, now_ms)
            ended = []
            while self._ends and self._ends[0][0] <= now_ms:
                _, _, took_ms, run = heappop(self._ends)
                self._rows -= len(run.inputs)
                outputs = Outputs(labels=np.zeros(len(run.inputs)))
                ended.append(BatchFinished(batch=run.batch, outputs=outputs, duration_ms=took_ms))
            if ended:
                now_ms = self._give(BatchesFinished(batches=tuple(ended)), now_ms)
            now_ms = self._give(Tick(), now_ms)
        return self

    def _give(self, event: Event, now_ms: float) -> float:
        """When the loop is free again."""
        todo: list[Effect] = self.stage.handle(event, kit.START_MS + int(now_ms))
        while todo:
            effect = todo.pop(0)
            match effect:
                case RunBatch():
                    took_ms = self.fixed_ms + self.row_ms * len(effect.inputs)
                    self._rows += len(effect.inputs)
                    self.most_rows = max(self.most_rows, self._rows)
                    lane = self._lane_of[effect.model]
                    if effect.here:
                        now_ms += took_ms
                        ends_ms = now_ms
                    else:
                        ends_ms = self._free_ms[lane] = max(self._free_ms.get(lane, 0.0), now_ms) + took_ms
                        ends_ms += self.hand_over_ms
                    heappush(self._ends, (ends_ms, effect.batch, took_ms, effect))
                case EmitAnswers():
                    for offset in effect.answers.offsets[effect.answers.missing == PRESENT].tolist():
                        self.answered_ms[offset] = now_ms
                    todo += self.stage.handle(Produced(token=effect.token), kit.START_MS + int(now_ms))
                case _:
                    pass
        return now_ms

    def latencies_ms(self, *, urgent: bool, below_ms: int = 1_000) -> list[float]:
        """Of requests with a budget below (`urgent`) or above that; infinite where it was not answered in time."""
        found = []
        for i, one in enumerate(self.asked):
            if (one.budget_ms < below_ms) == urgent:
                took_ms = self.answered_ms.get(i, np.inf) - one.at_ms
                found.append(took_ms if took_ms <= one.budget_ms else np.inf)
        return found
