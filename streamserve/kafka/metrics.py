"""Metrics of one process: the only import of prometheus_client. Derived from events and effects, never in the core.

Also keeps the few recent figures that the terminal view shows (`status`).
"""

from __future__ import annotations

import platform
from collections import Counter as Tally
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from streamserve.core.effects import Count, RunBatch
from streamserve.core.events import BatchFinished
from streamserve.core.messages import DeadLetters, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from streamserve.kafka.ports import Chunk

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_RECENT_SPAN_MS = 5_000.0
_RECENT_LATENCIES = 4_096


class _Bulk:
    """Adds an array of observations to a histogram in one step: `observe` in a loop costs 1 us each."""

    def __init__(self, histogram: Histogram, bounds: Sequence[float]) -> None:
        self._buckets = histogram._buckets
        self._sum = histogram._sum
        self._bounds = np.array(bounds)

    def add(self, values: np.ndarray[Any, Any]) -> None:
        counts = np.bincount(np.searchsorted(self._bounds, values, side="left"), minlength=len(self._bounds) + 1)
        for bucket, count in zip(self._buckets, counts.tolist(), strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(float(values.sum()))


class RoleMetrics:
    """Everything one role counts. Names: `streamserve_*`, base units, counters end in `_total`."""

    def __init__(self, role: str, app: str) -> None:
        self.registry = CollectorRegistry()
        self.role = role
        registry = self.registry
        Info("streamserve_build", "Versions", registry=registry).info(
            {"version": version("streamserve"), "python": platform.python_version(), "role": role, "app": app}
        )
        self._consumed = Counter(
            "streamserve_consumed_records", "Records read", ["topic", "partition"], registry=registry
        )
        self._requests = Counter(
            "streamserve_requests", "Terminal records", ["route", "outcome", "reason"], registry=registry
        )
        self._flags = Counter(
            "streamserve_predictions_flagged",
            "Terminal records marked late, stale or off_epoch",
            ["route", "flag"],
            registry=registry,
        )
        self._duration = self._histogram("request_duration_seconds", "Append to prediction", ["route"])
        self._queue = self._histogram("queue_wait_seconds", "Append to the start of the model call", ["route"])
        self._inference = Histogram(
            "streamserve_inference_duration_seconds", "Model calls", ["model"], buckets=_SECONDS, registry=registry
        )
        self._batch_size = Histogram(
            "streamserve_batch_size", "Rows of a model call", ["model"], buckets=_SIZES, registry=registry
        )
        self._batches = Counter(
            "streamserve_batches", "Model calls by what decided their size", ["model", "why"], registry=registry
        )
        self._failed = Counter("streamserve_batches_failed", "Model calls that raised", ["model"], registry=registry)
        self._missing = Counter(
            "streamserve_ensemble_members_missing",
            "Chosen members without an answer",
            ["member", "reason"],
            registry=registry,
        )
        self._dlq = Counter("streamserve_dlq_records", "Dead letters", ["source", "reason"], registry=registry)
        self._counts = Counter("streamserve_events", "Other named counts", ["what", "label"], registry=registry)
        self._feedback = Counter("streamserve_feedback_joined", "Feedback by status", ["status"], registry=registry)
        self._cache = Counter("streamserve_cache_requests", "Result cache", ["result"], registry=registry)
        self._model_metric = Gauge(
            "streamserve_model_metric", "Reported by a model itself", ["model", "name"], registry=registry
        )
        self._rebalances = Counter("streamserve_rebalances", "Assignments received", registry=registry)
        self._partitions = Gauge("streamserve_assigned_partitions", "Partitions owned", registry=registry)
        self._lag = Gauge(
            "streamserve_consumer_lag_records", "Records not yet read", ["topic", "partition"], registry=registry
        )
        self._queued = Gauge("streamserve_queued_records", "Read, not yet seen by the stage", registry=registry)
        self._open = Gauge("streamserve_open_requests", "Seen by the stage, not settled", registry=registry)
        self._clock_offset = Gauge("streamserve_clock_offset_seconds", "Broker's clock minus ours", registry=registry)
        self._clock_bound = Gauge("streamserve_clock_bound_seconds", "Half its uncertainty", registry=registry)
        self._weights = Gauge("streamserve_model_weight", "Newest learnt weight", ["route", "model"], registry=registry)
        self._bulk: dict[tuple[str, str], _Bulk] = {}
        self._calls: dict[int, str] = {}
        self._recent = _Recent()

    def _histogram(self, name: str, words: str, labels: list[str]) -> Histogram:
        return Histogram(f"streamserve_{name}", words, labels, buckets=_SECONDS, registry=self.registry)

    def _bulk_of(self, kind: str, histogram: Histogram, label: str) -> _Bulk:
        bulk = self._bulk.get((kind, label))
        if bulk is None:
            bulk = self._bulk[kind, label] = _Bulk(histogram.labels(label), _SECONDS)
        return bulk

    def consumed(self, chunk: Chunk) -> None:
        self._consumed.labels(chunk.at.topic, chunk.at.partition).inc(len(chunk))
        self._recent.consumed += len(chunk)

    def batch(self, effect: RunBatch) -> None:
        size = len(effect.inputs)
        self._batch_size.labels(effect.model).observe(size)
        self._batches.labels(effect.model, effect.why).inc()
        self._calls[effect.batch] = effect.model
        self._recent.batches[effect.model] = (size, effect.why)

    def batch_finished(self, event: BatchFinished) -> None:
        model = self._calls.pop(event.batch, "")
        self._inference.labels(model).observe(event.duration_ms / 1000)
        if event.error:
            self._failed.labels(model).inc()
        elif event.outputs is not None and event.outputs.metrics:
            for name, value in event.outputs.metrics.items():
                self._model_metric.labels(model, name).set(value)

    def predictions(self, block: Predictions) -> None:
        """Terminal records, columnar: the cost is per block, not per record."""
        n = len(block)
        if not n:
            return
        pairs, counts = np.unique(block.outcome.astype(np.int64) * 256 + block.reason, return_counts=True)
        recent = self._recent.routes[block.route]
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            outcome, reason = str(Outcome(pair // 256)), str(Reason(pair % 256))
            self._requests.labels(block.route, outcome, reason).inc(count)
            recent.outcomes[outcome] += count
        for flag, column in (("late", block.late), ("stale", block.choice.stale), ("off_epoch", block.off_epoch)):
            if column.any():
                self._flags.labels(block.route, flag).inc(int(column.sum()))
        total_s = block.total_ms / 1000.0
        self._bulk_of("total", self._duration, block.route).add(total_s)
        ran = block.answered != 0
        if ran.any():
            self._bulk_of("queue", self._queue, block.route).add(block.queue_ms[ran] / 1000.0)
        if block.missing.any():
            self._members(block)
        recent.latencies.append(block.total_ms)

    def _members(self, block: Predictions) -> None:
        for column, model in enumerate(block.models):
            codes = block.missing[:, column]
            for code, count in enumerate(np.bincount(codes).tolist()):
                if code and count:
                    self._missing.labels(model, str(Missing(code))).inc(count)

    def dead_letters(self, letters: DeadLetters) -> None:
        for reason, n in Tally(letters.reasons).items():
            self._dlq.labels(letters.source, reason).inc(n)

    def count(self, effect: Count) -> None:
        match effect.what:
            case "feedback":
                self._feedback.labels(effect.label).inc(effect.n)
            case "cache":
                self._cache.labels(effect.label).inc(effect.n)
            case _:
                self._counts.labels(effect.what, effect.label).inc(effect.n)

    def rebalanced(self, partitions: int) -> None:
        self._rebalances.inc()
        self._partitions.set(partitions)

    def weights(self, route: str, weights: Mapping[str, float]) -> None:
        """The newest weights of a route, by model id."""
        for model, weight in weights.items():
            self._weights.labels(route, model).set(weight)
        self._recent.weights[route] = dict(weights)

    def gauges(
        self, *, lags: Mapping[tuple[str, int], int], queued: int, open_requests: int, clock_ms: tuple[float, float]
    ) -> None:
        """Figures that are looked at, not counted."""
        for (topic, partition), lag in lags.items():
            self._lag.labels(topic, partition).set(lag)
        self._queued.set(queued)
        self._open.set(open_requests)
        self._clock_offset.set(clock_ms[0] / 1000)
        self._clock_bound.set(clock_ms[1] / 1000)
        self._recent.lag = sum(lags.values())
        self._recent.queued = queued

    def page(self) -> bytes:
        """What `/metrics` serves."""
        return generate_latest(self.registry)

    def status(self, now_ms: float) -> dict[str, Any]:
        """What `/status` serves: recent figures as plain JSON values. `now_ms` by the monotonic clock."""
        return {"role": self.role, **self._recent.status(now_ms)}


class _Rate:
    """Per second, over the last few."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now_ms: float, total: int) -> float:
        seen = self._seen
        seen.append((now_ms, total))
        while len(seen) > 1 and now_ms - seen[0][0] > _RECENT_SPAN_MS:
            seen.popleft()
        then_ms, then = seen[0]
        return round((total - then) / (now_ms - then_ms) * 1000, 1) if now_ms > then_ms else 0.0


class _RecentRoute:
    """Figures of a route's terminal records."""

    def __init__(self) -> None:
        self.outcomes: Tally[str] = Tally()
        self.latencies: deque[np.ndarray[Any, Any]] = deque(maxlen=256)
        self.rate = _Rate()

    def status(self, now_ms: float) -> dict[str, Any]:
        return _terminal(self.outcomes, list(self.latencies), self.rate, now_ms)


class _Recent:
    """Figures of the last seconds."""

    def __init__(self) -> None:
        self.routes: defaultdict[str, _RecentRoute] = defaultdict(_RecentRoute)
        self.batches: dict[str, tuple[int, str]] = {}
        self.weights: dict[str, dict[str, float]] = {}
        self.consumed = 0
        self.lag = 0
        self.queued = 0
        self._rate = _Rate()
        self._consumed_rate = _Rate()

    def status(self, now_ms: float) -> dict[str, Any]:
        routes = self.routes.values()
        outcomes = sum((route.outcomes for route in routes), Tally[str]())
        latencies = [block for route in routes for block in route.latencies]
        return {
            "consumed_per_s": self._consumed_rate.at(now_ms, self.consumed),
            **_terminal(outcomes, latencies, self._rate, now_ms),
            "lag_records": self.lag,
            "queued_records": self.queued,
            "batches": {model: {"size": size, "why": why} for model, (size, why) in self.batches.items()},
            "routes": {name: route.status(now_ms) for name, route in self.routes.items()},
            "weights": self.weights,
        }


def _terminal(
    outcomes: Tally[str], latencies: list[np.ndarray[Any, Any]], rate: _Rate, now_ms: float
) -> dict[str, Any]:
    newest = np.concatenate(latencies)[-_RECENT_LATENCIES:] if latencies else np.zeros(0)
    p50, p99 = np.percentile(newest, (50, 99)).tolist() if len(newest) else (None, None)
    done = sum(outcomes.values())
    return {
        "predictions": done,
        "rate_per_s": rate.at(now_ms, done),
        "latency_p50_ms": p50,
        "latency_p99_ms": p99,
        "outcomes": {str(outcome): outcomes[str(outcome)] for outcome in Outcome},
    }
