"""The generated reference pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamserve.cli.reference import cli_page, config_page, main
from streamserve.settings import schema

PAGES = Path(__file__).parent.parent.parent / "docs" / "reference"


def test_the_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(PAGES)]) == 0, capsys.readouterr().err


def test_a_stale_page_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    (tmp_path / "cli.md").write_text("old")
    assert main(["--check", str(tmp_path)]) == 1
    assert "cli.md; run `python -m streamserve.cli.reference`" in capsys.readouterr().err
    assert (tmp_path / "cli.md").read_text() == "old"


def test_every_key_has_a_meaning_and_allowed_values() -> None:
    for row in [line for line in config_page().splitlines() if line.startswith("| `")]:
        key, allowed, default, meaning = (cell.strip() for cell in row.strip("|").split(" | "))
        assert key and default and meaning
        assert allowed and allowed != "a value", key


def test_every_section_says_what_it_is_for() -> None:
    lines = config_page().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("## `["):
            assert lines[number + 2].strip(), line


def test_a_flag_is_off_by_default() -> None:
    rows = [line for line in cli_page().splitlines() if line.startswith("| `--json`")]
    assert rows
    assert all(row.split(" | ")[1] == "`false`" for row in rows)


def test_every_key_of_the_config_is_on_the_page() -> None:
    page = config_page()
    for definition in schema.root()["$defs"].values():
        for key in definition.get("properties", {}):
            assert f"`{key}`" in page or key in {"client", "guard", "freeze", "confidence", "name"}, key
