"""What the supervisor tells: single happenings, and how things stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from streamserve.supervisor.plan import ProcessPlan


class State(StrEnum):
    """Where a process of a role is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    WAITING = "waiting"
    """Its next start is put off: the last ones did not last."""
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One happening."""

    event: str
    words: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFacts:
    """How one process of a role stands."""

    plan: ProcessPlan
    state: State
    pid: int | None
    metrics_port: int | None
    restarts: int
    status: Mapping[str, Any] | None = None
    """What its `/status` page said last; None: nothing since its start."""
    has_spare: bool = False
    """A loaded process waits to take its place."""

    def as_json(self) -> dict[str, Any]:
        plan = self.plan
        identity = {"name": plan.name, "role": plan.role, "pool": plan.pool, "instance": plan.instance}
        process = {"pid": self.pid, "metrics_port": self.metrics_port}
        return identity | process | {"state": str(self.state), "restarts": self.restarts, "has_spare": self.has_spare}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How everything stands."""

    app: str
    bootstrap_servers: str
    children: tuple[ChildFacts, ...]


class Outlet(Protocol):
    """Where it is told. No call ever waits for a reader. `heard` is called from any thread."""

    def news(self, news: News) -> None: ...

    def status(self, snapshot: Snapshot) -> None: ...

    def heard(self, name: str, line: str) -> None:
        """A child's output."""

    def close(self) -> None: ...
