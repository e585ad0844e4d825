"""`streamserve chaos` on a config of one's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from streamserve.chaos.report import BEGIN, END
from tests.acceptance.foreign import oip
from tests.acceptance.running import COMMAND, PATIENCE, project

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = "def plus(batch):\n    return batch.sum(axis=1)\n"
CONFIG = """
[app]
name = "APP"
guard_ms = 100

[pools.main]
models = ["plus"]

[models.plus]
source = "acceptance_models:plus"

[routes.sum]
models = ["plus"]
deadline_ms = 1000

[routes.other]
models = ["plus"]
deadline_ms = 1000
"""


def chaos(folder: Path, request: bytes, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Nothing listens at the address that the config names: it is not asked."""
    config = project(folder, config=CONFIG, model=MODEL, servers="127.0.0.1:1")
    (folder / "request.json").write_bytes(request)
    options = ["--request", "request.json", "--rate", "200", "--seconds", "2", "--patience", str(PATIENCE), "--json"]
    command = [*COMMAND, "chaos", config.name, "--fault", "kill-worker", *options, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def test_promises_that_are_kept_and_written_down(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n")
    done = chaos(tmp_path, oip([1.0, 2.0], [1, 2]), "--write", "page.md")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["fault"], told["form"], told["broken"]) == ("kill-worker", "fused", [])
    assert told["account"]["acknowledged"] > 500
    page = (tmp_path / "page.md").read_text()
    assert "`streamserve chaos app.toml --fault kill-worker --rate 200 --seconds 2" in page
    assert f"| kill-worker | fused | 0.0 | {told['account']['acknowledged']:,} | 0 |" in page


def test_a_promise_that_is_not_kept_is_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    done = chaos(tmp_path, b"this is no request")
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["account"]["lost"] == 0
    assert f"{told['account']['acknowledged']} requests ended as error" in told["broken"]
    assert (Path(told["logs"]) / "worker-main-0.log").is_file()
