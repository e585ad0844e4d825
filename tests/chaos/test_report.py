"""What is told of a run, the file it goes into, and the command around it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from streamserve.chaos.clock import wrong_clock
from streamserve.chaos.faults import FAULTS
from streamserve.chaos.report import BEGIN, END, as_json, in_words, table, write_between
from streamserve.chaos.run import _broken
from streamserve.chaos.scene import Options, Promise, Result
from streamserve.cli.entry import run
from streamserve.errors import StreamserveError
from tests.chaos.test_account import run as made_up

PROMISE = Promise(gap_s=1.0, normal_s=2.0, twice=3)
RESULT = Result(
    fault="kill-worker",
    form="fused",
    rate_per_s=1_000.0,
    lasted_s=0.0,
    account=made_up(),
    promise=PROMISE,
    load_lag_s=0.01,
    broken=(),
    logs="/logs",
)


def test_a_row_says_what_was_promised_and_marks_what_was_not_kept() -> None:
    stalled = replace(RESULT, account=replace(RESULT.account, longest_gap_s=7.5, lost=2))
    text = table([RESULT, stalled], command="streamserve chaos --all", options=Options(), load_before=1.0)
    good, bad = text.splitlines()[-2:]
    assert "| kill-worker | fused | 0.0 | 2,000 | 0 | 0 (3) |" in good
    assert "**" not in good
    assert "| **2** |" in bad
    assert "| **7.50 (1.0)** |" in bad


def test_every_broken_promise_is_told_in_words() -> None:
    account = replace(RESULT.account, lost=1, twice=7, unknown=2, deleted=5, error=6, longest_gap_s=3, normal_after_s=9)
    words = _broken(account, PROMISE, 2.0)
    assert len(words) == 7
    assert "1 acknowledged requests have no terminal record" in words
    assert not _broken(replace(RESULT.account, longest_gap_s=1.9, normal_after_s=3.9), PROMISE, 2.0)
    told = in_words(replace(RESULT, account=account, broken=tuple(words)))
    assert told.count("NOT KEPT") == 7
    assert "/logs" in told


def test_a_result_is_json() -> None:
    assert json.loads(json.dumps(as_json(RESULT)))["account"]["in_time"] == 2_000


def test_the_table_goes_between_two_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "failures.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between(file, "new")
    write_between(file, "newer")
    assert file.read_text() == f"before\n{BEGIN}\n\nnewer\n\n{END}\nafter\n"
    file.write_text("nothing")
    with pytest.raises(StreamserveError, match="measured: begin"):
        write_between(file, "new")


def test_a_process_can_have_a_wrong_clock(tmp_path: Path) -> None:
    program = "import time; print(time.time(), time.time_ns() / 1e9)"
    environment = wrong_clock(tmp_path, -600.0)
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for wrong, right in zip(found.stdout.split(), told.stdout.split(), strict=True):
        assert abs(float(wrong) - float(right) + 600.0) < 10.0


def test_the_command_lists_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(["chaos", "--list"])
    assert left.value.code == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(FAULTS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which fault?"),
        (["--fault", "nonsense"], "there is no such fault; there are: kill-worker"),
        (["--fault", "kill-all", "--form", "round"], "use fused, split or both"),
        (["app.toml", "--fault", "kill-all"], "--request FILE is needed"),
        (["--fault", "kill-aggregator", "--form", "fused"], "not for an app that is fused"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(["chaos", *arguments])
    assert left.value.code == 2
    assert words in capsys.readouterr().err
