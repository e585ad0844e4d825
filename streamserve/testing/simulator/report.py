"""What many runs have met: each kind of fault and each invariant's premise must have occurred often enough."""

from __future__ import annotations

from typing import Any

from streamserve.testing.simulator.draw import MALFORMED
from streamserve.testing.simulator.invariants import INVARIANTS
from streamserve.testing.simulator.models import MODES
from streamserve.testing.simulator.run import Totals
from streamserve.testing.simulator.writer import COMMIT_FATES, CRASH_POINTS, SEND_FATES

#: Over as many seeds, each must have occurred so often.
FULL_SEEDS = 500
LEAST = 100

FAULTS = (
    "crash",
    *(f"crash {point}" for point in CRASH_POINTS),
    "pause",
    "pause beyond session",
    "stop",
    "hand-over",
    "static member returned",
    "late start",
    "session expired",
    "commit refused",
    "rebalance",
    "broker away",
    "leader lost",
    "send without a leader",
    "acknowledgement lost with its leader",
    "fetch without a leader",
    "look-up without a leader",
    "coordinator moved",
    "seen after its append",
    "compaction",
    "retention",
    "requests deleted",
    "deploy",
    "outage",
    "old requests passed over",
    "slow answer",
    "learnt states read late",
    "fetch of a prefix",
    "machine with another clock",
    *(f"send {fate}" for fate in SEND_FATES),
    *(f"commit {fate}" for fate in COMMIT_FATES),
    *(f"model {mode}" for mode in MODES),
    *(f"request {kind}" for kind in MALFORMED),
    "request written twice",
    "transaction committed",
    "transaction aborted",
    "fence raised",
    *(
        f"feedback {kind}"
        for kind in ("early", "late", "duplicate", "id", "elsewhere", "reward", "malformed", "orphan")
    ),
)


def rare(totals: Totals, least: int = LEAST) -> list[str]:
    """What occurred too seldom to have been tested."""
    found = [f"fault: {name} ({totals.faults.get(name, 0)})" for name in FAULTS if totals.faults.get(name, 0) < least]
    for invariant in INVARIANTS:
        n = totals.premises.get(invariant.name, 0)
        if n < least:
            found.append(f"premise of: {invariant.name} ({n})")
    return found


def table(totals: Totals) -> str:
    lines = [f"{totals.seeds} seeds, {totals.requests} requests, {totals.seconds:.1f} s of processor time"]
    if totals.seconds:
        lines[0] += f", {60 * totals.seeds / totals.seconds:.0f} seeds a minute"
    lines += ["faults:", *(f"  {totals.faults.get(name, 0):9d}  {name}" for name in FAULTS)]
    lines += ["invariants, and how often their premise occurred:"]
    lines += [f"  {totals.premises.get(invariant.name, 0):9d}  {invariant.name}" for invariant in INVARIANTS]
    return "\n".join(lines)


def as_json(totals: Totals) -> dict[str, Any]:
    return {
        "seeds": totals.seeds,
        "requests": totals.requests,
        "processor_s": round(totals.seconds, 3),
        "faults": {name: totals.faults.get(name, 0) for name in FAULTS},
        "premises": {invariant.name: totals.premises.get(invariant.name, 0) for invariant in INVARIANTS},
    }
