"""The demo: telling made-up runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from examples.demo import plot, report
from examples.demo.progress import Progress
from examples.demo.record import Recording, Request, Terminal, Weights
from examples.demo.score import score
from tests.examples.made_up import MODELS, SECONDS, START_MS, run_of, terminal


def with_weights(run: Recording) -> Recording:
    for number in range(300):
        heavy = 0.97 if number < 100 or number >= 200 else 0.01
        rest = (1 - heavy) / 3
        shares = {"good@1": heavy, "fair@1": rest, "slow@1": rest, "poor@1": rest}
        run.weights.append(Weights(append_ms=START_MS + 100 * number, shares=shares))
    return run


def printed(run: Recording) -> str:
    console = Console(width=130, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  (closed below)
    try:
        report.show(console, score(run), run)
        return console.export_text()
    finally:
        console.file.close()


def test_the_report_says_what_a_reader_wants_to_know() -> None:
    text = printed(with_weights(run_of()))
    assert "ok 3,000, partial 0, default 0, error 0, expired 0" in text
    assert "0 without a terminal record, 0 with different ones" in text
    assert text.count("PASS") == 5
    assert "MISS" not in text
    line = next(line for line in text.splitlines() if line.startswith("good ") and "│" in line)
    first, broken, last = line.removeprefix("good ").split("│")[:3]
    assert (first.count("█"), broken.count("█"), last.count("█")) == (20, 0, 20)


def test_a_model_that_is_always_late_is_told_so_however_many_were_decided_without_it() -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        why = "late" if number % 10 == 0 else "not_awaited"
        return [terminal(at_ms, request.truth, missing={"slow@1": why} if request.third == 1 else {})]

    text = printed(with_weights(run_of(answer)))
    (slow,) = (line for line in text.splitlines() if line.startswith("  slow ") and "late" in line)
    assert slow.split() == ["slow", "-", "(late", "for", "100%)", "-", "-"]
    assert "late for: of the requests that were not decided without it" in text
    assert "late for" not in printed(with_weights(run_of()))


def test_the_report_of_an_empty_run_is_not_an_error() -> None:
    text = printed(Recording(seconds=SECONDS, models=MODELS, deadline_ms=100))
    assert text.count("MISS") == 3


def test_json_and_picture(tmp_path: Path) -> None:
    run = with_weights(run_of())
    report.write_json(tmp_path / "demo.json", score(run), run)
    body = json.loads((tmp_path / "demo.json").read_text())
    assert body["passed"] is True
    assert body["thirds"][1]["members"]["good@1"]["error"] == 1.0
    assert body["weights"][0] == {"s": 0.0, "shares": dict.fromkeys(MODELS, 0.25)}
    plot.write_png(tmp_path / "demo.png", score(run), run, trouble="good is bad")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_picture_of_a_run_without_answers(tmp_path: Path) -> None:
    run = run_of(lambda *_: [])
    run.losses.clear()
    plot.write_png(tmp_path / "demo.png", score(run), run, trouble="")
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_rolling_errors_look_back_a_few_seconds() -> None:
    times_s, errors = plot.rolling_errors(run_of())
    assert np.nanmax(errors[""]) == 0.0
    assert errors["good@1"][times_s < 9].max() == 0.0
    assert errors["good@1"][(times_s > 14) & (times_s < 19)].min() == 1.0


def test_progress_tells_each_request_once() -> None:
    run = run_of()
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  (closed below)
    progress = Progress(console=console, run=run)
    every, run.requests = run.requests, []
    for tenth in range(300):
        run.requests = every[: tenth * 10]
        progress.at(tenth / 10)
    console.file.close()
    lines = console.export_text().splitlines()
    assert len(lines) == 9
    counts = [int(line.split(" ok ")[1].split()[0]) for line in lines]
    assert sum(counts) == pytest.approx(100 * (27 - 0.5), abs=2)


def test_spark_shows_what_is_above_nothing() -> None:
    assert report.spark([0.0, 0.03, 0.5, 1.0, 2.0]) == " ▁▄██"
