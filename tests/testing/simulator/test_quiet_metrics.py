"""The simulated processes' metrics have everything that roles count."""

from __future__ import annotations

from streamserve.kafka.metrics import RoleMetrics
from streamserve.testing.simulator.processes import QuietMetrics

#: Asked by HTTP, or told by `streamserve insights`: no simulated process is or does either.
SERVED = {"page", "status", "read_records"}
#: What only who serves them asks for.
OWN = {"registry"}


def test_nothing_that_a_role_counts_meets_a_collector() -> None:
    counted = {name for name, value in vars(RoleMetrics).items() if callable(value) and not name.startswith("_")}
    assert counted - SERVED == {name for name in vars(QuietMetrics) if not name.startswith("_")}


def test_whatever_else_a_role_tells_is_there_too() -> None:
    told = {name for name in vars(RoleMetrics("worker", "app")) if not name.startswith("_")}
    assert told - OWN == {name for name in vars(QuietMetrics("worker", {})) if not name.startswith("_")}
