"""What a config may say, and what it means."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from streamserve.errors import ConfigError
from streamserve.settings import Settings, load_settings, parse_settings
from tests.settings.digits import DIGITS, changed


def test_the_example_config_loads() -> None:
    settings = parse_settings(DIGITS, "app.toml")
    assert settings.app.name == "digits"
    assert settings.broker.bootstrap_servers == "host:9092"
    assert settings.pools["main"].models == ("linear", "forest")
    assert settings.routes["digits"].policy.options() == {"eta": 0.3, "half_life_events": 350}
    assert settings.routes["digits"].default == -1
    assert settings.model_id("forest") == "forest@1"


def test_the_examples_of_the_repository_load() -> None:
    examples = Path(__file__).parents[2] / "examples"
    assert load_settings(examples / "digits.toml").fused
    assert not load_settings(examples / "split.toml").fused


def test_defaults_are_as_documented() -> None:
    settings = parse_settings(
        'app.name = "a"\npools.p.models = ["m"]\nmodels.m.source = "m:f"\nroutes.r.models = ["m"]', "x"
    )
    assert settings.broker.bootstrap_servers is None
    assert (settings.group.session_timeout_ms, settings.group.heartbeat_interval_ms) == (6000, 300)
    assert settings.pools["p"].cache_bytes == 32 << 20
    assert settings.routes["r"].policy.name == "static"
    assert not settings.routes["r"].has_default
    assert settings.learn.join_window_ms == 600_000
    assert settings.metrics.port == 0


def test_settings_are_frozen() -> None:
    settings = parse_settings(DIGITS, "app.toml")
    with pytest.raises(ValidationError):
        settings.app.partitions = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fused", "pools", "expected"),
    [
        ("auto", 'a = { models = ["linear", "forest"] }', True),
        ("never", 'a = { models = ["linear", "forest"] }', False),
        ("auto", 'a = { models = ["linear"] }\nb = { models = ["forest"] }', False),
    ],
)
def test_fused_is_one_pool_that_hosts_everything(fused: str, pools: str, expected: bool) -> None:
    text = changed('fused = "auto"', f'fused = "{fused}"')
    text = changed(
        DIGITS[DIGITS.index("[pools.main]") : DIGITS.index("[models.linear]")],
        f"[pools]\n{pools}\n",
        text,
    )
    assert parse_settings(text, "app.toml").fused is expected


def test_a_policy_may_be_named_alone() -> None:
    text = changed('{ name = "hedge", eta = 0.3, half_life_events = 350 }', '"exp3"')
    policy = parse_settings(text, "x").routes["digits"].policy
    assert (policy.name, policy.options()) == ("exp3", {})


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\xff\xfe", "app.toml:1: not UTF-8 text"), (b"a = 1\n\xff", "app.toml:2: not UTF-8"), (None, "no such file")],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "app.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_settings(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path)


def test_files_are_relative_to_the_config(tmp_path: Path) -> None:
    file = tmp_path / "app.toml"
    text = changed('bootstrap_servers = "host:9092"', 'bootstrap_servers = "host:9092"\nclient.ssl_cafile = "ca.pem"')
    file.write_text(changed('fused = "auto"', 'state_dir = "data"', text))
    settings = load_settings(file)
    assert settings.base_dir == tmp_path
    assert settings.app.state_dir == tmp_path / "data"
    assert settings.broker.client.ssl_cafile == tmp_path / "ca.pem"


def test_the_schema_is_whole() -> None:
    assert set(Settings.model_json_schema()["properties"]) == set(Settings.model_fields)
