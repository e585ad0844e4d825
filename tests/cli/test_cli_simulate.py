"""`streamserve simulate`: what it prints and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamserve.cli.entry import app


def simulate(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["simulate", *arguments])
    return done.exit_code, done.output


def test_seeds_that_hold_are_counted() -> None:
    code, output = simulate("--seeds", "2", "--requests", "100")
    assert code == 0
    assert "2 seeds, 200 requests" in output
    assert "one terminal record" in output


def test_the_counts_as_json() -> None:
    code, output = simulate("--seeds", "1", "--requests", "50", "--json")
    told = json.loads(output)
    assert (code, told["failed"], told["seeds"], told["requests"]) == (0, False, 1, 50)
    assert told["premises"]["one terminal record"] >= 50


@pytest.mark.slow
def test_a_failure_is_told_as_a_story_and_can_be_played_again(tmp_path: Path) -> None:
    fault, saved = ("--fault", "versions-mixed-up"), str(tmp_path / "plan.json")
    code, output = simulate("--seeds", "5", *fault, "--out", saved)
    assert code == 1
    assert "broken: answers are their models own" in output
    assert "clients write" in output
    assert re.search(r"again: streamserve simulate --from \d --seeds 1 --fault versions-mixed-up", output)
    assert simulate("--plan", saved, *fault)[0] == 1
    assert simulate("--plan", saved)[0] == 0


def test_wrong_use() -> None:
    assert simulate("--seeds", "0")[0] == 2
    code, output = simulate("--fault", "nonsense")
    assert code == 2
    assert "--fault list" in output
    code, output = simulate("--fault", "list")
    assert code == 0
    assert "ledger-off-by-one" in output
