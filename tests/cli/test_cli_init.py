"""`streamserve init`: the project that it writes works as it stands."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from streamserve.cli.entry import run
from streamserve.cli.init import write_project
from streamserve.errors import ConfigError
from streamserve.settings import load_settings

FILES = {"README.md", "streamserve.toml", "train.py", "workers/__init__.py", "workers/my_model.py"}


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        run(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_writes_a_config_that_loads(tmp_path: Path) -> None:
    written = write_project(tmp_path / "Iris_Demo")
    assert {str(file.relative_to(tmp_path / "Iris_Demo")) for file in written} == FILES
    settings = load_settings(tmp_path / "Iris_Demo" / "streamserve.toml")
    assert settings.app.name == "iris-demo"
    assert settings.fused
    readme = (tmp_path / "Iris_Demo" / "README.md").read_text()
    assert "iris-demo.requests.v1" in readme
    assert 'pip install "PATH/TO/streamserve[' in readme  # no package index has it


def test_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "train.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"train\.py; choose another name"):
        write_project(tmp_path / "p")
    assert [(file.name, file.read_text()) for file in (tmp_path / "p").iterdir()] == [("train.py", "mine")]


@pytest.mark.parametrize("name", ["häuser", "a b", "-x", "a..b"])
def test_a_name_that_topics_cannot_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        write_project(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/.."])
def test_a_folder_that_is_not_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called("init", name) == 2
    assert "names no folder of its own" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_model_is_served_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called("init", "iris") == 0
    assert "streamserve up streamserve.toml" in capfd.readouterr().out
    monkeypatch.chdir(tmp_path / "iris")
    Path("row.json").write_text("[[5.1, 3.5, 1.4, 0.2]]")
    assert called("check", "streamserve.toml", "--sample", "row.json", "--json") == 0
    found = json.loads(capfd.readouterr().out)["models"]["my_model@1"]
    assert found["output"] == "int64 a row, probabilities of 3 classes"


@pytest.mark.slow
def test_the_trained_file_is_served_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path / "iris")
    monkeypatch.chdir(tmp_path / "iris")
    runpy.run_path("train.py", run_name="__main__")
    config = Path("streamserve.toml")
    config.write_text(config.read_text().replace('"workers.my_model:model"', '"my_model.skops"'))
    Path("row.json").write_text("[5.1, 3.5, 1.4, 0.2]")
    assert called("check", "streamserve.toml", "--sample", "row.json") == 0
    assert "probabilities of 3 classes" in capfd.readouterr().out
