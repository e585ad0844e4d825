"""The simulated processes' metrics have everything that roles count."""

from __future__ import annotations

from streamserve.kafka.metrics import RoleMetrics
from streamserve.testing.simulator.processes import QuietMetrics

#: Asked by HTTP, or told by `streamserve insights`: no simulated process is or does either.
SERVED = {"page", "status", "read_records"}


def test_nothing_that_a_role_counts_meets_a_collector() -> None:
    counted = {name for name, value in vars(RoleMetrics).items() if callable(value) and not name.startswith("_")}
    assert counted - SERVED == {name for name in vars(QuietMetrics) if not name.startswith("_")}
