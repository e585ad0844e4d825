"""A failing plan is made small, is told in words, and fails again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streamserve.errors import ConfigError
from streamserve.testing.mutants import MUTANTS
from streamserve.testing.simulator.draw import draw
from streamserve.testing.simulator.plan import Plan
from streamserve.testing.simulator.run import run
from streamserve.testing.simulator.saved import load, save
from streamserve.testing.simulator.shrink import shrink
from streamserve.testing.simulator.story import story

MUTANT = MUTANTS["ledger-off-by-one"]
BROKEN = "commits never pass open requests"


def fails(plan: Plan) -> bool:
    return BROKEN in run(plan, MUTANT.plant).failures


@pytest.mark.slow
def test_what_is_left_fails_still_and_is_told() -> None:
    plan = next(plan for plan in (draw(seed, 200) for seed in range(20)) if fails(plan))
    small, tried = shrink(plan, fails, most_runs=150)
    assert tried <= 150
    assert small.requests < 10
    result = run(small, MUTANT.plant)
    assert BROKEN in result.failures
    words = story(result)
    assert f"broken: {BROKEN}" in words
    assert f"clients write {small.bursts[0].asks and len(small.bursts[0].asks)} requests" in words
    assert not run(small).failed


def test_a_saved_plan_is_played_again(tmp_path: Path) -> None:
    plan = replace(draw(3, 50))
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    assert run(load(tmp_path / "plan.json"), digest=True).digest == run(plan, digest=True).digest


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ConfigError, match="no plan"):
        load(tmp_path / "plan.json")
