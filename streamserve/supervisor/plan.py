"""Which processes a config needs."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamserve.assembly import has_outcomes
from streamserve.settings import Settings

RoleName = Literal["worker", "aggregate", "learn", "insights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """One process of a role."""

    role: RoleName
    instance: int
    """Number among its like, from 0. Restarted under it, a process has its partitions back at once."""
    pool: str | None = None
    """Workers only."""
    metrics_port: int = 0
    """0: any free one."""

    @property
    def name(self) -> str:
        """Unique in the app: `worker-main-0`, `aggregate-0`."""
        return "-".join(part for part in (self.role, self.pool, str(self.instance)) if part)

    def arguments(self, config: Path) -> list[str]:
        """The process's command line after the program's name."""
        pool = ["--pool", self.pool] if self.pool else []
        port = ["--metrics-port", str(self.metrics_port)]
        return [self.role, str(config), *pool, "--instance", str(self.instance), *port]


def processes(settings: Settings) -> tuple[ProcessPlan, ...]:
    """Workers first. A fused app has no aggregators, an app in which feedback has nothing to say no learners.

    With a fixed `[metrics] port` the processes take it and the ones after it, in this order.
    """
    port = settings.metrics.port
    return tuple(
        ProcessPlan(role=role, instance=instance, pool=pool, metrics_port=port + index if port else 0)
        for index, (role, pool, instance) in enumerate(_wanted(settings))
    )


def _wanted(settings: Settings) -> Iterator[tuple[RoleName, str | None, int]]:
    for name, pool in settings.pools.items():
        for instance in range(pool.processes):
            yield "worker", name, instance
    if not settings.fused:
        for instance in range(settings.aggregator.processes):
            yield "aggregate", None, instance
    if has_outcomes(settings):
        for instance in range(settings.learn.processes):
            yield "learn", None, instance
    if settings.insights is not None:
        yield "insights", None, 0


def program() -> list[str]:
    """How to start `streamserve` with this interpreter: its installed script where there is one."""
    script = Path(sysconfig.get_path("scripts")) / "streamserve"
    return [sys.executable, str(script)] if script.is_file() else [sys.executable, "-m", "streamserve.cli"]
