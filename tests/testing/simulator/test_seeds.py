"""500 seeds of 2,000 requests: everything holds, and every kind of trouble has been met often enough to say so."""

from __future__ import annotations

import pytest

from streamserve.testing.simulator.report import FULL_SEEDS, rare, table
from streamserve.testing.simulator.run import Totals, runs
from streamserve.testing.simulator.story import story

#: Seed -> what is broken and why that is not mended yet. A seed that holds again leaves this list.
KNOWN: dict[int, str] = {
    160: "the state is that of no crash",  # a commit before the rebuild takes `rebuild_from` from the next owner
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_holds() -> None:
    totals, failed = Totals(), {}
    for result in runs(range(FULL_SEEDS), totals):
        if result.failed:
            failed[result.plan.seed] = result
    unexpected = [story(result) for seed, result in failed.items() if KNOWN.get(seed) not in result.failures]
    assert not unexpected, "\n\n".join(unexpected)
    assert failed.keys() == KNOWN.keys()
    print(table(totals))
    assert rare(totals) == []
