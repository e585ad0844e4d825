"""`streamserve bandit evaluate` and `outcomes export`, up to the broker and from what it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamserve.cli import bandit, outcomes
from streamserve.cli.entry import app, run
from streamserve.core.records import OutcomeRecord
from streamserve.testing.policy_checks import outcome_of
from tests.settings.digits import DIGITS

MODELS = ("linear@1", "forest@1")


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "app.toml"
    file.write_text(DIGITS)
    return str(file)


def logged(n: int) -> list[OutcomeRecord]:
    """Labelled outcomes of both models: the forest is always right, the linear one never."""
    found = []
    for offset in range(n):
        made = outcome_of({MODELS[0]: 1.0, MODELS[1]: 0.0}, chosen=MODELS, offset=offset)
        decision = replace(made.decision, members={MODELS[0]: [3], MODELS[1]: [7]}, label=[3], route="digits")
        decision = replace(decision, probabilities={}, classes=())  # as of a policy that does not read them
        found.append(
            replace(made, route="digits", decision=decision, has_label=True, label=7, partition=0, feedback=(0, offset))
        )
    return found


def answered(monkeypatch: pytest.MonkeyPatch, found: list[OutcomeRecord]) -> None:
    """A log that holds these outcomes."""

    async def read(*_: object) -> list[OutcomeRecord]:
        return found

    monkeypatch.setattr(bandit, "read_outcomes", read)
    monkeypatch.setattr(outcomes, "read_outcomes", read)


def told(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*arguments, "--bootstrap-servers", "127.0.0.1:1"])
    return done.exit_code, done.output


def test_a_policy_is_replayed(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, logged(200))
    for policy, earned in (("forest", 1.0), ("linear@1", 0.0), ('{"name":"static","weights":{"forest":1}}', 1.0)):
        code, output = told("bandit", "evaluate", config, "--policy", policy, "--json")
        report = json.loads(output)
        assert code == 0
        assert [(one["name"], one["value"], one["n"]) for one in report["estimates"]] == [("replay", earned, 200)]
        assert (report["served"]["name"], report["served"]["value"]) == ("served", 0.0)
    code, output = told("bandit", "evaluate", config, "--policy", "hedge")
    assert code == 0
    assert "replay" in output
    assert "95 % interval" in output


def test_policies_are_told_beside_each_other(config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answered(monkeypatch, logged(200))
    picture = tmp_path / "policies.png"
    asked = ["--policy", "forest", "--policy", "linear"]
    code, output = told("bandit", "evaluate", config, *asked, "--json", "--plot", str(picture))
    reports = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert [(one["policy"], one["estimates"][0]["value"]) for one in reports] == [("forest", 1.0), ("linear", 0.0)]
    assert all(one["served_there"]["n"] == one["estimates"][0]["n"] == 200 for one in reports)
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, output = told("bandit", "evaluate", config, *asked)
    assert [line for line in output.splitlines() if line in ("forest", "linear")] == ["forest", "linear"]
    answered(monkeypatch, logged(20))
    assert told("bandit", "evaluate", config, *asked, "--plot", str(picture))[0] == 1


def test_too_little_is_refused(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, logged(20))
    code, output = told("bandit", "evaluate", config, "--policy", "hedge")
    assert code == 1
    assert "20 outcomes tell every model's loss, 30 are needed" in output
    drawn = [replace(one, losses={MODELS[0]: 1.0}, decision=replace(one.decision, chosen=MODELS[:1], probability=0.5))
             for one in logged(50)]  # fmt: skip
    answered(monkeypatch, drawn)
    code, output = told("bandit", "evaluate", config, "--policy", "hedge")
    assert code == 1
    assert "50 outcomes are of one drawn model each, and this policy asks several a request" in output
    assert told("bandit", "evaluate", config, "--policy", "linear")[0] == 0
    answered(monkeypatch, [])
    code, output = told("bandit", "evaluate", config, "--policy", "hedge")
    assert code == 1
    assert "no outcome of this route tells anything" in output


def test_outcomes_are_exported(config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answered(monkeypatch, [*logged(3), replace(logged(1)[0], primary=False), replace(logged(1)[0], route="other")])
    file = tmp_path / "out.csv"
    code, output = told("outcomes", "export", config, "--route", "digits", "--out", str(file))
    assert (code, output.strip()) == (0, "3 outcomes")
    assert len(file.read_text().splitlines()) == 4
    code, output = told("outcomes", "export", config)
    assert "4 outcomes" in output
    answered(monkeypatch, [])
    assert told("outcomes", "export", config)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bandit", "evaluate", "--policy", "hegde"], "--policy hegde"),
        (["bandit", "evaluate", "--policy", '{"name":"hedge","etta":1}'], "etta"),
        (["bandit", "evaluate", "--policy", "hedge", "--route", "x"], "--route x: there is none of that name"),
        (["bandit", "evaluate", "--policy", '{"name":"ab","shares":{"z":1}}'], "shares for unknown models"),
        (["bandit", "evaluate", "--policy", "hedge", "--from", "soon"], "'soon' is no time"),
        (["bandit", "evaluate", "--policy", "hedge", "--plot", "x.gif"], "expected a name ending in .png"),
        (["outcomes", "export", "--format", "parquet"], "needs a file: --out FILE"),
        (["outcomes", "export", "--to", "x y"], "'x y' is no time"),
    ],
)
def test_wrong_use_is_told_before_a_broker_is_asked(
    arguments: list[str], words: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run([*arguments[:2], config, *arguments[2:], "--bootstrap-servers", "127.0.0.1:1"])
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_a_broker_that_does_not_answer_is_told(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(["outcomes", "export", config, "--bootstrap-servers", "127.0.0.1:1"])
    assert left.value.code == 4
    assert "no Kafka broker answers" in capsys.readouterr().err
