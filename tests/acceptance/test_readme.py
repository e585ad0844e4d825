"""Every command and every block of code in the README runs as it stands there."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from examples.demo import report
from examples.demo.score import score
from streamserve.settings import load_settings
from tests.acceptance.running import ROOT, STOP_S, TIMEOUT_S
from tests.examples.made_up import run_of

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
ADDRESS = "localhost:9092"
MODEL_FILE = "# workers/my_model.py\n"


def blocks(kind: str) -> list[str]:
    return [text for language, text in BLOCKS if language == kind]


def the_block(kind: str, words: str) -> str:
    (text,) = [text for text in blocks(kind) if words in text]
    return text


def test_every_block_is_of_a_kind_that_is_checked_here() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python", "toml", "text"}
    assert len(blocks("sh")) == 3
    assert len(blocks("python")) == 3
    assert len(blocks("toml")) == 2
    assert len(blocks("text")) == 1


def test_the_report_that_is_shown_is_of_the_form_that_the_demo_prints() -> None:
    _, *shown = the_block("text", "exactly one").split("...\n")
    console = Console(width=130, record=True, file=io.StringIO())
    made_up = run_of()
    report.show(console, score(made_up), made_up)
    printed = labels(console.export_text())
    models = re.findall(r"^\[models\.(\w+)\]", (ROOT / "examples" / "demo.toml").read_text("utf-8"), re.MULTILINE)
    assert labels("".join(shown)) - printed <= {*models, "cnn"}
    assert shown[-1].count("PASS") == len(score(made_up).checks)


def labels(text: str) -> set[str]:
    """What each line of a report begins with."""
    return {re.split(r"\s{2,}", line.strip())[0] for line in text.splitlines() if line.strip(" ─")}


def test_every_make_target_that_is_named_exists() -> None:
    named = set(re.findall(r"\bmake ([a-z-]+)", "\n".join([*blocks("sh"), *re.findall(r"`([^`\n]+)`", README)])))
    assert {"demo", "test", "help", "bench", "clean-data"} <= named
    declared = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert named <= declared


def test_every_linked_file_and_folder_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_configs_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, kafka = blocks("toml")
    (variable,) = re.findall(r"the password: (STREAMSERVE_\w+)", kafka)
    monkeypatch.setenv(variable, "secret")
    file = tmp_path / "app.toml"
    file.write_text(f"{app}\n{kafka}", "utf-8")
    config = load_settings(file)
    assert config.app.name == "digits"
    assert config.fused
    assert config.broker.bootstrap_servers == "kafka-1:9092,kafka-2:9092"
    assert config.broker.client.sasl_username == "me"
    assert config.broker.client.sasl_password is not None
    (count,) = re.findall(r"`STREAMSERVE_APP__PARTITIONS=(\d+)`", README)
    monkeypatch.setenv("STREAMSERVE_APP__PARTITIONS", count)
    assert load_settings(file).app.partitions == int(count)


def environment(folder: Path) -> dict[str, str]:
    """As a shell has it in which the project's `.venv` is active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "STREAMSERVE_STATE": str(folder / "state"), "PYTHONUNBUFFERED": "1"}


def run(command: list[str], cwd: Path, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@contextmanager
def started(command: str, project: Path, folder: Path) -> Iterator[str]:
    """A command that stays, in the first terminal; the address that its `ready` line names."""
    process = subprocess.Popen(
        command.split(),
        cwd=project,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            while not (said and said[-1].startswith("ready after")):
                line = process.stdout.readline()
                assert line, "".join(said)
                said.append(line)
            (address,) = re.findall(r" serves at (\S+);", said[-1])
            yield address
            tree = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            assert process.wait(STOP_S + 5) == 0
            assert psutil.wait_procs(tree, timeout=1)[1] == []
        finally:
            process.kill()


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_model_of_ones_own_is_served_as_the_readme_says(tmp_path: Path) -> None:
    *before, up = the_block("sh", "streamserve init").splitlines()
    assert before[0] == "streamserve init my-project"
    run(["bash", "-ec", "\n".join(before)], tmp_path, tmp_path)
    project = tmp_path / "my-project"
    check_the_model(project, tmp_path)
    with started(up, project, tmp_path) as address:
        told = run(["bash", "-ec", the_block("sh", "streamserve send")], project, tmp_path)
        assert "ok (all answered), label 0" in told
        run_client_block(address, project, tmp_path)
        foreign = the_block("python", "from confluent_kafka").replace(ADDRESS, address)
        told = run([sys.executable, "-c", foreign], project, tmp_path)
        assert '"id":"flower-1"' in told
        assert '"outcome":"ok"' in told


def check_the_model(project: Path, folder: Path) -> None:
    """The model in the README is the one that `init` writes, and it runs."""
    block = the_block("python", MODEL_FILE)
    written = (project / "workers" / "my_model.py").read_text("utf-8")
    assert block.removeprefix(MODEL_FILE).strip() in written
    told = run([sys.executable, "-c", f"{block}\nprint(model.predict([[5.1, 3.5, 1.4, 0.2]]))"], project, folder)
    assert told.strip() == "[0]"


def run_client_block(address: str, project: Path, folder: Path) -> None:
    block = the_block("python", "from streamserve import Client")
    assert ADDRESS in block
    body = textwrap.indent(block.replace(ADDRESS, address), "    ")
    program = f"import asyncio\nasync def main():\n{body}\nasyncio.run(main())\n"
    label, outcome, confidence = run([sys.executable, "-c", program], project, folder).split()
    assert (float(label), outcome) == (0, "ok")
    assert 0.5 < float(confidence) <= 1
