"""The demo: one real run, an interrupted one, one that cannot start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from examples.common.app import App, AppFailedError, running

PROJECT = Path(__file__).parents[2]


def test_an_app_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[app]\nname = "x"\n')
    with (
        pytest.raises(AppFailedError, match=r"did not start(.|\n)*pools"),
        running(bad, log=tmp_path / "up.log", environment={}, folder=PROJECT, most_s=60.0),
    ):
        raise AssertionError("it must not become ready")


def processes_of(folder: Path) -> list[str]:
    """Command lines that name something in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(line)
    return found


@pytest.fixture
def state() -> Iterator[Path]:
    """A short folder for the demo's temporary files, by which its processes are known."""
    with tempfile.TemporaryDirectory(prefix="demo-test-") as folder:
        yield Path(folder)


def demo(state: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demo", "--results", str(state / "results"), *options],
        cwd=PROJECT,
        env={**os.environ, "TMPDIR": str(state), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_short_run(state: Path) -> None:
    """Only what does not depend on the speed of the machine; whether every check passed is what the exit code says."""
    with demo(state, "--seconds", "20", "--rate", "200") as process:
        text, _ = process.communicate()
    assert "last third" in text, text
    body = json.loads((state / "results" / "demo.json").read_text())
    assert process.returncode == (0 if body["passed"] else 1), text
    assert body["requests"] > 3_000
    assert set(body["outcomes"]) == {"ok", "partial", "default", "error", "expired"}
    exactly_one = (body["without_record"], body["with_different"], body["strangers"], body["refused"])
    assert exactly_one == (0, 0, 0, 0), text
    assert body["outcomes"]["error"] == 0
    kernel = [third["members"]["kernel@1"] for third in body["thirds"]]
    assert kernel[0]["error"] < 0.3 < 0.6 < kernel[1]["error"], text
    assert body["labels_learnt"] > 0
    in_trouble = [point["shares"]["kernel@1"] for point in body["weights"] if 11 < point["s"] < 13]
    assert in_trouble
    assert max(in_trouble) < 0.1, text
    assert (state / "results" / "demo.png").stat().st_size > 10_000
    assert processes_of(state) == []


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ctrl_c_leaves_nothing_behind(state: Path) -> None:
    with demo(state, "--seconds", "60") as process:
        if process.stdout is None:
            raise AssertionError("no pipe")
        for line in process.stdout:
            if line.startswith("first third"):
                break
        process.send_signal(signal.SIGINT)
        rest = threading.Thread(target=process.stdout.read, daemon=True)
        rest.start()
        assert process.wait(40) == 130
        rest.join(5)
    assert processes_of(state) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_java_is_said_in_words(state: Path) -> None:
    with demo(state, "--seconds", "5", STREAMSERVE_JAVA=str(state / "no-java")) as process:
        text, _ = process.communicate()
    assert process.returncode == 1
    assert "the demo failed" in text
    assert "no-java" in text
    assert "Traceback" not in text
    assert processes_of(state) == []


def test_stopping_an_app_that_ends_badly_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("it went wrong\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], text=True) as process:
        process.wait()
        with pytest.raises(AppFailedError, match=r"exit code 3(.|\n)*it went wrong"):
            App(process=process, log=tmp_path / "log").stop()
