"""What is wrong on the command line of `dlq` is told before a broker is asked."""

from __future__ import annotations

import io

import pytest

from streamserve.cli import dlq, dlq_options
from streamserve.cli.dlq_options import filter_of
from streamserve.cli.entry import run
from streamserve.client import UnusableInput
from streamserve.client.dead_letters import Filter
from streamserve.errors import StreamserveError

NOWHERE = ["--app", "digits", "--bootstrap-servers", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "0-1"], "`list` takes filters only; `dlq show 0-1` shows one"),
        (["list", "--since", "soon"], "'soon' is no time: expected a duration such as 30s"),
        (["list", "--ref", "x"], "'x' is no place"),
        (["list", "--source", "answers"], "--source answers: dead letters come from requests, feedback"),
        (["list", "app.toml", "--app", "digits"], "name the app once"),
        (["show"], "expected a dead letter's place, such as 1-4"),
        (["show", "1-x"], "'1-x' is no place: expected <partition>-<offset>"),
        (["redrive", "nonsense"], "'nonsense' is no place"),
        (["redrive", "--until", "5 weeks"], "'5 weeks' is no time"),
        (["purge"], "nothing says what is to be removed: --before TIME, --up-to P-O, a filter, or --all"),
        (["purge", "0-1"], "single dead letters cannot be removed; `--up-to 0-1` removes up to it"),
        (["purge", "--all", "--reason", "x"], "--all means all"),
        (["purge", "--before", "1h", "--until", "1h"], "say the same"),
        (["purge", "--up-to", "1"], "'1' is no place"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(["dlq", *arguments, *(NOWHERE if "--app" not in arguments else NOWHERE[2:])])
    assert left.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["list"], ["show", "0-0"], ["redrive", "--yes"], ["purge", "--all", "--yes"]])
def test_a_broker_that_does_not_answer_is_told(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(["dlq", *command, *NOWHERE])
    assert left.value.code == 4
    assert "no Kafka broker answers at 127.0.0.1:1" in capsys.readouterr().err


def test_options_become_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filter_of() == Filter()
    monkeypatch.setattr(dlq_options, "now_ms", lambda: 1_000_000)
    assert filter_of(
        places=["1-4", "0-0"],
        reason=["refused"],
        source=["feedback"],
        model=["linear"],
        partition=[1, 1],
        since="10m",
        until="1s",
        ref="1-17",
        id="a",
        contains="x",
        up_to=["1-4", "1-9", "1-2", "0-0"],
    ) == Filter(
        places=frozenset({(1, 4), (0, 0)}),
        reasons=frozenset({"refused"}),
        sources=frozenset({"feedback"}),
        models=frozenset({"linear"}),
        partitions=frozenset({1}),
        since_ms=400_000,
        until_ms=999_000,
        up_to={1: 9, 0: 0},
        ref="1-17",
        id="a",
        contains="x",
    )


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " yes "])
def test_yes_goes_on(answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    dlq._ask("Really?", yes=False)
    assert capsys.readouterr().err == "Really? [y/N] "


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ("n\n", StreamserveError, "not confirmed, so nothing was done"),
        ("\n", StreamserveError, "not confirmed"),
        ("", UnusableInput, "--yes does it without asking"),
    ],
)
def test_anything_else_does_nothing(
    answer: str, error: type[StreamserveError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(error, match=words):
        dlq._ask("Really?", yes=False)
    dlq._ask("Really?", yes=True)
