"""Metrics of one process (of its plans: `plan_metrics`; of what was learnt: `learnt_metrics`). Derived from events and
effects, never in the core.

What the hot path hands over is only kept; it is counted in bulk, now and then and whenever somebody looks: a labelled
counter costs microseconds, and at low rates there is one event for each request.

Long since it is a list: every name, label and unit that an operator sees, in one place.
"""

from __future__ import annotations

import platform
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, generate_latest

from streamserve.core.bounds import Fill
from streamserve.core.effects import Count, RunBatch
from streamserve.core.events import BatchFinished
from streamserve.core.messages import AnyArray, DeadLetters, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from streamserve.core.routes import Route
from streamserve.kafka.learnt_metrics import LearntMetrics
from streamserve.kafka.plan_metrics import PlanMetrics
from streamserve.kafka.ports import At, Chunk
from streamserve.kafka.recent import Rate, Recent
from streamserve.runtimes.isolation import ProcessState
from streamserve.runtimes.plan_figures import PlanFigures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_SLACK_S = (-10.0, -1.0, -0.1, 0.0, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)
#: Figures of its own that one model may report; more names are counted, and not kept.
MOST_MODEL_METRICS = 64
#: Kept and not yet counted, at most; above, it is counted at once.
_MOST_KEPT = 256
_MOST_KEPT_RECORDS = 2_048


class _Ended(NamedTuple):
    """A model call that has returned."""

    model: str
    seconds: float
    failed: bool
    metrics: Mapping[str, float]


_COLUMNS: tuple[tuple[str, Callable[[Predictions], AnyArray]], ...] = (
    ("outcome", lambda block: block.outcome),
    ("reason", lambda block: block.reason),
    ("late", lambda block: block.late),
    ("stale", lambda block: block.choice.stale),
    ("off_epoch", lambda block: block.off_epoch),
    ("total_ms", lambda block: block.total_ms),
    ("queue_ms", lambda block: block.queue_ms),
    ("answered", lambda block: block.answered),
    ("chosen", lambda block: block.choice.chosen),
    ("missing", lambda block: block.missing),
)


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


class _Together:
    """The metrics of several roles as one collection; each sample says whose it is."""

    def __init__(self, parts: Sequence[RoleMetrics]) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for part in self._parts:
            for family in part.registry.collect():
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                own = {"role": part.role}
                merged.samples += [sample._replace(labels={**sample.labels, **own}) for sample in family.samples]
        yield from families.values()


class _Processes:
    """Figures of the processes of isolated models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge(
            "streamserve_model_process_up",
            "1: the process of an isolated model can be called; 0: it is away, and is started again",
            ["model"],
            registry=registry,
        )
        self._restarts = Counter(
            "streamserve_model_process_restarts",
            "Processes started in the place of one that had ended",
            ["model"],
            registry=registry,
        )
        self._memory = Gauge(
            "streamserve_model_process_resident_bytes", "Memory of an isolated model", ["model"], registry=registry
        )
        self._threads = Gauge(
            "streamserve_model_process_threads", "Threads of an isolated model", ["model"], registry=registry
        )
        self._counted: Tally[str] = Tally()

    def set(self, state: ProcessState) -> None:
        self._up.labels(state.model).set(state.up)
        self._memory.labels(state.model).set(state.memory_bytes)
        self._threads.labels(state.model).set(state.threads)
        self._restarts.labels(state.model).inc(state.restarts - self._counted[state.model])
        self._counted[state.model] = state.restarts


def page_of(parts: Sequence[RoleMetrics]) -> bytes:
    """What `/metrics` of a process with several roles serves."""
    for part in parts:
        part.settle()
    return generate_latest(_Together(parts))


class RoleMetrics:
    """Everything one role counts. Names: `streamserve_*`, base units, counters end in `_total`."""

    def __init__(self, role: str, app: str, routes: Sequence[Route] = ()) -> None:  # noqa: PLR0915  (one a metric)
        """`routes`: their policies and deadlines are what selections and slack are counted by."""
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
        self._batch_target = Gauge(
            "streamserve_batch_target_size",
            "Rows that the newest model call might have had, had as many been queued",
            ["model"],
            registry=registry,
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
        self._slack = Histogram(
            "streamserve_deadline_slack_seconds",
            "Left of the route's own deadline when the prediction was made; below 0: it was missed",
            ["route"],
            buckets=_SLACK_S,
            registry=registry,
        )
        self._selections = Counter(
            "streamserve_bandit_selections",
            "Requests that a model was chosen for",
            ["policy", "arm"],
            registry=registry,
        )
        self._shed = Counter(
            "streamserve_shed_requests",
            "Requests for which a model was not run, so that others make their deadline",
            ["model", "why"],
            registry=registry,
        )
        self._circuit = Gauge(
            "streamserve_circuit_open",
            "1: the model keeps failing and is called only on trial. Alarm on it",
            ["model"],
            registry=registry,
        )
        self._frozen = Gauge(
            "streamserve_model_frozen",
            "1: its answers were certainly worse than the baseline's, and it is asked no more. Alarm on it",
            ["route", "model"],
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
        self._fenced = Counter(
            "streamserve_fenced_takeovers", "Partitions taken over behind a fence", registry=registry
        )
        self._fencing = Counter(
            "streamserve_fence_seconds",
            "Of these take-overs: raising fences, looking behind",
            ["step"],
            registry=registry,
        )
        self._lost = Counter(
            "streamserve_partitions_lost",
            "Partitions given up since another owner has fenced us off, or to find out what is in the log",
            ["why"],
            registry=registry,
        )
        self._partitions = Gauge("streamserve_assigned_partitions", "Partitions owned", registry=registry)
        self._lag = Gauge(
            "streamserve_consumer_lag_records", "Records not yet read", ["topic", "partition"], registry=registry
        )
        self._drain = Gauge(
            "streamserve_drain_seconds", "Until what is not yet seen has been, at the present rate", registry=registry
        )
        self._queued = Gauge("streamserve_queued_records", "Read, not yet seen by the stage", registry=registry)
        self._open = Gauge("streamserve_open_requests", "Seen by the stage, not settled", registry=registry)
        self._skipped = Gauge(
            "streamserve_skipped_requests",
            "Passed over after an outage, and still to get their records",
            registry=registry,
        )
        self._fills = Gauge(
            "streamserve_bound_fill_ratio",
            "How full what grows is; at 1 it does what docs/reference/bounds.md says. Alarm on 0.8",
            ["bound"],
            registry=registry,
        )
        self._clock_offset = Gauge("streamserve_clock_offset_seconds", "Broker's clock minus ours", registry=registry)
        self._clock_bound = Gauge("streamserve_clock_bound_seconds", "Half its uncertainty", registry=registry)
        self.learnt = LearntMetrics(registry)
        self._processes = _Processes(registry)
        self._plans = PlanMetrics(registry)
        self._bulk: dict[tuple[str, str], _Bulk] = {}
        self._model_names: defaultdict[str, set[str]] = defaultdict(set)
        self._calls: dict[int, str] = {}
        self._recent = Recent()
        self._routes = {route.name: route for route in routes}
        self._consumed_rate = Rate()
        # kept, not yet counted
        self._read: Tally[At] = Tally()
        self._named: Tally[tuple[str, str]] = Tally()
        self._begun: list[tuple[str, int, str]] = []
        self._targets: dict[str, int] = {}
        self._ended: list[_Ended] = []
        self._blocks: defaultdict[tuple[str, tuple[str, ...]], list[Predictions]] = defaultdict(list)
        self._kept_records = 0

    def _histogram(self, name: str, words: str, labels: list[str]) -> Histogram:
        return Histogram(f"streamserve_{name}", words, labels, buckets=_SECONDS, registry=self.registry)

    def _bulk_of(self, kind: str, histogram: Histogram, label: str, bounds: Sequence[float] = _SECONDS) -> _Bulk:
        bulk = self._bulk.get((kind, label))
        if bulk is None:
            bulk = self._bulk[kind, label] = _Bulk(histogram.labels(label), bounds)
        return bulk

    # what the loop hands over: kept only

    def consumed(self, chunk: Chunk) -> None:
        self._read[chunk.at] += len(chunk)
        self._recent.consumed += len(chunk)

    def read_records(self, total: int) -> None:
        """The same of a role that no loop of ours reads for: records read since its start."""
        self._recent.consumed = total

    def batch(self, effect: RunBatch) -> None:
        size = len(effect.inputs)
        self._calls[effect.batch] = effect.model
        self._begun.append((effect.model, size, effect.why))
        self._targets[effect.model] = effect.target_rows
        self._recent.batches[effect.model] = (size, effect.why)

    def batch_finished(self, event: BatchFinished) -> None:
        model = self._calls.pop(event.batch, "")
        metrics = event.outputs.metrics if event.outputs is not None else {}
        self._ended.append(_Ended(model, event.duration_ms / 1000, bool(event.error), metrics))
        if len(self._ended) >= _MOST_KEPT:
            self._count_calls()

    def predictions(self, block: Predictions) -> None:
        """Terminal records."""
        blocks = self._blocks[block.route, block.models]
        blocks.append(block)
        self._kept_records += len(block)
        if len(blocks) >= _MOST_KEPT or self._kept_records >= _MOST_KEPT_RECORDS:
            self._count_predictions()

    def follow_routes(self, routes: Mapping[str, Route]) -> None:
        """The newest version of each route."""
        self._routes = dict(routes)

    def count(self, effect: Count) -> None:
        if effect.what == "feedback":
            self._feedback.labels(effect.label).inc(effect.n)
        elif effect.what == "circuit":
            self._circuit.labels(effect.model).set(effect.label == "opened")
            self._named[effect.what, effect.label] += effect.n
        elif effect.what == "shed":
            self._shed.labels(effect.model, effect.label).inc(effect.n)
        else:
            self._named[effect.what, effect.label] += effect.n

    def fenced(self, partitions: int, fence_ms: float, look_ms: float) -> None:
        """Partitions were taken over together, in so long."""
        self._fenced.inc(partitions)
        self._fencing.labels("fence").inc(fence_ms / 1000)
        self._fencing.labels("look").inc(look_ms / 1000)

    def lost(self, *, shut_out: bool) -> None:
        self._lost.labels("fenced_out" if shut_out else "unknown").inc()

    # counting

    def settle(self) -> None:
        """Count everything that was kept."""
        for at, n in self._read.items():
            self._consumed.labels(at.topic, at.partition).inc(n)
        self._read.clear()
        for (what, label), n in self._named.items():
            if what == "cache":
                self._cache.labels(label).inc(n)
            else:
                self._counts.labels(what, label).inc(n)
        self._named.clear()
        self._count_calls()
        self._count_predictions()

    def _count_calls(self) -> None:
        for model, target in self._targets.items():
            self._batch_target.labels(model).set(target)
        begun, self._begun = self._begun, []
        for model, size, why in begun:
            self._batch_size.labels(model).observe(size)
            self._batches.labels(model, why).inc()
        ended, self._ended = self._ended, []
        for call in ended:
            self._inference.labels(call.model).observe(call.seconds)
            if call.failed:
                self._failed.labels(call.model).inc()
            for name, value in call.metrics.items():
                self._report(call.model, name, value)

    def _report(self, model: str, name: str, value: float) -> None:
        """A figure that a model reports: it may name each one anew, and every name is a series for ever."""
        known = self._model_names[model]
        if name not in known and len(known) >= MOST_MODEL_METRICS:
            self._counts.labels("model_metric", "one_too_many").inc()
            return
        known.add(name)
        self._model_metric.labels(model, name).set(value)

    def _count_predictions(self) -> None:
        kept, self._blocks, self._kept_records = self._blocks, defaultdict(list), 0
        for (route, models), blocks in kept.items():
            columns = {name: np.concatenate([column(block) for block in blocks]) for name, column in _COLUMNS}
            if len(columns["outcome"]):
                self._count_outcomes(route, columns)
                self._count_times(route, columns)
                self._count_members(route, models, columns)

    def _count_outcomes(self, route: str, columns: Mapping[str, Any]) -> None:
        pairs, counts = np.unique(columns["outcome"].astype(np.int64) * 256 + columns["reason"], return_counts=True)
        recent = self._recent.routes[route]
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            outcome, reason = str(Outcome(pair // 256)), str(Reason(pair % 256))
            self._requests.labels(route, outcome, reason).inc(count)
            recent.outcomes[outcome] += count
        for flag in ("late", "stale", "off_epoch"):
            n = int(np.count_nonzero(columns[flag]))
            if n:
                self._flags.labels(route, flag).inc(n)

    def _count_times(self, route: str, columns: Mapping[str, Any]) -> None:
        total_ms = columns["total_ms"]
        self._bulk_of("total", self._duration, route).add(total_ms / 1000.0)
        ran = columns["answered"] != 0
        if ran.any():
            self._bulk_of("queue", self._queue, route).add(columns["queue_ms"][ran] / 1000.0)
        self._recent.routes[route].latencies.append(total_ms)
        known = self._routes.get(route)
        if known is not None:
            slack = (known.deadline_ms - total_ms) / 1000.0
            self._bulk_of("slack", self._slack, route, _SLACK_S).add(slack)

    def _count_members(self, route: str, models: tuple[str, ...], columns: Mapping[str, Any]) -> None:
        chosen, missing = columns["chosen"], columns["missing"]
        known = self._routes.get(route)
        for bit, model in enumerate(models):
            if known is not None:
                n = int(np.count_nonzero(chosen >> np.uint64(bit) & np.uint64(1)))
                if n:
                    self._selections.labels(known.policy.name, model).inc(n)
            for code, n in enumerate(np.bincount(missing[:, bit]).tolist()):
                if code and n:
                    self._missing.labels(model, str(Missing(code))).inc(n)

    def dead_letters(self, letters: DeadLetters) -> None:
        for reason, n in Tally(letters.reasons).items():
            self._dlq.labels(letters.source, reason).inc(n)

    def rebalanced(self, partitions: int) -> None:
        self._rebalances.inc()
        self._partitions.set(partitions)

    def frozen(self, route: str, model: str, is_frozen: bool) -> None:
        """Whether this route's state has frozen a model, and nobody has switched it on since."""
        self._frozen.labels(route, model).set(is_frozen)

    def gauges(
        self,
        *,
        lags: Mapping[tuple[str, int], int],
        queued: int,
        open_requests: int,
        fills: Mapping[str, Fill],
        clock_ms: tuple[float, float],
        now_ms: float,
        skipped: int = 0,
    ) -> None:
        """Figures that are looked at, not counted. `clock_ms`: offset and bound; `now_ms` by the monotonic clock."""
        for (topic, partition), lag in lags.items():
            self._lag.labels(topic, partition).set(lag)
        self._queued.set(queued)
        self._open.set(open_requests)
        self._skipped.set(skipped)
        for bound, fill in fills.items():
            self._fills.labels(bound).set(fill.ratio)
        self._clock_offset.set(clock_ms[0] / 1000)
        self._clock_bound.set(clock_ms[1] / 1000)
        waiting, per_s = sum(lags.values()) + queued, self._consumed_rate.at(now_ms, self._recent.consumed)
        self._drain.set(0.0 if not waiting else waiting / per_s if per_s else float("inf"))
        self._recent.lag = sum(lags.values())
        self._recent.queued = queued

    def processes(self, states: Sequence[ProcessState]) -> None:
        """Of the isolated models, as they are now."""
        for state in states:
            self._processes.set(state)

    def plans(self, figures: PlanFigures | None) -> None:
        """Of the process's white-box plans, as they are now."""
        self._plans.figures = figures

    def page(self) -> bytes:
        """What `/metrics` serves."""
        self.settle()
        return generate_latest(self.registry)

    def status(self, now_ms: float) -> dict[str, Any]:
        """What `/status` serves: recent figures as plain JSON values. `now_ms` by the monotonic clock."""
        self.settle()
        return {"role": self.role, **self._recent.status(now_ms), "weights": self.learnt.weights()}
