"""`make bench-plans`, in small: every section runs, no answer differs, and its rows are in the file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.plan_density import CHAR_USERS, PLANS, WORD_USERS, _spread
from benchmarks.plans import SECTIONS, main


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_in_small(section: str, tmp_path: Path) -> None:
    assert main(["--scale", "0.01", "--only", section, "--results", str(tmp_path / "plans.csv")]) == 0
    with (tmp_path / "plans.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["section"] for row in rows} == {section}
    assert all(float(row["ours"]) > 0 for row in rows)


def test_vocabularies_are_shared_as_in_the_paper() -> None:
    for users in (WORD_USERS, CHAR_USERS):
        assert sum(users) == PLANS
        whole = _spread(users, PLANS)
        assert [whole.count(i) for i in range(len(users))] == list(users)
        assert len(_spread(users, 25)) == 25
