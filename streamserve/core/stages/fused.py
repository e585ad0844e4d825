"""The fused stage: one pool hosts every model, so worker and aggregator run back to back in one process.

Consumed once, evaluated once, answered once. Answers go straight from the worker's hand to the aggregator's; only those
later than their prediction go to the answers topic, for the learner.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streamserve.core.admission import Admission
from streamserve.core.asked import by_requests
from streamserve.core.bounds import Fill
from streamserve.core.codec import InputCodec
from streamserve.core.desk import ModelRules
from streamserve.core.effects import Count, Effect, EmitAnswers
from streamserve.core.epochs import EpochTable
from streamserve.core.events import (
    AnswersFetched,
    Assigned,
    BatchesFinished,
    ContextsFetched,
    Drain,
    Event,
    ModelsHosted,
    Produced,
    ProduceFailed,
    Revoked,
    StatesFetched,
    StatesKnownUntil,
    Tick,
)
from streamserve.core.fast import every, indices, some
from streamserve.core.headroom import Headroom
from streamserve.core.holding import Holding
from streamserve.core.messages import Answers
from streamserve.core.routes import AppRules
from streamserve.core.slicing import take_answers, unwritten_answers
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.worker import WorkerStage


class FusedStage:
    """Promises those of both. An input is settled when its terminal record is acknowledged."""

    def __init__(
        self,
        rules: AppRules,
        models: Mapping[str, ModelRules],
        codecs: Mapping[str, InputCodec],
        epochs: EpochTable,
        *,
        pool: str = "",
    ) -> None:
        """`pool`: as of `WorkerStage`."""
        admission = Admission(rules, epochs)
        self._epochs = epochs
        headroom = Headroom(rules.guard_ms, rules.shortest_budget_ms)
        self._worker = WorkerStage(
            rules, models, codecs, epochs, admission, headroom=headroom, settles=False, pool=pool
        )
        self._aggregator = AggregatorStage(rules, epochs, codecs, admission, headroom=headroom)
        self._holding = Holding(self._worker.is_called_for)
        self._late: dict[int, Answers] = {}
        self._next_late = -1

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects = self._release(event, now_ms) if self._holding else []
        effects += self._handle(event, now_ms)
        # An event for one of the two stages must not leave the other's deadline behind.
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            effects += self._both(Tick(), now_ms)
        return effects

    def _release(self, event: Event, now_ms: int) -> list[Effect]:
        """What is held is heard of before a deadline fires, and before ownership changes."""
        deadline_ms = self.next_deadline_ms()
        is_due = deadline_ms is not None and deadline_ms <= now_ms
        if not is_due and not isinstance(event, Assigned | Revoked | ModelsHosted | Drain):
            return []
        answers = self._holding.release(now_ms)
        n = 0 if answers is None else sum(map(len, answers.blocks))
        return [Count(what="held", label="without_all", n=n), *self._apply(answers, now_ms)]

    def _handle(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case BatchesFinished():
                return self._hand_over(self._worker.handle(event, now_ms), now_ms)
            case StatesFetched() | ContextsFetched() | StatesKnownUntil():
                self._epochs.take(event)
                return []
            case ModelsHosted():
                return self._hand_over(self._worker.handle(event, now_ms), now_ms)
            case Produced() | ProduceFailed() if event.token < 0:
                return self._late_sent(event)
            case Produced() | ProduceFailed():
                return self._aggregator.handle(event, now_ms)
            case Revoked():
                self._forget_late(event.partitions)
        return self._both(event, now_ms)

    def _both(self, event: Event, now_ms: int) -> list[Effect]:
        effects = self._aggregator.handle(event, now_ms)
        return effects + self._hand_over(self._worker.handle(event, now_ms), now_ms)

    def _hand_over(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """The worker's effects, with its answers given to the aggregator instead of the log."""
        blocks = [effect.answers for effect in effects if isinstance(effect, EmitAnswers)]
        if not blocks:
            return effects
        rest: list[Effect] = [effect for effect in effects if not isinstance(effect, EmitAnswers)]
        return rest + self._apply(self._holding.take(blocks, now_ms), now_ms)

    def _apply(self, answers: AnswersFetched | None, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if answers is None:
            return effects
        for together in by_requests(answers.blocks):
            if self._epochs.routes[together[0].route_index].learns:
                unsettled = self._aggregator.unsettled(together[0].partition, together[0].offsets)
                if not every(unsettled):
                    for block in together:
                        self._emit_late(take_answers(block, indices(~unsettled)), effects)
        return effects + self._aggregator.handle(answers, now_ms)

    def _forget_late(self, partitions: tuple[int, ...]) -> None:
        for token, late in list(self._late.items()):
            kept = indices(~np.isin(late.partition, partitions))
            if len(kept):
                self._late[token] = take_answers(late, kept)
            else:
                del self._late[token]

    def _emit_late(self, late: Answers, effects: list[Effect]) -> None:
        if not some(late.missing == 0):
            return
        token = self._next_late
        self._next_late -= 1
        self._late[token] = late
        effects.append(EmitAnswers(token=token, answers=late))

    def _late_sent(self, event: Produced | ProduceFailed) -> list[Effect]:
        late = self._late.pop(event.token, None)
        effects: list[Effect] = []
        if late is not None and isinstance(event, ProduceFailed):
            self._emit_late(unwritten_answers(late, event.written), effects)
        return effects

    def next_deadline_ms(self) -> int | None:
        soonest = (self._worker.next_deadline_ms(), self._aggregator.next_deadline_ms(), self._holding.due_ms)
        return min((due_ms for due_ms in soonest if due_ms is not None), default=None)

    def commit_metadata(self, partition: int) -> str:
        return self._aggregator.commit_metadata(partition)

    @property
    def takes_more(self) -> bool:
        return self._worker.takes_more and self._aggregator.has_room

    def fills(self) -> Mapping[str, Fill]:
        """What is open follows from the queues and from what is not acknowledged; no answer is early here."""
        return self._worker.fills()

    @property
    def idle(self) -> bool:
        return self._worker.idle and self._aggregator.idle and not self._late and not self._holding
