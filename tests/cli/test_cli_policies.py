"""`streamserve policies`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamserve.cli.entry import app
from streamserve.core.selection.registry import POLICIES
from tests.settings.custom_policy import install


def told(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["policies", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_each_policy_has_one_line_that_says_when_to_use_it() -> None:
    lines = told().splitlines()
    assert [line.split()[0] for line in lines] == list(POLICIES)
    assert all(len(line.split()) > 4 and len(line) < 120 for line in lines)
    assert len({line.split(None, 1)[1] for line in lines}) == len(lines)


def test_as_json_with_those_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, broken="no_such_module:Policy")
    found = json.loads(told("--json"))
    assert found["softmax"] == "Boltzmann exploration on mean rewards."
    assert "cannot be imported" in found["broken"]
