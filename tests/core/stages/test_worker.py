"""Laws of the worker stage."""

from __future__ import annotations

import pytest

from streamserve.core.effects import Effect, EmitAnswers, RunBatch
from streamserve.core.events import BatchesFinished, Event, Produced, ProduceFailed, RequestsFetched, Revoked, Tick
from streamserve.core.slicing import joined_requests
from streamserve.core.stage import Stage
from streamserve.core.stages.worker import WorkerStage
from streamserve.testing.laws import check_laws
from tests.core import kit
from tests.core.stages.serving_case import (
    CODECS,
    MODELS,
    PLAIN,
    RAISES,
    TIGHT,
    Partition,
    ServingLaws,
    model_rules,
    rules,
    rules_with_second,
)
from tests.effort import examples


class WorkerLaws(ServingLaws):
    def new_stage(self) -> Stage:
        return WorkerStage(self.app, model_rules(), CODECS, self.epochs())

    def check_answered(self, number: int, p: Partition) -> None:
        """It writes no terminal records."""

    def check(self, event: Event, effects: list[Effect]) -> None:
        super().check(event, effects)
        desks = self.stage._hosted.desks.values()
        called = {desk.running.number: desk for desk in desks if desk.running is not None}
        assert called == self.stage._answering._running, "an ended call would not find its model, or be kept for ever"

    def check_end(self) -> None:
        assert not len(self.stage._sending)
        assert not len(self.stage._table)


class OverloadLaws(WorkerLaws):
    """Few of the queued requests can be answered in time."""

    row_ms = 12.0

    def new_stage(self) -> Stage:
        rules = model_rules(batching="fixed", batch_size=2)
        return WorkerStage(self.app, rules, CODECS, self.epochs())


class TightLaws(OverloadLaws):
    """Hardly anything may wait."""

    app = rules(TIGHT)


class SecondLaws(OverloadLaws):
    """Answers that are not sure get a second opinion, and there is hardly time for one."""

    app = rules_with_second()
    gives_probabilities = True


@pytest.mark.parametrize("case", [WorkerLaws, OverloadLaws, TightLaws, SecondLaws])
def test_the_laws_hold(case: type[ServingLaws]) -> None:
    check_laws(case, examples=examples(40), steps=25)


def test_a_failed_send_of_several_partitions_is_made_again_for_those_still_owned() -> None:
    """One of the block's requests had been given up at its deadline: nobody waits for its acknowledgement."""
    rules = kit.app()
    stage = WorkerStage(rules, kit.model_rules(rules), CODECS, kit.epochs(rules))
    stage.handle(kit.assigned(0, 1), kit.START_MS)
    hurried = kit.requests([b":1,1"], partition=0, headers=(("ss-deadline-ms", b"50"),))
    both = joined_requests([hurried.requests, kit.requests([b":2,2"], partition=1).requests])
    (call,) = kit.of(stage.handle(RequestsFetched(requests=both), kit.START_MS), RunBatch)
    stage.handle(Tick(), kit.START_MS + 60)
    ended = BatchesFinished(batches=(kit.finished(call),))
    (sent,) = kit.of(stage.handle(ended, kit.START_MS + 70), EmitAnswers)
    assert sent.answers.partition.tolist() == [0, 1]
    stage.handle(Revoked(partitions=(0,)), kit.START_MS + 70)
    (again,) = kit.of(stage.handle(ProduceFailed(token=sent.token, error="no"), kit.START_MS + 70), EmitAnswers)
    assert (again.answers.partition.tolist(), again.answers.labels.tolist()) == ([1], [2])
    effects = stage.handle(Produced(token=again.token), kit.START_MS + 71)
    assert kit.settled(effects) == [0]
    assert stage.idle


def test_a_large_request_that_is_shed_while_a_part_of_it_is_run_is_not_answered_again_when_that_fails() -> None:
    laws = TightLaws()
    for event in laws.first_events():
        laws.give(event)
    raises = [RAISES] + [PLAIN] * 8  # one row more than a call may have
    laws.give(laws.event_of(("requests", 0, [(raises, "r", 0, 1)], 1)))
    laws.give(laws.event_of(("requests", 0, [([PLAIN], "r", 20, 1)] * 3, 3)))
    shed = [
        emit for emit in laws.unacknowledged.values() if isinstance(emit, EmitAnswers) and 0 in emit.answers.offsets
    ]
    assert {emit.answers.model for emit in shed} == set(MODELS), "the queue was too short for it"
    laws.teardown()
