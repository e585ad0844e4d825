"""The pytest plugin: `--broker` and what it means."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (folder / "test_it.py").write_text("def test_it(broker): assert broker.kind == 'address'\n", "utf-8")
    plugin = ["-p", "streamserve.testing.broker_fixture", "-p", "no:cacheprovider", "-rs", "-W", "error"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *options, str(folder)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_testcontainers_are_skipped_where_no_engine_answers(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--broker=testcontainers", DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "no Docker engine answers" in done.stdout or "is not installed" in done.stdout


def test_a_running_broker_s_address_is_passed_on(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, "--broker=127.0.0.1:1").stdout


def test_a_broker_option_without_meaning_is_refused(tmp_path: Path) -> None:
    assert "use own, testcontainers, or the HOST:PORT" in run_pytest(tmp_path, "--broker=nonsense").stderr
