"""What every command has in common: quick help, words instead of tracebacks, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamserve.cli.entry import COMMANDS, load_command, run
from streamserve.supervisor.plan import program

# Each costs tens of milliseconds at least; none is needed to say what commands there are.
HEAVY = ("numpy", "pydantic", "aiokafka", "msgspec", "prometheus_client", "sklearn", "torch", "asyncio", "rich")


def called(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        run(arguments)
    code = left.value.code
    assert isinstance(code, int)
    out, err = capfd.readouterr()
    return code, out, err


def imported_by(program: str) -> set[str]:
    program += "\nimport sys; print(' '.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {module.partition(".")[0] for module in done.stderr.split()}


def test_the_package_alone_imports_nothing_heavy() -> None:
    assert not imported_by("import streamserve").intersection(HEAVY)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(option: str) -> None:
    program = f"""
import sys
import streamserve.cli
sys.argv = ["streamserve", {option!r}]
try:
    streamserve.cli.main()
except SystemExit as left:
    assert left.code == 0
"""
    assert not imported_by(program).intersection(HEAVY)


def best_of_s(tries: int, command: list[str]) -> float:
    """The quickest of several runs: other work on the machine only adds to the others."""
    took = []
    for _ in range(tries):
        began_s = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        took.append(time.perf_counter() - began_s)
    return min(took)


@pytest.mark.parametrize(
    ("command", "most_s"),
    [
        pytest.param([sys.executable, "-c", "import streamserve"], 0.3, id="import"),
        pytest.param([*program(), "--help"], 0.5, id="help"),
    ],
)
def test_a_start_is_quick(command: list[str], most_s: float) -> None:
    assert best_of_s(5, command) <= most_s


def test_help_names_every_command_in_plain_text(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = called(capfd, "--help")
    assert code == 0
    assert all(f"\n  {name} " in out and lazy.summary in out for name, lazy in COMMANDS.items())
    assert "\x1b" not in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_called(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capfd, name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: streamserve {name}")
    assert load_command(name).help


def test_a_slip_in_a_command_is_answered_with_a_guess(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = called(capfd, "chekc", "x.toml")
    assert code == 2
    assert "No such command 'chekc'. Did you mean 'check'?" in err


def test_an_error_of_the_user_is_told_in_words(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = called(capfd, "check", str(tmp_path / "none.toml"))
    assert (code, out) == (2, "")
    assert (
        err == f"streamserve: {tmp_path}/none.toml: no such file; `streamserve init NAME` writes a project with one\n"
    )


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "loading")
    (tmp_path / "waiting.py").write_text("open('loading', 'w').write('now')\nimport signal\nsignal.pause()\n")
    (tmp_path / "app.toml").write_text(
        'app.name = "a"\npools.p.models = ["m"]\nmodels.m.source = "waiting:model"\nroutes.r.models = ["m"]\n'
    )
    program = [sys.executable, "-m", "streamserve.cli", "check", "app.toml"]
    process = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert (tmp_path / "loading").read_text() == "now"  # waits until the model is being loaded
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
