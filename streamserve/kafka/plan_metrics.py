"""Metrics of white-box plans: read from the plans when somebody looks, nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from streamserve.plan.stage_times import BOUNDS_S
from streamserve.runtimes.plan_figures import PlanFigures


class PlanMetrics:
    """The newest figures of a process's plans as metrics; none where it has no plan."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.figures: PlanFigures | None = None
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing beforehand: what there is depends on the models."""
        return []

    def collect(self) -> Iterator[Metric]:
        if self.figures is None:
            return
        yield self._bytes(self.figures)
        yield self._stages(self.figures)
        compiled = CounterMetricFamily("streamserve_plan_compilations", "Kernels compiled since the process began")
        compiled.add_metric([], self.figures.compilations)
        yield compiled
        yield from self._cache(self.figures)

    @staticmethod
    def _bytes(figures: PlanFigures) -> Metric:
        held = GaugeMetricFamily(
            "streamserve_plan_bytes",
            "Arrays of a plan: shared with other models of the process, and its own",
            labels=["model", "kind"],
        )
        for kind, of_models in (("shared", figures.bytes_shared), ("unique", figures.bytes_unique)):
            for model, size in of_models.items():
                held.add_metric([model, kind], size)
        return held

    @staticmethod
    def _stages(figures: PlanFigures) -> Metric:
        times = HistogramMetricFamily(
            "streamserve_plan_stage_seconds", "Time of a stage's call, one call in sixteen", labels=["operator"]
        )
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        for stage in figures.stages:
            times.add_metric(
                [stage.operator], list(zip(bounds, accumulate(stage.counts), strict=True)), sum_value=stage.sum_s
            )
        return times

    @staticmethod
    def _cache(figures: PlanFigures) -> Iterator[Metric]:
        cache = figures.cache
        if cache is None:
            return
        looks = CounterMetricFamily(
            "streamserve_plan_cache_lookups",
            "Documents looked up among kept sub-results; `skipped`: not, since hardly a look had paid",
            labels=["result"],
        )
        for result, n in (("hit", cache.hits), ("miss", cache.misses), ("skipped", cache.skipped)):
            looks.add_metric([result], n)
        yield looks
        rows = CounterMetricFamily("streamserve_plan_cache_rows", "Sub-results that came and went", labels=["event"])
        for event, n in (("admitted", cache.admitted), ("evicted", cache.evicted)):
            rows.add_metric([event], n)
        yield rows
        size = GaugeMetricFamily("streamserve_plan_cache_bytes", "Memory of kept sub-results", labels=["kind"])
        size.add_metric(["held"], cache.bytes)
        size.add_metric(["most"], cache.most_bytes)
        yield size
