"""`plan place`: of files, of a store, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from streamserve.cli.plan import app
from streamserve.errors import ConfigError
from streamserve.plan.compile import Plan, laid_out
from streamserve.plan.graph import Builder, InputForm
from streamserve.plan.packing import pack
from streamserve.plan.store import Store


def plan(by: float, plus: float) -> Plan:
    """Two arrays of 8,000 bytes: one by each argument."""
    builder = Builder(InputForm(kind="columns", columns=1_000))
    steps = {"narrow": False}
    first = builder.add("divide", [builder.source], params=steps, constants={"by": np.full(1_000, by)})
    return laid_out(
        builder.graph({"predict": builder.add("divide", [first], params=steps, constants={"by": np.full(1_000, plus)})})
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plans")
    for i in range(4):
        pack(plan(2.0 + i // 2, 10.0 + i), made / f"m{i}.plan", Store(made / "store"))
    return made


def test_those_that_share_are_proposed_for_one_pool(folder: Path) -> None:
    result = CliRunner().invoke(app, ["place", "--pools", "2", "--store", str(folder / "store"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert sorted(sorted(pool["models"]) for pool in found["pools"]) == [["m0", "m1"], ["m2", "m3"]]
    assert (found["bytes"], found["bytes_dealt_in_turn"], found["bytes_unshared"]) == (48_000, 64_000, 64_000)
    files = [str(folder / f"m{i}.plan") for i in (2, 0, 3, 1)]
    words = CliRunner().invoke(app, ["place", *files, "--pools", "2"]).output
    assert f"2 plans, 0.0 MB: {folder / 'm0.plan'}, {folder / 'm1.plan'}" in words


def test_nothing_to_place(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["place", "--pools", "2", "--store", str(tmp_path / "none")])
    assert isinstance(result.exception, ConfigError)
    assert "there is no plan to place" in str(result.exception)
