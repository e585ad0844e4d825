"""`streamserve check` against models that are good and models that are not."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamserve.cli.check import describe
from streamserve.cli.entry import run
from streamserve.cli.probe import read_sample
from streamserve.errors import ModelError
from streamserve.settings import load_settings
from tests.kafka.brokers.recorded import running

MODELS = """\
import os, signal
import numpy as np
print("a model that talks")
def good(batch): return batch[:, 0]
def sure(batch): return np.zeros(len(batch), int), np.full((len(batch), 2), 0.5)
def breaks(batch): raise KeyError("column")
def short(batch): return batch[:-1, 0]
def nan(batch): return batch[:, 0] * float("nan")
def dies(batch): os.kill(os.getpid(), signal.SIGKILL)
def hangs(batch): signal.pause()
class Asked:
    def __call__(self, batch): return batch[:, 0]
    @property
    def sample(self): raise ValueError("no sample of mine")
    @property
    def predict(self): raise KeyError("predict")
    @property
    def close(self): raise OSError("shut")
class Odd:
    def __call__(self, batch): return batch[:, 0]
    def sample(self): return [[1, 2], [3]]
class Leaves:
    def __call__(self, batch): return batch[:, 0]
    def sample(self): raise SystemExit(7)
class Closes:
    def __call__(self, batch): return batch[:, 0]
    def close(self): raise OSError("shut")
class Lazy:
    def __getattr__(self, name): raise RuntimeError(f"no {name} yet")
asked, odd, leaves, closes, lazy = Asked(), Odd(), Leaves(), Closes(), Lazy()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mymodels.py").write_text(MODELS)
    (tmp_path / "rows.json").write_text("[[1, 2], [3, 4]]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path / "state"))
    return tmp_path


def config(project: Path, *functions: str, extra: str = "") -> str:
    names = json.dumps([name.replace(".", "-") for name in functions])
    text = f'app.name = "a"\npools.p.models = {names}\nroutes.r.models = {names}\n'
    text += "".join(f'models.{name.replace(".", "-")}.source = "mymodels:{name}"\n' for name in functions)
    (project / "app.toml").write_text(text + extra)
    return "app.toml"


def check(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        run(["check", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code, capfd.readouterr().out


def report(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out = check(capfd, *arguments, "--json")
    found: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1
    return code, found


def test_good_models_are_timed_and_described(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = report(capfd, config(project, "good", "sure"), "--sample", "rows.json")
    assert (code, found["ok"]) == (0, True)
    assert found["models"]["good@1"]["output"] == "float64 a row"
    assert found["models"]["sure@1"]["output"] == "int64 a row, probabilities of 2 classes"
    assert all(ms > 0 for ms in found["models"]["good@1"]["ms"].values())
    assert list(found["models"]["good@1"]["ms"]) == ["1", "64"]
    assert found["config"] | {"file": ""} == {
        "file": "", "app": "a", "pools": 1, "models": 2, "routes": 1, "fused": True, "unused_models": [],
    }  # fmt: skip
    assert found["broker"] == {"own": True}


@pytest.mark.slow
def test_isolated_models_are_tried_in_processes_of_their_own(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    extra = "".join(f'models.{name}.isolation = "process"\n' for name in ("good", "dies"))
    code, found = report(capfd, config(project, "good", "dies", extra=extra), "--sample", "rows.json")
    assert code == 3
    good = found["models"]["good@1"]
    assert (good["runtime"], good["output"]) == ("CallableRuntime in a process of its own", "float64 a row")
    assert "its process was ended by signal 9 (SIGKILL)" in found["models"]["dies@1"]["problem"]


def test_sample_rows_may_stand_on_the_command_line(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = report(capfd, config(project, "good"), "--sample", " [[1, 2], [3, 4]]")
    assert (code, found["models"]["good@1"]["sample"]) == (0, True)


@pytest.mark.parametrize("sample", ["nowhere.json", "nowhere.npy", "[[1, 2", "[[1], [2, 3]]", "[]"])
def test_a_sample_that_is_none_is_a_mistake_of_the_command(
    project: Path, capfd: pytest.CaptureFixture[str], sample: str
) -> None:
    with pytest.raises(SystemExit) as left:
        run(["check", config(project, "good"), "--sample", sample])
    said = capfd.readouterr()
    assert (left.value.code, said.out) == (2, "")  # told once, before any model is loaded
    assert "--sample" in said.err and "Errno" not in said.err


def test_a_model_without_a_sample_is_only_loaded(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = check(capfd, config(project, "good"))
    assert code == 0
    assert "good@1: CallableRuntime, loaded in" in out
    assert "give one with --sample" in out


@pytest.mark.slow
def test_bad_models_are_told_and_hide_no_other(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    functions = ("breaks", "short", "nan", "dies", "nowhere", "good")
    code, found = report(capfd, config(project, *functions), "--sample", "rows.json")
    problems = {name: model.get("problem", "") for name, model in found["models"].items()}
    assert (code, found["ok"]) == (3, False)
    assert "failed on 1 sample rows: KeyError: 'column'" in problems["breaks@1"]
    assert "returned 0 rows for a batch of 1" in problems["short@1"]
    assert "NaN" in problems["nan@1"]
    assert "was killed by SIGKILL" in problems["dies@1"]
    assert "has no attribute 'nowhere'" in problems["nowhere@1"]
    assert problems["good@1"] == ""


@pytest.mark.slow
def test_whatever_a_model_does_when_it_is_asked_is_told_in_words(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, found = report(capfd, config(project, "asked", "odd", "leaves", "closes", "lazy.part", "good"))
    problems = {name: model.get("problem", "") for name, model in found["models"].items()}
    assert code == 3
    assert problems == {
        "asked@1": "model asked@1: its sample row cannot be had: ValueError: no sample of mine",
        "odd@1": "model odd@1: its sample is no array: row 0 has 2 values, row 1 has 1 value",
        "leaves@1": "model leaves@1: its sample row cannot be had: SystemExit: 7",
        "closes@1": "model closes@1: closing it failed: OSError: shut",
        "lazy-part@1": problems["lazy-part@1"],
        "good@1": "",
    }
    assert "reading mymodels:lazy.part failed: RuntimeError: no part yet" in problems["lazy-part@1"]


def test_a_model_that_never_returns_is_given_up(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = check(capfd, config(project, "hangs"), "--sample", "rows.json", "--time-limit-s", "1")
    assert code == 3
    assert "hangs@1: WRONG: model hangs@1: not loaded and tried within 1 s" in out


def test_a_route_that_will_vote_instead_is_noted(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = config(project, "good", "sure", extra='routes.r.combine = "mean_probability"\n')
    code, out = check(capfd, name, "--sample", "rows.json")
    assert code == 0
    assert "route   r: note: good@1 gives no probabilities" in out


def test_a_wrong_config_is_json_too(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = report(capfd, config(project, "good", extra="app.partitions = 0\n"))
    assert code == 2
    assert "app.partitions = 0 is not possible" in found["config"]["problem"]


def test_a_broker_that_does_not_answer_is_told(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        name = config(project, "good", extra=f'broker.bootstrap_servers = "{address}"\n')
        code, found = report(capfd, name)
    assert code == 4
    assert address in found["broker"]["problem"]
    code, found = report(capfd, name, "--offline")
    assert (code, found["broker"]["asked"]) == (0, False)


@pytest.mark.broker
@pytest.mark.beside
def test_a_kafka_of_our_own_that_runs_is_looked_at(
    project: Path, capfd: pytest.CaptureFixture[str], broker: Any
) -> None:
    name = config(project, "good")
    text = (project / name).read_text().replace('app.name = "a"', 'app.name = "own-check"')
    (project / name).write_text(text)
    running(project / "state" / "own-check" / "broker", broker.bootstrap_servers)
    code, out = check(capfd, name)
    assert code == 0
    assert f"{broker.bootstrap_servers} (a Kafka of our own): no topics of this app yet" in out
    with pytest.raises(SystemExit) as left:
        run(["topics", "create", name])
    assert left.value.code == 0
    code, out = check(capfd, name)
    assert code == 0
    assert f"{broker.bootstrap_servers} (a Kafka of our own): all " in out
    (project / name).write_text(text + "app.partitions = 6\n")
    code, found = report(capfd, name)
    assert (code, found["broker"]["own"]) == (5, True)
    assert {one["what"] for one in found["broker"]["differences"]} == {"partitions"}


@pytest.mark.broker
@pytest.mark.beside
def test_topics_that_differ_are_told(project: Path, capfd: pytest.CaptureFixture[str], broker: Any) -> None:
    extra = f'broker.bootstrap_servers = "{broker.bootstrap_servers}"\n'
    text = config(project, "good", extra=extra)
    (project / text).write_text((project / text).read_text().replace('app.name = "a"', 'app.name = "never-created"'))
    code, out = check(capfd, text)
    assert code == 5
    assert "streamserve topics create app.toml" in out
    with pytest.raises(SystemExit) as left:
        run(["topics", "create", text])
    assert left.value.code == 0
    code, out = check(capfd, text)
    assert code == 0
    assert "topics are as declared" in out


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("[[1, 2], [3, 4]]", (2, 2), "float64"),
        ("[1, 2, 3]", (1, 3), "float64"),
        ("7", (1,), "float64"),
        ('["a", "b"]', (2,), "object"),
        ('"a"', (1,), "object"),
    ],
)
def test_a_sample_is_rows_whatever_its_form(tmp_path: Path, text: str, shape: tuple[int, ...], dtype: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    rows = read_sample(str(tmp_path / "rows.json"))
    assert (rows.shape, rows.dtype.name) == (shape, dtype)


def test_a_sample_may_be_a_numpy_file(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((2, 28, 28), np.uint8))
    assert read_sample(str(tmp_path / "rows.npy")).shape == (2, 28, 28)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[[1], [2, 3]]", '{"a": 1}', "nul"])
def test_a_sample_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(ModelError, match=r"rows\.json"):
        read_sample(str(tmp_path / "rows.json"))


def test_rows_of_unequal_length_are_told_in_our_words(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("[[1, 2], [3]]")
    with pytest.raises(ModelError, match=r"row 0 has 2 values, row 1 has 1 value; give rows of equal length$"):
        read_sample(str(tmp_path / "rows.json"))


def test_the_model_of_a_second_opinion_is_in_a_route(tmp_path: Path) -> None:
    file = tmp_path / "app.toml"
    file.write_text(
        'app.name = "a"\npools.main.models = ["one", "two", "three"]\n'
        'models.one.source = "m:x"\nmodels.two.source = "m:x"\nmodels.three.source = "m:x"\n'
        '[routes.r]\nmodels = ["one"]\nconfidence_threshold = 0.8\nbelow_threshold = "second_opinion"\n'
        'second_opinion = "two"\nconfidence.of = "probability"\n'
    )
    assert describe(load_settings(file), file)["unused_models"] == ["three"]
