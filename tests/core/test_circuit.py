"""A model that keeps failing is not called; its requests are answered without it, at once."""

from __future__ import annotations

import numpy as np
import pytest

from streamserve.core.circuit import (
    AWAY_BACK_OFF_MS,
    FIRST_BACK_OFF_MS,
    MOST_BACK_OFF_MS,
    OPENS_AFTER,
    TRIAL_REQUESTS,
    Circuit,
)
from streamserve.core.effects import Count, RunBatch
from streamserve.core.events import BatchFinished
from streamserve.core.messages import Outputs
from streamserve.core.reasons import Missing
from streamserve.core.stages.fused import FusedStage
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, finished, model_rules, requests, route


def test_it_opens_after_calls_that_fail_in_a_row_and_backs_off() -> None:
    circuit, now = Circuit(), 0
    for _ in range(OPENS_AFTER - 1):
        assert not circuit.failed(now)
    assert not circuit.went_well()
    for _ in range(OPENS_AFTER - 1):
        assert not circuit.failed(now)
    assert circuit.lets_through(now) is None
    assert circuit.failed(now)
    waited = []
    for _ in range(12):
        start = now
        while not circuit.lets_through(now):
            now += 1
        waited.append(now - start)
        assert circuit.lets_through(now) == TRIAL_REQUESTS
        circuit.tries()
        assert circuit.lets_through(now) == 0
        assert not circuit.failed(now)
    assert waited[:3] == [FIRST_BACK_OFF_MS, 2 * FIRST_BACK_OFF_MS, 4 * FIRST_BACK_OFF_MS]
    assert waited[-1] == MOST_BACK_OFF_MS
    assert circuit.went_well()
    assert circuit.lets_through(now) is None
    assert not circuit.is_open


def test_what_is_away_opens_it_at_once() -> None:
    circuit = Circuit()
    assert circuit.failed(0, away=True)
    for now in range(0, 5 * AWAY_BACK_OFF_MS, AWAY_BACK_OFF_MS):  # it costs nothing to ask: no longer each time
        assert circuit.lets_through(now + AWAY_BACK_OFF_MS - 1) == 0
        assert circuit.lets_through(now + AWAY_BACK_OFF_MS) == TRIAL_REQUESTS
        circuit.tries()
        assert not circuit.failed(now + AWAY_BACK_OFF_MS, away=True)


class Bench:
    """Two models on a route; `a` does what `mode` says."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        rules = app(route(["a@1", "b@1"], deadline_ms=1_000, decide_early=False))
        stage = FusedStage(rules, model_rules(rules), CODECS, epochs(rules))
        self.world = World(stage, self.run)
        self.world.feed(assigned(0))
        self.sent = 0

    def run(self, call: RunBatch) -> BatchFinished:
        n = len(call.inputs)
        if call.model == "b@1" or self.mode == "good":
            return finished(call)
        if self.mode == "raises":
            return BatchFinished(batch=call.batch, outputs=None, error="ValueError: no", exception="ValueError")
        if self.mode == "away":
            return BatchFinished(batch=call.batch, outputs=None, error="its process has ended", away=True)
        if self.mode == "refuses":
            errors = dict.fromkeys(range(n), "no")
            return BatchFinished(batch=call.batch, outputs=Outputs(labels=np.zeros(n), row_errors=errors))
        return BatchFinished(batch=call.batch, outputs=Outputs(labels=np.full(n, np.nan)))

    def send(self, n: int = 6) -> None:
        self.world.feed(requests([b":1,1"] * n, first=self.sent, append_ms=self.world.now_ms))
        self.sent += n
        self.world.now_ms += 10

    def calls_of_a(self) -> int:
        return sum(call.model == "a@1" for call in self.world.batches)

    def missing_of_a(self, offset: int) -> Missing:
        block, i = self.world.records[0, offset]
        return Missing(int(block.missing[i][0]))

    def counted(self, label: str) -> int:
        return sum(e.n for e in self.world.other if isinstance(e, Count) and (e.what, e.label) == ("circuit", label))


@pytest.mark.parametrize("mode", ["raises", "refuses", "not finite", "away"])
def test_requests_are_answered_without_it_and_nothing_is_dead_lettered(mode: str) -> None:
    bench = Bench(mode)
    for _ in range(40):
        bench.send()
    world = bench.world
    assert bench.counted("opened") == 1
    assert len(world.records) == bench.sent
    assert not world.letters
    calls = bench.calls_of_a()
    assert bench.missing_of_a(bench.sent - 1) == Missing.CIRCUIT_OPEN
    assert world.outcome(bench.sent - 1)[0] == "partial"
    bench.send()
    assert bench.calls_of_a() == calls  # it is left alone
    world.now_ms += 60_000
    bench.send(20)  # a trial of a few; the others do not wait for it
    assert bench.calls_of_a() > calls
    assert bench.missing_of_a(bench.sent - 1) == Missing.CIRCUIT_OPEN
    bench.mode = "good"
    world.now_ms += 60_000
    bench.send(20)
    bench.send(20)
    assert bench.counted("closed") == 1
    assert bench.missing_of_a(bench.sent - 1) == Missing.PRESENT
    assert world.outcome(bench.sent - 1)[0] == "ok"


def test_while_a_trial_runs_others_are_answered_at_once() -> None:
    bench = Bench("away")
    bench.send()
    held: list[RunBatch] = []
    run = bench.run

    def hold(call: RunBatch) -> BatchFinished | None:
        if call.model == "a@1":
            held.append(call)
            return None
        return run(call)

    bench.world.run = hold
    bench.world.now_ms += 60_000
    bench.send(1)
    assert len(held) == 1
    bench.send(3)
    assert [bench.missing_of_a(offset) for offset in range(7, 10)] == [Missing.CIRCUIT_OPEN] * 3
    assert (0, 6) not in bench.world.records
    bench.world.feed(finished(held[0]))
    assert bench.missing_of_a(6) == Missing.PRESENT


def _poison(row: float, left: list[int]) -> World:
    """One model that raises as long as such a row is in its batch; `left`: how often, at most."""
    rules = app(route(["a@1"], deadline_ms=1_000))

    def run(call: RunBatch) -> BatchFinished:
        if (call.inputs[:, 0] == row).any() and left[0]:
            left[0] -= 1
            return BatchFinished(
                batch=call.batch, outputs=None, error="ValueError: 13", exception="builtins.ValueError", stack="line 1"
            )
        return finished(call)

    world = World(FusedStage(rules, model_rules(rules), CODECS, epochs(rules)), run)
    world.feed(assigned(0))
    return world


def test_a_request_that_fails_alone_is_tried_once_more() -> None:
    world = _poison(13.0, [1])
    world.feed(requests([b":13,1"]))
    assert world.outcome(0) == ("ok", "all_answered")
    assert not world.letters


def test_a_dead_letter_tells_the_exception_its_stack_and_the_calls() -> None:
    world = _poison(13.0, [10**9])
    world.feed(requests([b":1,1"] * 3 + [b":13,1"]))
    assert [world.outcome(offset)[0] for offset in range(4)] == ["ok", "ok", "ok", "error"]
    (letters,) = world.letters
    failure = letters.failures[0]
    assert (failure.exception, failure.stack, failure.model) == ("builtins.ValueError", "line 1", "a@1")
    assert failure.attempts == 3  # with four, with two, alone
    assert len(world.stage._aggregator._window.failures) == 0
    assert world.now_ms == START_MS


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_a_wrong_number_of_rows_harms_no_follower(rows: int) -> None:
    """Equal requests wait for the one that is called; what it returned must not be taken apart for them."""
    rules = app(route(["a@1"], deadline_ms=1_000))
    answers: list[RunBatch] = []

    def run(call: RunBatch) -> None:
        answers.append(call)

    stage = FusedStage(rules, model_rules(rules, cache_bytes=10_000, max_batch=8), CODECS, epochs(rules))
    world = World(stage, run)
    world.feed(assigned(0))
    sent = 0
    for _ in range(8):
        world.feed(requests([b":%d,1" % (i % 5) for i in range(9)], first=sent, append_ms=world.now_ms))
        sent += 9
        while answers:
            call = answers.pop()
            outputs = Outputs(labels=np.zeros(rows))
            world.feed(BatchFinished(batch=call.batch, outputs=outputs, duration_ms=1.0))
    world.at(2_000)
    assert len(world.records) == sent


class TwoForms:
    """One model that raises for rows of `bad` numbers, and for any while it is `broken`."""

    def __init__(self, *, refuses: bool = False) -> None:
        rules = app(route(["a@1"], deadline_ms=1_000))
        self.broken, self.refuses, self.sent = False, refuses, 0
        self.world = World(FusedStage(rules, model_rules(rules), CODECS, epochs(rules)), self.run)
        self.world.feed(assigned(0))

    def run(self, call: RunBatch) -> BatchFinished:
        n = len(call.inputs)
        if not self.broken and call.inputs.shape[1] == 1:
            return finished(call)
        if self.refuses:
            errors = dict.fromkeys(range(n), "no")
            return BatchFinished(batch=call.batch, outputs=Outputs(labels=np.zeros(n), row_errors=errors))
        return BatchFinished(batch=call.batch, outputs=None, error="ValueError: no", exception="ValueError")

    def send(self, *values: bytes) -> list[tuple[str, str]]:
        self.world.feed(requests(list(values), first=self.sent, append_ms=self.world.now_ms))
        self.sent += len(values)
        self.world.now_ms += 10
        return [self.world.outcome(offset) for offset in range(self.sent - len(values), self.sent)]

    def opened(self) -> int:
        return sum(isinstance(e, Count) and (e.what, e.label) == ("circuit", "opened") for e in self.world.other)


@pytest.mark.parametrize("refuses", [False, True], ids=["raises", "refuses"])
@pytest.mark.parametrize("at_once", [1, 3, 9, 40])
def test_a_caller_with_rows_of_a_wrong_form_shuts_no_model_for_others(at_once: int, refuses: bool) -> None:
    bench = TwoForms(refuses=refuses)
    assert bench.send(b":1") == [("ok", "all_answered")]
    for _ in range(20):
        assert bench.send(*[b":1,1,1"] * at_once) == [("error", "refused")] * at_once
    assert bench.send(b":1") == [("ok", "all_answered")]
    assert bench.opened() == 0
    letters = [ref for block in bench.world.letters for ref in block.offsets.tolist()]
    assert letters == list(range(1, 20 * at_once + 1))


def test_rows_of_a_wrong_form_hold_no_broken_model_open() -> None:
    bench = TwoForms()
    bench.send(b":1")
    bench.broken = True
    for _ in range(12):
        bench.send(b":1", b":1,1,1", b":1")
    assert bench.opened() == 1
    bench.broken = False
    bench.world.now_ms += 60_000
    assert bench.send(b":1,1,1") == [("error", "refused")]  # as a trial it says nothing of the model
    assert bench.send(b":1") == [("ok", "all_answered")]
