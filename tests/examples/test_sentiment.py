"""The sentiment demo: what it makes of a recording, and one short run through a real Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.sentiment.load import Planned
from examples.sentiment.record import CEILING, CONTEXTS, PLAIN, Recording, Text
from examples.sentiment.score import BEST, ORACLE, over_time, score

PROJECT = Path(__file__).parents[2]
MODELS = ("films@1", "news@1")


def recording(n: int = 200, **right: int) -> Recording:
    """Two domains; each pipeline is right about its own and about half of the other; a route about n % 100 < right."""
    run = Recording(seconds=20.0, models=MODELS, labels_sent=2 * n, labels_learnt=2 * n)
    for number in range(n):
        domain, half = ("films", "news")[number % 2], float(number // 2 % 2)
        text = Text(domain=domain, truth=1, sent_s=20.0 * number / n)
        text.losses = {model: 0.0 if model.startswith(domain) else half for model in MODELS}
        for route in (CONTEXTS, PLAIN, CEILING):
            text.answers[route] = int(number % 100 < right.get(route, 100))
            run.refs[len(run.refs) % 4, len(run.refs) // 4] = (number, route)
        run.texts.append(text)
    return run


def test_the_score_tells_hindsight_from_what_was_served() -> None:
    judged = score(recording(contexts=95, plain=90))
    assert judged.accuracy[CONTEXTS] == 0.95 and judged.accuracy[PLAIN] == 0.9
    assert judged.accuracy[BEST] == 0.75 and judged.accuracy[ORACLE] == 1.0
    assert judged.by_domain["films"]["films@1"] == 1.0 and judged.by_domain["news"]["films@1"] == 0.5
    assert judged.passed


@pytest.mark.parametrize(
    ("right", "missed"),
    [({"contexts": 91, "plain": 90}, "same policy"), ({"contexts": 80, "plain": 60}, "of the four")],
)
def test_a_gain_that_is_too_small_is_a_miss(right: dict[str, int], missed: str) -> None:
    judged = score(recording(**right))
    assert not judged.passed
    assert [missed in check.name for check in judged.checks if not check.passed] == [True]


def test_a_request_without_a_record_is_a_miss() -> None:
    run = recording()
    del run.texts[3].answers[PLAIN]
    judged = score(run)
    assert judged.without_record == 1 and not judged.passed and judged.judged == 199


def test_accuracy_over_time_looks_back() -> None:
    run = recording(contexts=50)
    at_s, shares = over_time(run.texts, CONTEXTS, 50)
    assert (at_s[0], shares[0]) == (4.9, 1.0)
    assert min(shares) == 0.0 and shares[-1] == 0.0


def test_domains_come_equally_often_and_texts_only_again_when_all_were_there() -> None:
    texts = [f"f{n}" for n in range(9)] + [f"n{n}" for n in range(3)]
    planned = Planned(texts, [1] * 12, ["films"] * 9 + ["news"] * 3, 18)
    assert [domain for _, domain, _ in planned.texts].count("news") == 9
    news = [text for text, domain, _ in planned.texts if domain == "news"]
    assert all(sorted(news[at : at + 3]) == ["n0", "n1", "n2"] for at in (0, 3, 6))
    assert len({text for text, domain, _ in planned.texts if domain == "films"}) == 9


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_run_learns_a_state_for_each_domain_and_loses_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "examples.sentiment",
        "--seconds",
        "15",
        "--rate",
        "40",
        "--results",
        str(tmp_path),
    ]
    ran = subprocess.run(
        command, cwd=PROJECT, env=dict(os.environ), capture_output=True, text=True, timeout=380, check=False
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr  # 600 texts are too few to hold it to the gain
    found = json.loads((tmp_path / "sentiment.json").read_text())
    assert found["passed"] == (ran.returncode == 0)
    assert found["without_record"] == 0 and found["refused"] == 0 and found["texts"] == 600, ran.stdout
    assert found["labels_learnt"] == found["labels_sent"] == 1_200
    domains = sorted(found["by_domain"])
    assert domains == ["films", "news", "products", "tweets"]
    assert set(found["states"]) == {"plain", "contexts", *(f"contexts/{domain}" for domain in domains)}
    assert found["judged"] > 500 and found["members"] > 100
    print({name: round(share, 3) for name, share in found["accuracy"].items()})
    # Equal weights are that much better than any single pipeline already; a wrong state by context would be worse.
    assert found["accuracy"][CONTEXTS] > found["accuracy"][BEST] + 0.03
    assert (tmp_path / "sentiment.png").stat().st_size > 10_000
    _can_be_asked_afterwards(tmp_path, ran.stdout)


def _can_be_asked_afterwards(results: Path, told: str) -> None:
    """The commands that the run prints at its end, on its Kafka started again: every figure is of its outcomes."""
    for command in ("broker start --name sentiment", "bandit evaluate", "replay", "outcomes export", "broker stop"):
        assert f"  streamserve {command}" in told
    environment = {**os.environ, "STREAMSERVE_STATE": str(results / "state")}

    def asked(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "streamserve.cli", *command],
            cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    asked("broker", "start", "--name", "sentiment")
    try:
        config, route = "examples/sentiment.toml", ["--route", CONTEXTS]
        report = json.loads(asked("bandit", "evaluate", config, *route, "--policy", "stack", "--json"))
        there, replayed = report["served_there"], report["estimates"][0]
        assert replayed["n"] >= 100 and report["as_votes"] <= replayed["n"] - there["n"]
        # The same policy over the same outcomes, published at other times.
        assert abs(there["value"] - replayed["value"]) < 0.05, report
        table = results / "outcomes.csv"
        asked("outcomes", "export", config, *route, "--out", str(table))
        assert len(table.read_text().splitlines()) == 1 + 600
        again = json.loads(asked("replay", config, *route, "--model", "films", "--json"))
        versus = {one["name"]: one for one in again["versus"]}
        assert versus["films@1"]["agreement"] == 1.0, again
    finally:
        asked("broker", "stop", "--name", "sentiment")
