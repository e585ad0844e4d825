"""`docs/failures.md` against the faults and tests that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamserve.chaos.faults import FAULTS
from streamserve.chaos.report import BEGIN, END

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text("utf-8")
PROSE, _, REST = PAGE.partition(BEGIN)
MEASURED = REST.partition(END)[0]
TESTS = "\n".join(file.read_text("utf-8") for file in (ROOT / "tests" / "acceptance" / "faults").glob("test_*.py"))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_explained_measured_and_done_by_a_test(fault: str) -> None:
    assert f"`{fault}`" in PROSE
    assert f"| {fault} |" in MEASURED
    name = fault.removeprefix("pause-") if fault.startswith("pause-") else fault
    assert f'"{name}"' in TESTS


def test_every_test_that_is_named_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_row_names_a_fault_or_a_test() -> None:
    rows = [line for line in PROSE.splitlines() if line.startswith("| ") and not line.startswith("| failure")]
    assert len(rows) > 20
    for row in rows:
        last = row.rstrip(" |").rpartition(" | ")[2]
        assert any(f"`{fault}`" in last for fault in FAULTS) or "`tests/" in last, row


def test_nothing_was_lost_when_it_was_measured() -> None:
    rows = [line.split(" | ") for line in MEASURED.splitlines() if line.startswith("| ") and "lasted" not in line]
    assert len(rows) >= len(FAULTS)
    assert [row for row in rows if row[4].split()[0] != "0"] == []
