"""Which app on which broker; and that `import streamserve` stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import streamserve
from streamserve.client.targets import RouteHint, own_broker, target_of_app, target_of_config
from streamserve.errors import BrokerError, ConfigError
from tests.kafka.brokers.recorded import running

CONFIG = """
[app]
name = "digits"
{state}
{broker}
[pools.main]
models = ["sum"]
[models.sum]
source = "workers.any:model"
[routes.numbers]
models = ["sum"]
deadline_ms = 70
[routes.words]
models = ["sum"]
input = "text"
[learn]
join_window_ms = 5000
"""


def write(folder: Path, *, state: str = "", broker: str = "") -> Path:
    file = folder / "streamserve.toml"
    file.write_text(CONFIG.format(state=state, broker=broker), "utf-8")
    return file


def test_a_config_tells_app_broker_routes_and_security(tmp_path: Path) -> None:
    named = write(tmp_path, broker='[broker]\nbootstrap_servers = "kafka:9092"\n[broker.client]\nclient_id = "me"')
    target = target_of_config(named)
    assert (target.app, target.bootstrap_servers, target.join_window_ms) == ("digits", "kafka:9092", 5_000)
    assert target.security["client_id"] == "me"
    assert target.routes == {
        "numbers": RouteHint(deadline_ms=70, input="oip"),
        "words": RouteHint(deadline_ms=100, input="text"),
    }
    assert "security" not in repr(target)
    assert not target.has_outcomes  # fixed weights: nobody joins feedback
    named.write_text(named.read_text("utf-8").replace("[learn]\n", '[learn]\noutcomes = "always"\n'), "utf-8")
    assert target_of_config(named).has_outcomes
    assert target_of_config(named, "other:1").bootstrap_servers == "other:1"


def test_our_own_broker_is_found_where_up_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path / "state"))
    config = write(tmp_path)
    with pytest.raises(BrokerError, match="none of ours runs for app digits"):
        target_of_config(config)
    running(tmp_path / "state" / "default" / "broker", "any:1")
    assert target_of_config(config).bootstrap_servers == "any:1"
    running(tmp_path / "state" / "digits" / "broker", "app:1")
    assert target_of_config(config).bootstrap_servers == "app:1"
    assert target_of_app("digits").bootstrap_servers == "app:1"
    assert own_broker("other") == "any:1"
    running(tmp_path / "mine" / "broker", "mine:1")
    assert target_of_config(write(tmp_path, state='state_dir = "mine"')).bootstrap_servers == "mine:1"


def test_an_app_needs_a_name_that_can_be_one() -> None:
    with pytest.raises(ConfigError, match="app name 'A b'"):
        target_of_app("A b", "kafka:9092")


def test_importing_streamserve_imports_no_client_until_it_is_asked_for() -> None:
    program = (
        "import sys, streamserve\n"
        "heavy = {'numpy', 'aiokafka', 'pydantic', 'msgspec', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from streamserve import Client, SyncClient, Prediction\n"
        "assert Client.__module__ == 'streamserve.client.client'\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Client" in dir(streamserve)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = streamserve.Nothing
