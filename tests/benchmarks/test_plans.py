"""`make bench-plans`, in small: every section runs, no answer differs, and its rows and its picture are there."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import pytest

from benchmarks.plan_packed import packed, with_head
from benchmarks.plan_plots import PLOTS
from benchmarks.plan_questions import AC, AC_ALONE, SA, rows_for
from benchmarks.plan_rows import row
from benchmarks.plan_workloads import CHAR_USERS, PIPELINES, PLANS, WORD_USERS, spread
from benchmarks.plans import SECTIONS, main
from streamserve.plan.importers import import_fitted

SCALE = 0.01


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of packed plans: made once."""
    return tmp_path_factory.mktemp("packed")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "section", [pytest.param(name, marks=[pytest.mark.broker] if name == "kafka" else []) for name in SECTIONS]
)
def test_a_section_in_small(section: str, folder: Path, tmp_path: Path) -> None:
    arguments = ["--scale", str(SCALE), "--only", section, "--memory-gib", "1"]
    assert main([*arguments, "--results", str(tmp_path), "--folder", str(folder)]) == 0
    with (tmp_path / "plans.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["section"] for row in rows} == {section}
    assert any(float(row["ours"]) > 0 for row in rows)
    assert (tmp_path / f"plans-{section}.png").exists() == (section in PLOTS)


@pytest.mark.slow
def test_another_head_is_what_importing_it_gives() -> None:
    (_, first), (_, second) = list(PIPELINES[SA](200, SCALE / 10))[:2]
    graph = import_fitted(first).graph
    other = import_fitted(second).graph
    assert with_head(graph, second[-1]).digest == other.digest != graph.digest


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_with_nothing_shared_no_plan_has_an_array_of_another(folder: Path) -> None:
    alone = packed(AC_ALONE, SCALE, folder)
    large = [file for file in alone.pickles if "large" in file]
    assert len(set(large)) == len(large) == 2
    shared = packed(AC, SCALE, folder)
    assert shared.store_bytes / shared.unshared_bytes < alone.store_bytes / alone.unshared_bytes
    assert pickle.loads(Path(large[0]).read_bytes()).predict(rows_for(AC, 3)).shape == (3,)


def test_vocabularies_are_shared_as_in_the_paper() -> None:
    for users in (WORD_USERS, CHAR_USERS):
        assert sum(users) == PLANS
        whole = spread(users, PLANS)
        assert [whole.count(i) for i in range(len(users))] == list(users)
        assert len(spread(users, 25)) == 25


def test_a_row_says_whether_its_number_was_reached() -> None:
    assert row("memory", 2.0, "MB", theirs=50.0, wanted="ratio >= 25")["reached"] == "yes"
    assert row("memory", 2.0, "MB", theirs=49.0, wanted="ratio >= 25")["reached"] == "MISSED"
    assert row("rows", 50.0, "rows/s", theirs=2.0, more_is_better=True, wanted="ratio >= 25")["reached"] == "yes"
    assert row("loading", 3.0, "s", wanted="ours <= 2.8")["reached"] == "MISSED"
    assert "reached" not in row("loading", 3.0, "s")
