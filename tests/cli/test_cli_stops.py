"""A command that runs until it is asked to stop, asked while it is still imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from streamserve.cli.stops import EarlyStop, stops_in_order

TIMEOUT_S = 30
#: Put in the place of a module that the command imports: it says so, and never gets further.
HANGS = "open('reached', 'w').write('now')\nimport signal\nwhile True: signal.pause()\n"
CONFIG = 'app.name = "a"\npools.p.models = ["m"]\nmodels.m.source = "x:model"\nroutes.r.models = ["m"]\n'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("typer", ["up", "app.toml"]),
        ("pydantic", ["up", "app.toml"]),
        ("numpy", ["up", "app.toml"]),
        ("typer", ["broker", "start", "--foreground"]),
    ],
)
def test_it_ends_with_0_and_leaves_nothing(
    tmp_path: Path, module: str, command: list[str], number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "reached")
    (tmp_path / f"{module}.py").write_text(HANGS)
    (tmp_path / "app.toml").write_text(CONFIG)
    process = subprocess.Popen(
        [sys.executable, "-m", "streamserve.cli", *command],
        cwd=tmp_path,
        env={**os.environ, "STREAMSERVE_STATE": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert (tmp_path / "reached").read_text() == "now"  # waits until the module is being imported
            tree = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")
    assert tree == []


def test_one_that_comes_before_the_command_s_own_handlers_is_handed_over() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    stop, asked = EarlyStop(), []
    try:
        stop.install()
        stop.hold()
        signal.raise_signal(signal.SIGTERM)
        stop.hand_over(asked.append)
        assert asked == ["SIGTERM"]
        signal.raise_signal(signal.SIGINT)
        assert asked == ["SIGTERM", "SIGINT"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_which_commands_stop_in_order() -> None:
    assert stops_in_order(["up", "app.toml"])
    assert stops_in_order(["broker", "start", "--name", "x", "--foreground"])
    for other in ([], ["broker", "start"], ["broker", "status"], ["check", "up"], ["worker", "app.toml"], ["tail"]):
        assert not stops_in_order(other)
