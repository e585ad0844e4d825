"""Batch size: the laws of each batcher, and a small deterministic simulation of one worker in overload."""

from __future__ import annotations

import math
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.batching import Aimd, Arrivals, Auto, CostModel, Fixed, Load, Quantile, hopeless, make_batcher
from streamserve.core.desk import RETRY_HALVING_MS, Desk, ModelRules
from streamserve.core.effects import EmitAnswers, RunBatch
from streamserve.core.events import BatchesFinished, BatchFinished
from streamserve.core.messages import Outputs
from streamserve.core.reasons import Missing
from streamserve.core.stages.worker import WorkerStage
from streamserve.core.table import Table
from tests.core.kit import CODECS, START_MS, app, assigned, epochs, model_rules, requests, route

SLO_MS = 50.0


def service_ms(rows: int, call: int) -> float:
    """4 + 0.25 n, with noise of 8 % and a spike in a hundred calls, from the call's number alone."""
    noise = 1.0 + 0.08 * math.sin(call * 12.9898)
    return (4 + 0.25 * rows) * noise * (3.0 if call % 100 == 57 else 1.0)


def simulate(batching: str, rate_at, seconds: float, slow=lambda _now: 1.0) -> tuple[float, int, Counter[str]]:
    """(share of requests late or shed, served in time, reasons of the sizes). The queue is in order of arrival."""
    batcher, arrivals = make_batcher(batching, 512, 64), Arrivals()
    queue: deque[float] = deque()
    now = credit = 0.0
    missed = served = calls = 0
    reasons: Counter[str] = Counter()

    def pass_time(until: float) -> None:
        nonlocal now, credit
        while now < until:
            now += 1.0
            credit += rate_at(now) / 1000
            n = int(credit)
            credit -= n
            queue.extend([now] * n)
            arrivals.add(n, int(now))

    pass_time(1)
    while now < seconds * 1000:
        while queue and queue[0] + SLO_MS - now < batcher.predict_ms(1):
            queue.popleft()
            missed += 1
        if not queue:
            pass_time(now + 1)
            continue
        load = Load(
            queued_rows=len(queue),
            backlog_rows=0,
            rows_per_ms=arrivals.rows_per_ms(int(now)),
            slack_ms=queue[0] + SLO_MS - now,
            budget_ms=SLO_MS,
        )
        size = batcher.size(load)
        slacks = np.array(queue) + SLO_MS - now
        for _ in range(hopeless(slacks, size.rows, batcher.predict_ms)):
            queue.popleft()
            missed += 1
        rows = min(size.rows, len(queue))
        reasons[size.why] += 1
        batch = [queue.popleft() for _ in range(rows)]
        calls += 1
        took = service_ms(rows, calls) * slow(now)
        pass_time(now + took)
        batcher.observe(rows, took, size.why != "drained")
        in_time = sum(now - came <= SLO_MS for came in batch)
        served += in_time
        missed += rows - in_time
    return missed / (missed + served), served, reasons


def test_auto_does_not_spiral_down_in_sustained_overload() -> None:
    missed, served, reasons = simulate("auto", lambda _: 5_000, 5)
    assert missed < 0.45  # 0.2 could not be served by anybody, 0.37 in the note's simulation
    assert served > 5 * 2_500
    assert reasons["floor"] > 0


def test_auto_serves_what_bursts_of_twice_the_capacity_leave_possible() -> None:
    missed, _, _ = simulate("auto", lambda now: 8_000 if now % 2_000 < 500 else 1_000, 6)
    assert missed < 0.45


def test_auto_misses_next_to_nothing_below_capacity_and_adapts_to_a_slower_model() -> None:
    calm, _, reasons = simulate("auto", lambda _: 1_500, 4)
    assert calm < 0.03
    assert reasons["drained"] > 100
    slower, _, _ = simulate("auto", lambda _: 1_000, 6, slow=lambda now: 2.0 if 2_000 < now < 4_000 else 1.0)
    assert slower < 0.1


def load(queued: int, slack: float = 1e9, rate: float = 0.0, budget: float = 1e9, backlog: int = 0) -> Load:
    return Load(queued_rows=queued, backlog_rows=backlog, rows_per_ms=rate, slack_ms=slack, budget_ms=budget)


def known_auto() -> Auto:
    auto = Auto(100)
    for rows in (1, 10, 50, 100) * 20:
        auto.observe(rows, 4 + 0.25 * rows, True)
    return auto


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (load(500), "cap"),
        (load(7), "drained"),
        (load(500, slack=10.0), "slack"),
        (load(500, slack=6.0, rate=3.0, budget=60.0), "floor"),
    ],
)
def test_each_reason_has_its_case(seen: Load, why: str) -> None:
    size = known_auto().size(seen)
    assert size.why == why
    assert 1 <= size.rows <= 100


def test_the_first_batch_is_small() -> None:
    assert (Auto(100).size(load(500)).rows, Auto(100).size(load(500)).why) == (16, "first")
    assert Auto(4).size(load(500)).rows == 4


def test_the_slack_is_kept_where_nothing_else_presses() -> None:
    auto = known_auto()
    for slack in (6.0, 9.0, 15.0, 25.0):
        size = auto.size(load(1_000, slack=slack))
        assert size.why in ("slack", "floor")
        if size.why == "slack":
            assert auto.predict_ms(size.rows) <= slack


def test_the_cost_model_finds_a_and_b_and_follows_a_change() -> None:
    model = CostModel()
    for call in range(300):
        rows = 1 + call * 37 % 200
        model.observe(rows, (4 + 0.25 * rows) * (1 + 0.05 * math.sin(call)))
    assert model.a_ms == pytest.approx(4, rel=0.15)
    assert model.b_ms == pytest.approx(0.25, rel=0.1)
    assert model.rows_within(model.predict_ms(80)) in (79, 80)
    for call in range(200):
        rows = 1 + call * 37 % 200
        model.observe(rows, 2 * (4 + 0.25 * rows))
    assert model.predict_ms(100) == pytest.approx(58, rel=0.5)  # on the safe side: the margin falls slowly


@given(
    calls=st.lists(st.tuples(st.integers(1, 200), st.floats(0.5, 100.0)), min_size=2, max_size=8),
)
def test_a_cost_held_at_nothing_leaves_the_best_line_through_the_origin(calls) -> None:
    """Weighted least squares over a >= 0: where a is 0, no other b has a smaller error."""
    model = CostModel()
    for rows, ms in calls:
        model.observe(rows, ms)
    if model.a_ms > 0:
        return
    weights = [0.97 ** (len(calls) - 1 - i) / ms**2 for i, (_, ms) in enumerate(calls)]

    def error(b_ms: float) -> float:
        return sum(w * (ms - b_ms * rows) ** 2 for w, (rows, ms) in zip(weights, calls, strict=True))

    least = error(model.b_ms)
    assert all(least <= error(model.b_ms * factor) * (1 + 1e-9) for factor in (0.9, 0.99, 1.01, 1.1))


def test_one_spike_does_not_move_the_cost_model_far() -> None:
    model = CostModel()
    for _ in range(100):
        model.observe(10, 6.5)
    before = model.predict_ms(10)
    model.observe(10, 6_500.0)
    assert model.predict_ms(10) < 2 * before


def test_aimd_converges_within_fifty_batches_and_stays() -> None:
    aimd, sizes = Aimd(1_000), []
    for call in range(120):
        size = aimd.size(load(5_000, budget=100.0))
        sizes.append(size.rows)
        aimd.observe(size.rows, service_ms(size.rows, 100 * call + 1), True)
    best = (50 - 4) / 0.25
    assert max(sizes[:50]) >= 0.8 * best
    assert all(0.7 * best < rows < 1.2 * best for rows in sizes[60:])


def test_aimd_does_not_grow_at_light_load_nor_fall_to_nothing_by_one_hiccup() -> None:
    aimd = Aimd(1_000)
    for _ in range(8):
        aimd.observe(aimd.size(load(5_000, budget=100.0)).rows, 5.0, True)
    full = aimd.size(load(5_000, budget=100.0)).rows
    for _ in range(50):
        aimd.observe(1, 5.0, False)
    assert aimd.size(load(5_000, budget=100.0)).rows == full
    aimd.observe(1, 80.0, False)
    assert aimd.size(load(5_000, budget=100.0)).rows >= 0.8 * full


def test_quantile_refits() -> None:
    quantile = Quantile(1_000)
    for factor, low, high in ((1.0, 120, 190), (3.0, 25, 70)):
        for call in range(900):
            rows = min(quantile.size(load(5_000, budget=100.0)).rows, 10 + call % 60)
            quantile.observe(rows, (4 + 0.25 * rows) * factor, True)
        size = quantile.size(load(5_000, budget=100.0))
        assert size.why == "quantile"
        assert low <= size.rows <= high


def test_fixed_and_none_are_constant() -> None:
    assert Fixed(64).size(load(500)).rows == 64
    assert make_batcher("none", 512, 64).size(load(500)).rows == 1
    with pytest.raises(ValueError, match="no batching"):
        make_batcher("magic", 1, 1)


def test_a_model_that_was_slow_is_tried_again() -> None:
    table = Table({"deadline_ms": np.int64})
    desk = Desk(ModelRules(model="m@1"), table)
    desk.batcher.observe(1, 5_000.0, False)
    desk.called(1_000)
    assert desk.doomed_until_ms(1_000, 10) > 1_000 + 10 + 4_000
    later = 1_000 + int(7 * RETRY_HALVING_MS)
    assert desk.doomed_until_ms(later, 10) < later + 10 + 90
    for _ in range(10):
        desk.batcher.observe(1, 5.0, False)
    desk.called(later)
    assert desk.doomed_until_ms(later, 10) < later + 10 + 20


def test_arrivals_are_forgotten_even_if_nobody_asks() -> None:
    arrivals = Arrivals()
    for now in range(0, 100_000, 10):
        arrivals.add(5, now)
    assert len(arrivals._seen) <= 30
    assert arrivals.rows_per_ms(99_990) == pytest.approx(0.5, rel=0.1)
    assert arrivals.rows_per_ms(200_000) == 0


def test_heads_are_given_up_until_the_next_one_makes_it() -> None:
    slacks = np.arange(1.0, 101.0)
    for rows in (1, 10, 60):
        n = hopeless(slacks, rows, lambda k: 4 + 0.5 * k)
        assert slacks[n] >= 4 + 0.5 * min(rows, 100 - n)
        assert n == 0 or slacks[n - 1] < 4 + 0.5 * min(rows, 101 - n)
    assert hopeless(slacks, 50, lambda _: 1e9) == 99


def test_the_worker_sheds_those_whom_the_floor_would_make_late() -> None:
    """Through the stage itself: 1.25 times what the model can do, for three seconds."""
    rules = app(route(deadline_ms=50), guard_ms=0)
    stage = WorkerStage(rules, model_rules(rules), CODECS, epochs(rules))
    stage.handle(assigned(0), START_MS)
    sent = answered = calls = 0
    running: tuple[float, RunBatch] | None = None
    for now in range(3_000):
        effects = stage.handle(requests([b":1,1"] * 5, first=sent, append_ms=START_MS + now), START_MS + now)
        sent += 5
        if running is not None and running[0] <= now:
            done, running = running[1], None
            n = len(done.inputs)
            outputs = Outputs(labels=np.zeros(n))
            ended = BatchFinished(batch=done.batch, outputs=outputs, duration_ms=service_ms(n, calls))
            effects += stage.handle(BatchesFinished(batches=(ended,)), START_MS + now)
        for effect in effects:
            if isinstance(effect, RunBatch):
                calls += 1
                running = now + service_ms(len(effect.inputs), calls), effect
            if isinstance(effect, EmitAnswers) and effect.answers.labels is not None:
                offsets = effect.answers.offsets[effect.answers.missing == Missing.PRESENT]
                answered += int((offsets // 5 + 50 >= now).sum())
    assert answered > 0.5 * sent
