"""500 seeds of 2,000 requests: everything holds, and every kind of trouble has been met often enough to say so."""

from __future__ import annotations

import pytest

from streamserve.testing.simulator.report import FULL_SEEDS, rare, table
from streamserve.testing.simulator.run import Totals, runs
from streamserve.testing.simulator.story import story


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_holds() -> None:
    totals, failed = Totals(), {}
    for result in runs(range(FULL_SEEDS), totals):
        if result.failed:
            failed[result.plan.seed] = result
    assert not failed, "\n\n".join(map(story, failed.values()))
    print(table(totals))
    assert rare(totals) == []
