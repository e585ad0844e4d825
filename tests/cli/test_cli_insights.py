"""Mistakes of `streamserve insights` are told in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamserve.cli import insights as command
from streamserve.errors import ConfigError

CONFIG = """
[app]
name = "tiny"
[pools.main]
models = ["a"]
[models.a]
source = "m:a"
[routes.main]
models = ["a"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "app.toml"
    file.write_text(CONFIG, "utf-8")
    return file


def test_without_the_extra_it_says_what_to_install(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamserve.insights.run", raising=False)
    monkeypatch.delitem(sys.modules, "streamserve.insights.app", raising=False)
    monkeypatch.setitem(sys.modules, "faust", None)
    with pytest.raises(ConfigError, match=r"the package faust, .* pip install 'streamserve\[insights\]'"):
        command.insights(config)


@pytest.mark.slow
def test_without_a_kafka_it_says_how_to_name_one(config: Path) -> None:
    with pytest.raises(ConfigError, match="no Kafka is named"):
        command.insights(config)
