"""Settings by environment variables."""

from __future__ import annotations

import pytest

from streamserve.settings import parse_settings
from tests.settings.digits import DIGITS, changed, refused


def test_the_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS": "other:1,third:2",
        "STREAMSERVE_APP__PARTITIONS": "12",
        "STREAMSERVE_POOLS__MAIN__MODELS": '["forest", "linear"]',
        "STREAMSERVE_MODELS__LINEAR__VERSION": "7",
        "STREAMSERVE_MODELS__LINEAR__TRUST_PICKLE": "true",
        "STREAMSERVE_MODELS__LINEAR__OPTIONS": '{"threads": 2}',
        "streamserve_routes__digits__policy__eta": "0.5",
        "STREAMSERVE_ROUTES__DIGITS__DEFAULT": "3",
        "STREAMSERVE_CACHE": "/not/a/setting",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = parse_settings(DIGITS, "app.toml")
    assert settings.broker.bootstrap_servers == "other:1,third:2"
    assert settings.app.partitions == 12
    assert settings.pools["main"].models == ("forest", "linear")
    assert settings.model_id("linear") == "linear@7"
    assert settings.models["linear"].trust_pickle
    assert settings.models["linear"].options == {"threads": 2}
    assert settings.routes["digits"].policy.options() == {"eta": 0.5, "half_life_events": 350}
    assert settings.routes["digits"].default == 3


def test_a_variable_finds_names_that_it_cannot_spell(monkeypatch: pytest.MonkeyPatch) -> None:
    text = changed("[pools.main]", '[pools."My-big.pool"]')
    monkeypatch.setenv("STREAMSERVE_POOLS__MY_BIG_POOL__PROCESSES", "3")
    assert parse_settings(text, "x").pools["My-big.pool"].processes == 3


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("STREAMSERVE_APP__PARTITIONS", "many", 'app.partitions = "many" is not possible; allowed: a whole number'),
        ("STREAMSERVE_APP__PARTITONS", "4", 'unknown key "partitons" in [app]'),
        ("STREAMSERVE_BROKR__NODES", "3", 'unknown section "brokr"'),
        ("STREAMSERVE_ROUTES__DIGITS__DEADLINE_MS", "90000", "is above app.max_deadline_ms"),
        ("STREAMSERVE_POOLS__MAIN__MODELS", '["linear", "forrest"]', 'there is no model "forrest"'),
        ("STREAMSERVE_MODELS__LINEAR__TRUST_PICKLE", "maybe", "allowed: true or false"),
        ("STREAMSERVE_POOLS__OTHER__PROCESSES", "2", "pools.other.models is missing"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    told = [line for line in refused(DIGITS) if words in line]
    assert len(told) == 1, refused(DIGITS)
    assert told[0].startswith(f"environment variable {variable}: ")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("STREAMSERVE_APP_PARTITIONS", "STREAMSERVE_APP__PARTITIONS"),
        ("streamserve_broker_bootstrap_servers", "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS"),
    ],
)
def test_one_underscore_too_few_is_told(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    monkeypatch.setenv(name, "8")
    assert refused(DIGITS) == [f"environment variable {name}: is no setting, and would do nothing; allowed: {meant}"]


def test_what_a_container_platform_sets_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_METRICS_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("STREAMSERVE_APP_SERVICE_HOST", "10.0.0.1")
    assert parse_settings(DIGITS, "x").metrics.port == 0
