"""The demo: judging and telling made-up runs; one real run, an interrupted one, one that cannot start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from rich.console import Console

from examples.demo import plot, report
from examples.demo.app import App, AppFailedError, running
from examples.demo.config import write_config
from examples.demo.faults import Switch, Trouble
from examples.demo.load import plan_load
from examples.demo.progress import Progress
from examples.demo.record import Recording, Request, Terminal, Weights, header, read_ref, read_terminal, third_of
from examples.demo.score import Score, score
from streamserve.core.messages import PROBABILITY_ONE, Choice, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason

PROJECT = Path(__file__).parents[2]
MODELS = ("good@1", "fair@1", "slow@1", "poor@1")
START_MS = 1_700_000_000_000
N = 3_000
SECONDS = 30.0


def terminal(request_ms: int, label: int | None, **changes: object) -> Terminal:
    facts = {"append_ms": request_ms + 20, "outcome": "ok", "reason": "all_answered", "label": label, "answered": 4}
    return Terminal(**{**facts, "missing": {}, **changes})  # type: ignore[arg-type]


def run_of(answer: Callable[[int, Request, int], list[Terminal]] | None = None) -> Recording:
    """3,000 requests in 30 s; by default each is answered rightly after 20 ms."""
    run = Recording(seconds=SECONDS, models=MODELS, deadline_ms=100)
    for number in range(N):
        sent_s = number * SECONDS / N
        request = Request(truth=number % 10, sent_s=sent_s, third=third_of(sent_s, SECONDS))
        ref, at_ms = (number % 4, number // 4), START_MS + round(1e3 * sent_s)
        run.requests.append(request)
        run.refs[ref] = number
        run.appended_ms[ref] = at_ms
        records = [terminal(at_ms, request.truth)] if answer is None else answer(number, request, at_ms)
        if records:
            run.terminals[ref] = records
        run.losses[ref] = {"good@1": float(request.third == 1), "poor@1": 0.5}
    return run


def check(judged: Score, words: str) -> bool:
    return next(check.passed for check in judged.checks if words in check.name)


def test_a_perfect_run_passes_every_check() -> None:
    judged = score(run_of())
    assert judged.passed
    assert judged.outcomes == {"ok": N, "partial": 0, "default": 0, "error": 0, "expired": 0}
    assert (judged.requests, judged.rate, judged.in_time_share, judged.good_share) == (N, 100.0, 1.0, 1.0)
    assert (judged.latency.p50_ms, judged.latency.p99_ms) == (20.0, 20.0)
    assert [third.error for third in judged.thirds] == [0.0, 0.0, 0.0]
    assert [third.requests for third in judged.thirds] == [1000, 1000, 1000]


def test_nothing_sent_passes_nothing() -> None:
    judged = score(Recording(seconds=SECONDS, models=MODELS, deadline_ms=100))
    assert not judged.passed
    assert not check(judged, "without a terminal record")
    assert not check(judged, "error added")
    assert judged.latency.p50_ms is None


def test_a_request_without_a_record_is_seen_and_counts_as_wrong() -> None:
    judged = score(run_of(lambda number, request, at_ms: [] if number == 7 else [terminal(at_ms, request.truth)]))
    assert judged.without_record == 1
    assert not check(judged, "without a terminal record")
    assert judged.thirds[0].error == pytest.approx(1 / 1000)
    assert judged.in_time_share == pytest.approx(1 - 1 / N)


@pytest.mark.parametrize(
    ("second", "different"),
    [({}, 0), ({"append_ms": START_MS, "answered": 3}, 0), ({"label": 5}, 1), ({"outcome": "partial"}, 1)],
)
def test_two_records_of_one_request_are_told_apart(second: dict[str, object], different: int) -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        first = terminal(at_ms, request.truth)
        return [first, replace(first, **second)] if number == 0 else [first]  # type: ignore[arg-type]

    judged = score(run_of(answer))
    assert (judged.with_different, judged.repeated) == (different, 1 - different)
    assert check(judged, "two different") is (different == 0)


def test_a_record_of_no_request_is_a_stranger() -> None:
    run = run_of()
    run.terminals[(3, 10**6)] = [terminal(START_MS, 1)]
    assert score(run).strangers == 1


def test_only_the_first_record_of_a_request_counts() -> None:
    def answer(_number: int, request: Request, at_ms: int) -> list[Terminal]:
        return [terminal(at_ms, -1, outcome="default"), terminal(at_ms, request.truth)]

    judged = score(run_of(answer))
    assert judged.outcomes["default"] == N
    assert not check(judged, "default answers")


@pytest.mark.parametrize(("wrong_of_100", "passed"), [(3, True), (4, False)])
def test_error_added_in_the_broken_third(wrong_of_100: int, passed: bool) -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        is_wrong = request.third == 1 and number % 100 < wrong_of_100
        return [terminal(at_ms, request.truth + 1 if is_wrong else request.truth)]

    judged = score(run_of(answer))
    assert judged.thirds[1].error == pytest.approx(wrong_of_100 / 100)
    assert check(judged, "error added") is passed


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({"append_ms": 100}, True),
        ({"append_ms": 101}, False),
        ({"outcome": "partial", "answered": 3}, True),
        ({"outcome": "partial", "answered": 2}, False),
        ({"outcome": "default"}, False),
        ({"outcome": "expired"}, False),
    ],
)
def test_what_is_good_enough(changes: dict[str, object], good: bool) -> None:
    """In 2 of 100 requests, so that a single kind of bad answer already misses the 99 %."""

    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        if number % 100 >= 2:
            return [terminal(at_ms, request.truth)]
        at = {"append_ms": at_ms + int(changes["append_ms"])} if "append_ms" in changes else {}  # type: ignore[call-overload]
        return [terminal(at_ms, request.truth, **{**changes, **at})]

    judged = score(run_of(answer))
    assert check(judged, "in time") is good
    assert judged.good_share == pytest.approx(1.0 if good else 0.98)


@pytest.mark.parametrize(("defaults", "passed"), [(15, True), (16, False)])
def test_most_default_answers(defaults: int, passed: bool) -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        return [terminal(at_ms, request.truth, outcome="default" if number < defaults else "ok")]

    assert check(score(run_of(answer)), "default answers") is passed


def test_a_request_without_a_timestamp_was_not_in_time() -> None:
    run = run_of()
    del run.appended_ms[(0, 0)]
    assert score(run).in_time_share == pytest.approx(1 - 1 / N)


def test_members_by_third() -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        missing = {"slow@1": "late" if number % 2 else "shed", "poor@1": "not_awaited"} if request.third == 1 else {}
        return [terminal(at_ms, request.truth, missing=missing)]

    first, broken, _last = score(run_of(answer)).thirds
    assert (first.members["good@1"].error, broken.members["good@1"].error) == (0.0, 1.0)
    assert broken.members["slow@1"].error is None
    assert broken.members["slow@1"].why_missing == {"late": 500, "shed": 500}
    assert broken.members["poor@1"].missing == 0


def with_weights(run: Recording) -> Recording:
    for number in range(300):
        heavy = 0.97 if number < 100 or number >= 200 else 0.01
        rest = (1 - heavy) / 3
        shares = {"good@1": heavy, "fair@1": rest, "slow@1": rest, "poor@1": rest}
        run.weights.append(Weights(append_ms=START_MS + 100 * number, shares=shares))
    return run


def printed(run: Recording) -> str:
    console = Console(width=130, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - closed below
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
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - closed below
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


@pytest.mark.parametrize("text", [None, b"", b"3", b"a-1", b"1-", b"-1", b"\xff-1", b"1-2-3"])
def test_what_is_no_ref(text: bytes | None) -> None:
    assert read_ref(text) is None


def test_ref_from_headers() -> None:
    assert read_ref(header([("ss-ref", b"0-1"), ("x", None), ("ss-ref", b"3-17")], "ss-ref")) == (3, 17)
    assert header(None, "ss-ref") is None


def test_reads_what_streamserve_writes() -> None:
    """Both kinds of record as the product's own encoder makes them."""
    from streamserve.kafka.codecs.predictions import encode_predictions

    n = 2
    missing = np.zeros((n, 4), np.uint8)
    missing[0, 2] = Missing.LATE
    predictions = Predictions(
        partition=1,
        route="digits",
        models=MODELS,
        offsets=np.arange(n, dtype=np.int64),
        append_ms=np.full(n, START_MS, np.int64),
        row_starts=np.array([0, 1, 1], np.int64),
        labels=np.array([7], np.int64),
        probabilities=None,
        classes=None,
        members=(),
        outcome=np.array([Outcome.PARTIAL, Outcome.EXPIRED], np.uint8),
        reason=np.array([Reason.MEMBERS_MISSING, Reason.DEADLINE_PASSED], np.uint8),
        confidence=np.array([0.9, np.nan]),
        choice=Choice(
            chosen=np.full(n, 15, np.uint64),
            probability=np.full(n, PROBABILITY_ONE, np.int64),
            epoch=np.full(n, 3, np.int64),
            stale=np.zeros(n, bool),
        ),
        answered=np.array([11, 0], np.uint64),
        missing=missing,
        off_epoch=np.zeros(n, bool),
        late=np.zeros(n, bool),
        ids=[None, None],
        keys=[None, None],
        traces=[None, None],
        details={},
        queue_ms=np.full(n, 3, np.int32),
        inference_ms=np.full(n, 4, np.int32),
        total_ms=np.full(n, 9, np.int32),
    )
    partial, expired = (read_terminal(value or b"", 5) for value in encode_predictions(predictions).values)
    assert partial == Terminal(
        append_ms=5,
        outcome="partial",
        reason="members_missing",
        label=7,
        answered=3,
        missing={"slow@1": "late"},
    )
    assert (expired.outcome, expired.label, expired.answered) == ("expired", None, 0)


def test_load_is_poisson_and_uses_every_image() -> None:
    images, labels = np.arange(40, dtype=np.uint8).reshape(20, 2), np.arange(20, dtype=np.int64)
    plan = plan_load(images, labels, seconds=50.0, per_second=100.0)
    gaps = np.diff([0.0, *plan.at_s])
    assert len(plan.at_s) == pytest.approx(5000, abs=350)
    assert gaps.mean() == pytest.approx(0.01, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    assert len(set(plan.bodies[:20])) == 20
    body = json.loads(plan.bodies[0])["inputs"][0]
    assert (body["shape"], body["data"]) == ([1, 2], images[plan.truths[0]].tolist())


def test_faults_are_in_force_in_the_middle_third_only(tmp_path: Path) -> None:
    switch = Switch(control=tmp_path / "faults.json", trouble=Trouble(broken="a", slow="b", delay_ms=300))
    seen = []
    for third in range(3):
        switch.turn(third)
        seen.append(json.loads(switch.control.read_text()))
    assert seen == [{}, {"a": {"shuffle": True}, "b": {"delay_ms": 300.0}}, {}]


def test_the_slow_model_misses_the_deadline_and_both_are_served(tmp_path: Path) -> None:
    served, trouble = write_config(tmp_path, with_cnn=False), Trouble()
    assert trouble.delay_ms > 2 * served.route.deadline_ms
    assert {f"{trouble.broken}@1", f"{trouble.slow}@1"} <= set(served.route.models)
    assert (len(served.route.models), served.pools) == (5, 3)


def test_the_network_is_added_where_torch_is(tmp_path: Path) -> None:
    served = write_config(tmp_path, with_cnn=True)
    assert served.route.models[-1] == "cnn@1"
    parsed = tomllib.loads(served.config.read_text())
    assert parsed["pools"]["networks"]["models"] == ["linear", "mlp", "cnn"]
    assert parsed["models"]["cnn"]["options"]["options"] == {"output": "logits"}


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
