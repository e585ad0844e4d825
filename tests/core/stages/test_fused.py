"""Laws of the fused stage on a tiny simulated log, with take-overs at any moment."""

from __future__ import annotations

import pytest

from streamserve.core.events import StatesKnownUntil
from streamserve.core.stage import Stage
from streamserve.core.stages.fused import FusedStage
from streamserve.testing.laws import check_laws
from tests.core import kit
from tests.core.stages.serving_case import CODECS, TIGHT, ServingLaws, model_rules, rules, rules_with_second
from tests.effort import examples


class FusedLaws(ServingLaws):
    def new_stage(self) -> Stage:
        return FusedStage(self.app, model_rules(), CODECS, self.epochs())

    def check_end(self) -> None:
        super().check_end()
        stage = self.stage
        assert not len(stage._worker._table)
        assert not len(stage._aggregator._window.table)
        assert not stage._aggregator._acks
        assert not stage._aggregator._window.words
        for desk in stage._worker._hosted.desks.values():
            assert not len(desk)
            if desk.running is None:
                assert not desk.parts
                assert not desk.rows_taken
                assert not desk.suspects


class WaitingLaws(FusedLaws):
    def new_stage(self) -> Stage:
        return FusedStage(self.app, model_rules(max_wait_ms=6, cache_bytes=4_000), CODECS, self.epochs())


class SmallBatchLaws(FusedLaws):
    """The head of a queue is often unusable as a whole."""

    def new_stage(self) -> Stage:
        return FusedStage(self.app, model_rules(batching="fixed", batch_size=2), CODECS, self.epochs())


class OverloadLaws(SmallBatchLaws):
    """Few of the queued requests can be answered in time."""

    row_ms = 12.0


class TightLaws(WaitingLaws):
    """Hardly anything may wait; members are shed, and what they would have said is missing."""

    app = rules(TIGHT)


class SecondLaws(WaitingLaws):
    """Answers that are not sure get a second opinion, in time or not."""

    app = rules_with_second()
    gives_probabilities = True


@pytest.mark.parametrize("case", [FusedLaws, WaitingLaws, SmallBatchLaws, OverloadLaws, TightLaws, SecondLaws])
def test_the_laws_hold(case: type[ServingLaws]) -> None:
    check_laws(case, examples=examples(40), steps=25)


def test_an_event_for_one_half_leaves_no_deadline_of_the_other_behind() -> None:
    rules = kit.app(guard_ms=10)
    w = kit.World(FusedStage(rules, kit.model_rules(rules), CODECS, kit.epochs(rules)), lambda _: None)
    w.feed(kit.assigned(0))
    w.feed(kit.requests([b":1,1"]))
    w.now_ms += 95
    w.feed(StatesKnownUntil(known_until_ms=0))
    assert w.outcome(0)[0] == "expired"
    w.now_ms += 10
    w.feed(StatesKnownUntil(known_until_ms=0))
    assert w.stage.next_deadline_ms() is None
    assert w.stage.idle
