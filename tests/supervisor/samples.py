"""Facts and figures as the supervisor's outlets get them."""

from __future__ import annotations

from typing import Any

from streamserve.supervisor.news import ChildFacts, News, Snapshot, State
from streamserve.supervisor.plan import ProcessPlan

READY = News(event="ready", words="ready now", facts={"bootstrap_servers": "host:1"})
STATUS: dict[str, Any] = {
    "role": "worker main",
    "consumed_per_s": 201.4,
    "rate_per_s": 199.0,
    "lag_records": 3,
    "queued_records": 5,
    "routes": {
        "digits": {
            "rate_per_s": 199.0,
            "latency_p50_ms": 4.0,
            "latency_p99_ms": 9.5,
            "outcomes": {"ok": 1003, "partial": 2, "default": 0},
        }
    },
    "batches": {"forest@1": {"size": 12, "why": "drained"}},
    "weights": {"digits": {"linear@1": 0.29, "forest@1": 0.71}},
}


def facts(status: dict[str, Any] | None = None) -> ChildFacts:
    return ChildFacts(
        plan=ProcessPlan(role="worker", instance=0, pool="main"),
        state=State.SERVING,
        pid=4711,
        metrics_port=9000,
        restarts=1,
        status=status,
    )


def snapshot(status: dict[str, Any] | None = None) -> Snapshot:
    return Snapshot(app="tiny", bootstrap_servers="host:1", children=(facts(status),))
