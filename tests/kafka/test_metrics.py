from __future__ import annotations

import re

import numpy as np

from streamserve.core.bounds import Fill
from streamserve.core.effects import Count, RunBatch
from streamserve.core.events import BatchFinished
from streamserve.core.messages import Choice, Outputs, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from streamserve.kafka.metrics import MOST_MODEL_METRICS, RoleMetrics


def predictions(outcomes: list[Outcome], total_ms: list[int]) -> Predictions:
    n = len(outcomes)
    missing = np.zeros((n, 2), np.uint8)
    missing[0, 1] = Missing.LATE
    return Predictions(
        partition=np.zeros(n, np.int64),
        route="r",
        models=("a@1", "b@1"),
        offsets=np.arange(n),
        append_ms=np.zeros(n, np.int64),
        keys=[None] * n,
        ids=[None] * n,
        traces=[None] * n,
        outcome=np.array(outcomes, np.uint8),
        reason=np.full(n, Reason.ALL_ANSWERED, np.uint8),
        row_starts=np.arange(n + 1),
        labels=np.zeros(n),
        probabilities=None,
        classes=None,
        confidence=np.ones(n),
        choice=Choice(
            chosen=np.full(n, 3, np.uint64),
            probability=np.ones(n, np.int64),
            epoch=np.zeros(n, np.int64),
            stale=np.zeros(n, np.bool_),
        ),
        answered=np.ones(n, np.uint64),
        missing=missing,
        members=(),
        queue_ms=np.ones(n, np.int32),
        inference_ms=np.ones(n, np.int32),
        total_ms=np.array(total_ms, np.int32),
        late=np.array([True] + [False] * (n - 1)),
        off_epoch=np.zeros(n, np.bool_),
    )


def value(metrics: RoleMetrics, metric: str, /, **labels: str) -> float:
    for line in metrics.page().decode().splitlines():
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if found and found[1] == metric and dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")) == labels:
            return float(found[3])
    raise AssertionError(f"no {metric} {labels}")


def test_terminal_records_are_counted_by_outcome_and_reason() -> None:
    metrics = RoleMetrics("aggregate", "app")
    metrics.predictions(predictions([Outcome.OK, Outcome.OK, Outcome.EXPIRED], [3, 40, 40]))
    labels = {"route": "r", "reason": "all_answered"}
    assert value(metrics, "streamserve_requests_total", outcome="ok", **labels) == 2
    assert value(metrics, "streamserve_requests_total", outcome="expired", **labels) == 1
    assert value(metrics, "streamserve_predictions_flagged_total", route="r", flag="late") == 1
    assert value(metrics, "streamserve_ensemble_members_missing_total", member="b@1", reason="late") == 1


def test_a_histogram_filled_in_bulk_is_that_of_single_observations() -> None:
    metrics = RoleMetrics("aggregate", "app")
    metrics.predictions(predictions([Outcome.OK] * 4, [1, 2, 50, 90_000]))
    name = "streamserve_request_duration_seconds"
    bounds = {"0.001": 1, "0.002": 2, "0.035": 2, "0.05": 3, "60.0": 3, "+Inf": 4}
    assert {le: value(metrics, f"{name}_bucket", route="r", le=le) for le in bounds} == bounds
    assert value(metrics, f"{name}_count", route="r") == 4
    assert value(metrics, f"{name}_sum", route="r") == 90.053


def test_a_model_that_names_its_figures_anew_each_time_makes_no_more_series_than_the_bound() -> None:
    metrics = RoleMetrics("worker", "app")
    for batch in range(MOST_MODEL_METRICS + 5):
        metrics.batch(RunBatch(batch=batch, model="a@1", inputs=np.zeros((1, 1)), why="first"))
        outputs = Outputs(labels=np.zeros(1), metrics={"loss": float(batch), f"user-{batch}": 1.0})
        metrics.batch_finished(BatchFinished(batch=batch, outputs=outputs))
    page = metrics.page().decode()
    assert page.count("streamserve_model_metric{") == MOST_MODEL_METRICS
    assert value(metrics, "streamserve_model_metric", model="a@1", name="loss") == MOST_MODEL_METRICS + 4
    assert value(metrics, "streamserve_events_total", what="model_metric", label="one_too_many") == 6


def test_how_full_each_bound_is() -> None:
    metrics = RoleMetrics("worker", "app")
    fills = {"queue_requests": Fill(5, 20), "cache_bytes": Fill(0, 0)}
    metrics.gauges(lags={}, queued=0, open_requests=0, fills=fills, clock_ms=(0.0, 0.0), now_ms=0.0)
    assert value(metrics, "streamserve_bound_fill_ratio", bound="queue_requests") == 0.25
    assert value(metrics, "streamserve_bound_fill_ratio", bound="cache_bytes") == 0.0


def test_model_calls_are_counted_with_what_decided_their_size() -> None:
    metrics = RoleMetrics("worker", "app")
    metrics.batch(RunBatch(batch=1, model="a@1", inputs=np.ones((8, 2)), why="cap", target_rows=8))
    metrics.batch_finished(BatchFinished(batch=1, outputs=Outputs(labels=np.ones(8), metrics={"x": 2.0})))
    metrics.batch(RunBatch(batch=2, model="a@1", inputs=np.ones((1, 2)), why="slack", target_rows=6))
    metrics.batch_finished(BatchFinished(batch=2, outputs=None, error="it broke"))
    assert value(metrics, "streamserve_batches_total", model="a@1", why="cap") == 1
    assert value(metrics, "streamserve_batch_target_size", model="a@1") == 6
    assert value(metrics, "streamserve_batches_failed_total", model="a@1") == 1
    assert value(metrics, "streamserve_model_metric", model="a@1", name="x") == 2
    assert metrics.status(0)["batches"] == {"a@1": {"size": 1, "why": "slack"}}


def test_named_counts_have_their_own_metric_where_there_is_one() -> None:
    metrics = RoleMetrics("join", "app")
    for what, label in (("feedback", "late"), ("cache", "hit"), ("other", "x")):
        metrics.count(Count(what=what, label=label, n=3))
    assert value(metrics, "streamserve_feedback_joined_total", status="late") == 3
    assert value(metrics, "streamserve_cache_requests_total", result="hit") == 3
    assert value(metrics, "streamserve_events_total", what="other", label="x") == 3


def test_status_gives_all_outcomes_and_the_rate() -> None:
    metrics = RoleMetrics("aggregate", "app")
    metrics.status(0)
    metrics.predictions(predictions([Outcome.OK] * 10, [5] * 10))
    status = metrics.status(1_000)
    assert status["rate_per_s"] == 10
    assert status["outcomes"] == {"ok": 10, "partial": 0, "default": 0, "error": 0, "expired": 0}
    assert status["latency_p50_ms"] == 5
