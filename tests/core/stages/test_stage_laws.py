"""The law driver can fail: a small right stage passes, and each planted fault is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from streamserve.core.bounds import Fill
from streamserve.core.effects import Effect, ForwardFeedback, Settle
from streamserve.core.events import Drain, Event, FeedbackFetched, Produced, ProduceFailed
from streamserve.core.records import FeedbackForward, FeedbackRecord
from streamserve.core.stage import Stage
from streamserve.testing.laws import LawBroken, StageLaws, check_laws, same
from tests.core.stages.learning_case import feedback, fetched
from tests.effort import examples

HOLD_MS = 10


class Holding:
    """Sends each record on after `HOLD_MS`, settles it when that is acknowledged."""

    def __init__(self) -> None:
        self.held: list[tuple[int, FeedbackRecord]] = []
        self.sent: dict[int, FeedbackRecord] = {}
        self.token = 0

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case FeedbackFetched():
                self.held += [(now_ms + HOLD_MS, record) for record in event.feedback.records]
            case Produced():
                effects += self.settle(self.sent.pop(event.token))
            case ProduceFailed():
                self.held.append((now_ms + HOLD_MS, self.sent.pop(event.token)))
            case Drain():
                self.held = []
            case _:
                pass
        due = [record for due_ms, record in self.held if due_ms <= now_ms]
        self.held = [held for held in self.held if held[0] > now_ms]
        return effects + [self.send(record) for record in due]

    def send(self, record: FeedbackRecord) -> Effect:
        self.token += 1
        self.sent[self.token] = record
        return ForwardFeedback(token=self.token, forward=FeedbackForward(to_partition=1, record=record))

    def settle(self, record: FeedbackRecord) -> list[Effect]:
        return [Settle(partition=0, offsets=np.array([record.offset]))]

    def next_deadline_ms(self) -> int | None:
        return min((due_ms for due_ms, _ in self.held), default=None)

    def commit_metadata(self, partition: int) -> str:
        return ""

    def fills(self) -> dict[str, Fill]:
        return {}

    takes_more = True

    @property
    def idle(self) -> bool:
        return not self.held and not self.sent


class SettlesBeforeTheAcknowledgement(Holding):
    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        early = [
            effect
            for sent in effects
            if isinstance(sent, ForwardFeedback)
            for effect in self.settle(sent.forward.record)
        ]
        return effects + early


class SettlesTwice(Holding):
    def settle(self, record: FeedbackRecord) -> list[Effect]:
        return super().settle(record) * 2


class SettlesNeverAgainAfterAFailure(Holding):
    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, ProduceFailed):
            del self.sent[event.token]
            return []
        return super().handle(event, now_ms)


class WakesInThePast(Holding):
    def next_deadline_ms(self) -> int | None:
        due_ms = super().next_deadline_ms()
        return None if due_ms is None else due_ms - HOLD_MS


class ActsEarly(Holding):
    """Law 2: the wait shrinks with every tick, as MLServer's did."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        return super().handle(event, now_ms + 3)


class WakesForNothing(Holding):
    """Asks to be woken each millisecond."""

    now_ms = 0

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.now_ms = now_ms
        return super().handle(event, now_ms)

    def next_deadline_ms(self) -> int | None:
        return self.now_ms + 1 if self.held else None


class RestartsItsTimer(Holding):
    """Law 5: the wait counts from the last arrival, so a trickle is held far too long (Bytewax's collect)."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, FeedbackFetched):
            self.held = [(now_ms + HOLD_MS, record) for _, record in self.held]
        return super().handle(event, now_ms)


class Unrepeatable(Holding):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Unrepeatable.made += 1
        self.token = Unrepeatable.made


class NeverIdle(Holding):
    takes_more = True

    @property
    def idle(self) -> bool:
        return False


def case_of(stage: type[Holding]) -> type[StageLaws]:
    class Case(StageLaws):
        def new_stage(self) -> Stage:
            return stage()

        def seeds(self) -> st.SearchStrategy[Any]:
            return st.integers(1, 2)

        def first_events(self) -> list[Event]:
            self.arrived: list[int] = []
            return []

        def event_of(self, seed: Any) -> Event:
            first = len(self.arrived)
            self.arrived += [self.now_ms] * seed
            return fetched(*(feedback(first + n, ref=(0, 0)) for n in range(seed)))

        def opens(self, event: Event) -> list[tuple[int, int]]:
            return (
                [(0, record.offset) for record in event.feedback.records] if isinstance(event, FeedbackFetched) else []
            )

        def carries(self, effect: Effect) -> list[tuple[int, int]]:
            return [(0, effect.forward.record.offset)] if isinstance(effect, ForwardFeedback) else []

        def check(self, event: Event, effects: list[Effect]) -> None:
            """Nobody is held longer than HOLD_MS after its arrival, if the stage is woken in time."""
            waiting = [due_ms - HOLD_MS for due_ms, _ in getattr(self.stage, "held", [])]
            if waiting and not isinstance(event, ProduceFailed) and not self.may_fail:
                assert all(due_ms <= max(self.arrived) + HOLD_MS for due_ms in waiting)
                oldest = min(record.offset for _, record in self.stage.held)  # type: ignore[attr-defined]
                assert min(due_ms for due_ms, _ in self.stage.held) <= self.arrived[oldest] + HOLD_MS  # type: ignore[attr-defined]

    return Case


def test_a_right_stage_passes() -> None:
    check_laws(case_of(Holding), examples=examples(50))


@pytest.mark.parametrize(
    ("faulty", "law"),
    [
        (SettlesBeforeTheAcknowledgement, "law 4"),
        (SettlesTwice, "law 4"),
        (SettlesNeverAgainAfterAFailure, "law 4"),
        (WakesInThePast, "law 1"),
        (ActsEarly, "law 2"),
        (WakesForNothing, "law 3"),
        (Unrepeatable, "law 6"),
        (NeverIdle, "law 4"),
    ],
)
def test_a_planted_fault_is_caught(faulty: type[Holding], law: str) -> None:
    with pytest.raises(LawBroken, match=law):
        check_laws(case_of(faulty), examples=200, shrink=False)


def test_a_broken_promise_is_caught() -> None:
    case = case_of(RestartsItsTimer)
    case.may_fail = False
    with pytest.raises(AssertionError):
        check_laws(case, examples=200, shrink=False)
    right = case_of(Holding)
    right.may_fail = False
    check_laws(right, examples=examples(50))


def test_same_compares_messages_deeply() -> None:
    settle = Settle(partition=0, offsets=np.array([1, 2]))
    assert same(settle, Settle(partition=0, offsets=np.array([1, 2])))
    assert not same(settle, Settle(partition=0, offsets=np.array([1, 3])))
    assert not same(settle, Settle(partition=0, offsets=np.array([1, 2], np.int32)))
    assert same([float("nan"), {"a": np.array([np.nan])}], [float("nan"), {"a": np.array([np.nan])}])
    assert not same({"a": 1}, {"a": True})
    assert same(np.array(["x", None], object), np.array(["x", None], object))
