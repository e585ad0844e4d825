"""`streamserve replay`: its words and exit codes, up to the broker and from what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamserve.cli import replay as command
from streamserve.cli.entry import app, run
from streamserve.client.candidate import CallTimes
from streamserve.client.replay import Listeners, Question, Reach, Replay
from streamserve.core.evaluation.agreement import Comparison, Replayed
from streamserve.core.records import Decision
from streamserve.errors import BrokerError

CONFIG = """
[app]
name = "digits"

[pools.main]
models = ["linear", "number"]

[models.linear]
source = "tests.client.candidates:last_digit"
batching = "fixed"
batch_size = 8

[models.number]
source = "tests.client.candidates:last_digit"

[models.spare]
version = "2"
source = "tests.client.candidates:odd_ones_wrong"
isolation = "process"

[routes.digits]
models = ["linear"]
policy = "hedge"
deadline_ms = 1000

[routes.numbers]
models = ["number"]
policy = "hedge"
combine = "mean"
deadline_ms = 1000
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "app.toml"
    file.write_text(CONFIG)
    return str(file)


def decision(label: Any) -> Decision:
    return Decision(
        id="x",
        route="digits",
        outcome="ok" if label else "expired",
        epoch=-1,
        probability=1.0,
        off_epoch=False,
        chosen=("linear@1",),
        label=label,
        members={"linear@1": label} if label else {},
        rows=1,
    )


REQUESTS = (
    Replayed(ref="0-0", id="a", answer=[3], decision=decision([3]), label=3, has_label=True),
    Replayed(ref="0-1", id="b", answer=[4], decision=decision([5]), label=4, has_label=True),
    Replayed(ref="0-2", id="c", answer=[4], decision=decision([6]), label=6, has_label=True),
    Replayed(ref="0-3", id="d", answer=[4], decision=decision([6])),
    Replayed(ref="0-4", id="e", answer=None, refusal="too long", decision=decision([6])),
    Replayed(ref="0-5", id="f", answer=[1], decision=decision(None)),
    Replayed(ref="0-6", id="g", answer=[1]),
)


class Asked:
    """What the command asked for, and what it is answered."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, int, Question]] = []
        self.requests: tuple[Replayed, ...] = REQUESTS
        self.changes: dict[str, Any] = {}

    async def replay(self, _log: Any, _app: str, candidate: Any, question: Question, listeners: Listeners) -> Replay:
        self.questions.append((candidate.model_id, candidate.most_rows, question))
        result = Replay(comparison=Comparison(question.route.combine, question.tolerance), times=CallTimes())
        result.reach = [Reach(partition=0, start=0, end=7, reached=7)]
        for one in self.requests:
            result.times.add(1, 2.0)
            if result.comparison.add(one):
                listeners.listed(one)
        result.seconds = 0.5
        for name, value in self.changes.items():
            setattr(result, name, value)
        listeners.progress(result)
        return result


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    found = Asked()
    monkeypatch.setattr(command, "replay_requests", found.replay)
    yield found


def told(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["replay", *arguments, "--bootstrap-servers", "127.0.0.1:1"])
    return done.exit_code, done.output


def test_the_report_as_json_and_the_disagreements(config: str, asked: Asked, tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    code, output = told(config, "--model", "linear", "--disagreements", str(file), "--json")
    report = json.loads(output)
    assert code == 0
    assert (report["model"], report["route"], report["complete"]) == ("linear@1", "digits", True)
    assert (report["requests"], report["answered"], report["refused"], report["labelled"]) == (7, 6, 1, 3)
    assert report["accuracy"] == pytest.approx(2 / 3)
    served, member = report["versus"]
    assert (served["name"], member["name"]) == ("served", "linear@1")
    for one in (served, member):
        assert (one["requests"], one["agree"], one["agreement"], one["labelled"]) == (4, 1, 0.25, 3)
        assert (one["better"], one["worse"], one["accuracy"]) == (1, 1, pytest.approx(2 / 3))
    assert report["without_served_answer"] == {"expired": 1}
    assert report["without_prediction"] == 1
    assert report["calls"]["batch_p99_ms"] == pytest.approx(2.0, rel=0.01)
    assert report["calls"]["rows_per_s"] == 500.0
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"ref": "0-1", "id": "b", "served": [5], "candidate": [4], "label": 4},
        {"ref": "0-2", "id": "c", "served": [6], "candidate": [4], "label": 6},
        {"ref": "0-3", "id": "d", "served": [6], "candidate": [4]},
        {"ref": "0-4", "id": "e", "served": [6], "candidate": None, "refused": "too long"},
    ]


def test_the_table(config: str, asked: Asked) -> None:
    code, output = told(config, "--model", "linear")
    assert code == 0
    lines = output.splitlines()
    assert lines[0] == "linear@1 on 7 requests of route digits, 0.5 s, 14 requests/s"
    assert lines[2:5] == [
        "compared with  requests    agree  labelled  its accuracy  candidate's  better  worse",
        "served                4  25.00 %         3       66.67 %      66.67 %       1      1",
        "linear@1              4  25.00 %         3       66.67 %      66.67 %       1      1",
    ]
    assert "accuracy on all 3 labelled requests: 66.67 %" in output
    assert "answered otherwise than served: 3; --disagreements FILE lists them" in output
    assert "refused by the candidate: 1\n  1, first 0-4: too long" in output
    assert "served without an answer: 1 expired" in output
    assert "requests whose prediction is not in the topic: 1" in output
    assert "NOT WHOLE" not in output


def test_a_report_that_is_not_whole_says_so(config: str, asked: Asked) -> None:
    reach = [Reach(partition=0, start=0, end=9, reached=7)]
    asked.changes = {"is_broken_off": True, "reach": reach, "gaps": ["x, partition 0, begins at offset 3"]}
    code, output = told(config, "--model", "linear")
    assert code == 130
    assert "NOT WHOLE: x, partition 0, begins at offset 3" in output
    assert "NOT WHOLE: broken off; not replayed: partition 0 from offset 7 to 9" in output
    asked.changes = {"failure": BrokerError("it is gone"), "reach": reach}
    code, output = told(config, "--model", "linear")
    assert code == 4
    assert "NOT WHOLE: ended by a failure; not replayed: partition 0 from offset 7 to 9" in output
    assert "streamserve: it is gone" in output


def test_nothing_to_replay_is_exit_code_1(config: str, asked: Asked) -> None:
    asked.requests = ()
    code, output = told(config, "--model", "linear")
    assert code == 1
    assert "linear@1 on 0 requests of route digits" in output


def test_a_full_disk_is_told(config: str, asked: Asked) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    code, output = told(config, "--model", "linear", "--disagreements", "/dev/full")
    assert code == 2
    assert "--disagreements /dev/full: cannot be written: No space left on device" in output


def test_what_a_model_prints_does_not_stand_in_the_report(
    config: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        source = "tests.client.candidates:loud()"
        run(["replay", config, "--model", "linear", "--source", source, "--json", "--bootstrap-servers", "127.0.0.1:1"])
    said = capsys.readouterr()
    assert left.value.code == 0
    assert json.loads(said.out)["requests"] == 7
    assert "hear me" in said.err


def test_the_picture_is_one(config: str, asked: Asked, tmp_path: Path) -> None:
    for requests in (REQUESTS, ()):
        asked.requests = requests
        file = tmp_path / f"{len(requests)}.png"
        told(config, "--model", "linear", "--plot", str(file))
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "model", "rows", "route"),
    [
        (["--model", "linear"], "linear@1", 8, "digits"),  # the only route that it is in
        (["--model", "linear@1", "--route", "numbers"], "linear@1", 8, "numbers"),
        (["--model", "spare@2", "--route", "digits"], "spare@2", 512, "digits"),  # in no pool
        (
            ["--model", "linear@9", "--source", "tests.client.candidates:odd_ones_wrong"],
            "linear@9",  # in the place of the config's, with its other keys
            8,
            "digits",
        ),
        (
            ["--model", "new", "--source", "tests.client.candidates:odd_ones_wrong", "--route", "digits"],
            "new@1",
            512,
            "digits",
        ),
        (["--model", "linear", "--runtime", "callable"], "linear@1", 8, "digits"),
    ],
)
def test_which_model_is_meant(
    arguments: list[str], model: str, rows: int, route: str, config: str, asked: Asked
) -> None:
    code, output = told(config, *arguments)
    assert code == 0, output
    [(found, most_rows, question)] = asked.questions
    assert (found, most_rows, question.route.name) == (model, rows, route)


def test_a_tolerance_is_for_numbers(config: str, asked: Asked) -> None:
    told(config, "--model", "number")
    told(config, "--model", "number", "--tolerance", "0.2")
    told(config, "--model", "linear")
    assert [question.tolerance for *_, question in asked.questions] == [0.01, 0.2, 0.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nwe"], "--model nwe: the config has linear@1, number@1, spare@2; give one of these"),
        (["--model", "linear@2"], "the config's is linear@1; give --source to try another one in its place"),
        (["--model", "spare"], "--route is needed; the app has digits, numbers"),
        (["--model", "linear", "--route", "x"], "--route x: there is none of that name"),
        (["--model", "linear", "--from", "soon"], "'soon' is no time"),
        (["--model", "linear", "--tolerance", "0.1"], "route digits answers classes"),
        (["--model", "linear", "--tolerance", "nan"], "Invalid value for '--tolerance'"),
        (["--model", "linear", "--plot", "x.txt"], "--plot x.txt: expected a name ending in .png, .svg, .pdf"),
        (["--model", "linear", "--plot", "no/where/x.png"], "there is no folder no/where"),
        (["--model", "linear", "--disagreements", "/no/where/x"], "--disagreements /no/where/x: cannot be written"),
        (["--model", "new", "--source", "nonsense", "--route", "digits"], 'models.new.source = "nonsense" is neither'),
        (["--model", "linear", "--runtime", "callabel"], 'no runtime is called "callabel"'),
        (["--model", "a b", "--source", "a:b", "--route", "digits"], 'the name "a b" is not possible'),
    ],
)
def test_wrong_use_is_told_before_anything_is_done(
    arguments: list[str], words: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(["replay", config, *arguments, "--bootstrap-servers", "127.0.0.1:1"])
    assert left.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_model_that_cannot_be_loaded_and_a_broker_that_does_not_answer(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, code, words in (
        ("tests.client.candidates:none", 3, "linear@1"),
        ("tests.client.candidates:last_digit", 4, "no Kafka broker answers"),
    ):
        with pytest.raises(SystemExit) as left:
            run(["replay", config, "--model", "linear", "--source", source, "--bootstrap-servers", "127.0.0.1:1"])
        assert left.value.code == code
        assert words in capsys.readouterr().err
