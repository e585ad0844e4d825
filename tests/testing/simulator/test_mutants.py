"""The simulator finds each planted fault. The hunt from seed 0 is in `make test-long`; here it starts near a hit."""

from __future__ import annotations

import pytest

from streamserve.testing.mutants import MUTANTS
from streamserve.testing.simulator.run import Totals, runs

#: Seeds at which each was found, by the hunt.
FOUND = {
    "commit-before-produce": 11,
    "ledger-off-by-one": 1,
    "ledger-settles-the-highest": 2,
    "epoch-applied-early": 2,
    "forgotten-answered": 4,
    "forgotten-answers": 56,
    "answers-read-too-late": 26,
    "scan-from-too-late": 12,
    "outcomes-not-deduplicated": 12,
    "state-forgets-what-it-includes": 14,
    "outcomes-settled-when-learnt": 2,
    "feedback-settled-at-once": 1,
    "failed-sends-taken-for-sent": 39,
    "own-clock": 1,
    "no-lease": 56,
    "guard-forgotten": 3,
    "versions-mixed-up": 1,
    "doomed-rows-run": 1,
    "window-not-read-again": 1,
    "queue-kept-after-revocation": 37,
    "choice-by-read-order": 2,
    "all-of-a-send-repeated": 899,
    "no-look-behind-the-fence": 4,
    "fence-kept-after-a-failure": 4,
    "no-fence": 11,
    "undecided-requests-read": 0,
    "lease-outlives-a-loss": 4,
    "late-states-take-over": 668,
    "unknown-versions-forgotten": 125,
    "markers-not-awaited": 446,
    "looked-up-before-the-fence": 235,
    "sweep-answers-what-was-answered": 39,
    "skipped-range-forgotten": 5,
    "fresh-ones-passed-over": 27,
    "keyed-states-not-read": 67,
    "never-stale": 53,
    "freeze-forgotten": 30,
    "first-answer-kept": 13,
    "second-opinion-awaited-too-long": 1145,
}
BEFORE, BEHIND = 1, 20
FAR = 2_000


def first_found(name: str, seeds: range) -> int | None:
    return next((r.plan.seed for r in runs(seeds, Totals(), MUTANTS[name].plant) if r.failed), None)


def test_each_has_a_known_hit() -> None:
    assert FOUND.keys() == MUTANTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_near_its_known_hit(name: str) -> None:
    hit = FOUND[name]
    assert first_found(name, range(max(0, hit - BEFORE), hit + BEHIND)) is not None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_by_the_hunt(name: str) -> None:
    assert first_found(name, range(FAR)) is not None
