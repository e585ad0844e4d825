"""What a config may say, what each mistake is told as, and that secrets stay secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from streamserve.errors import ConfigError
from streamserve.settings import Settings, load_settings, parse_settings

# The config of the README, and the second model that it names.
DIGITS = """\
[app]
name = "digits"
partitions = 4
fused = "auto"

[broker]                       # leave out for a Kafka of our own
bootstrap_servers = "host:9092"

[pools.main]                   # one consumer group of identical processes
models = ["linear", "forest"]
processes = 1

[models.linear]
version = "1"
source = "workers.digits_linear:model"     # import path, or an artifact's file
batching = "auto"

[routes.digits]
models = ["linear", "forest"]
policy = { name = "hedge", eta = 0.3, half_life_events = 350 }
combine = "mean_probability"
deadline_ms = 100
default = -1

[models.forest]
source = "workers.digits_forest:model"
"""

Refused = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("STREAMSERVE_")]:
        monkeypatch.delenv(name)


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, "app.toml")
    return str(caught.value).splitlines()


def changed(old: str, new: str, text: str = DIGITS) -> str:
    assert old in text
    return text.replace(old, new)


def line_of(words: str, text: str) -> int:
    return text[: text.index(words)].count("\n") + 1


def test_the_example_config_loads() -> None:
    settings = parse_settings(DIGITS, "app.toml")
    assert settings.app.name == "digits"
    assert settings.broker.bootstrap_servers == "host:9092"
    assert settings.pools["main"].models == ("linear", "forest")
    assert settings.routes["digits"].policy.options() == {"eta": 0.3, "half_life_events": 350}
    assert settings.routes["digits"].default == -1
    assert settings.model_id("forest") == "forest@1"


def test_the_examples_of_the_repository_load() -> None:
    examples = Path(__file__).parent.parent / "examples"
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


# --- mistakes: old text, new text, where, what is told ---

MISTAKES = [
    ("[app]", "[APP]", "[APP]", 'unknown section "APP"', 'did you mean "app"?'),
    ('batching = "auto"', "trust_pickle = 1", "trust_pickle", "trust_pickle = 1 is not possible", "true or false"),
    ('batching = "auto"', 'trust_pickle = "yes"', "trust_pickle", 'trust_pickle = "yes" is not', "true or false"),
    (
        "partitions = 4",
        "partitons = 4",
        "partitons",
        'unknown key "partitons" in [app]; allowed: name, partitions,',
        'did you mean "partitions"?',
    ),
    ("[broker] ", "[brokr] ", "[brokr]", 'unknown section "brokr"; allowed: app, broker,', 'did you mean "broker"?'),
    (
        "partitions = 4",
        "partitions = 0",
        "partitions",
        "app.partitions = 0 is not possible; allowed: a whole number from 1 up to 10000",
        "",
    ),
    ("partitions = 4", 'partitions = "4"', "partitions", 'app.partitions = "4" is not possible', "a whole number"),
    ("partitions = 4", "partitions = true", "partitions", "app.partitions = true is not possible", "a whole number"),
    ("partitions = 4", "partitions = 4.0", "partitions", "app.partitions = 4.0 is not possible", "a whole number"),
    ("partitions = 4", "partitions = nan", "partitions", "app.partitions = NaN is not possible", "a whole number"),
    (
        'fused = "auto"',
        'fused = "atuo"',
        "fused",
        'app.fused = "atuo" is not possible; allowed: "auto", "never"',
        'did you mean "auto"?',
    ),
    ('name = "digits"', 'name = "My App"', "name", "app.name", "allowed"),
    ('name = "digits"\n', "", "[app]", "app.name is missing; allowed: ", "Prefix of topics"),
    (
        'version = "1"',
        "version = 1",
        "version",
        'models.linear.version = 1 is not possible; allowed: text in quotes, such as "1"',
        "",
    ),
    ('version = "1"', 'version = "1@2"', "version", "models.linear.version", "allowed"),
    (
        "eta = 0.3",
        "etta = 0.3",
        "policy",
        'unknown key "etta" in policy hedge; allowed: name, eta, half_life_events',
        'did you mean "eta"?',
    ),
    ("eta = 0.3", "gamma = 0.3", "policy", 'unknown key "gamma" in policy hedge', ""),
    (
        "eta = 0.3",
        "eta = -1",
        "policy",
        "routes.digits.policy.eta = -1 is not possible; allowed: a number above 0 up to 10",
        "",
    ),
    ("eta = 0.3", "eta = inf", "policy", "routes.digits.policy.eta = Infinity is not possible", ""),
    (
        'name = "hedge"',
        'name = "hegde"',
        "policy",
        'there is no policy "hegde"; allowed: static, hedge, exp3',
        'did you mean "hedge"?',
    ),
    (
        '{ name = "hedge", eta',
        "{ eta",
        "policy",
        "routes.digits.policy.name is missing; allowed: static, hedge, exp3",
        "",
    ),
    (
        'policy = { name = "hedge", eta = 0.3, half_life_events = 350 }',
        "policy = 3",
        "policy",
        "routes.digits.policy = 3 is not possible; allowed: a policy's name",
        "",
    ),
    (
        "deadline_ms = 100",
        "deadline_ms = 90000",
        "deadline_ms",
        "deadline_ms = 90000 is above app.max_deadline_ms; allowed: up to 60000",
        "",
    ),
    (
        "deadline_ms = 100",
        "deadline_ms = 15",
        "deadline_ms",
        "leaves nothing after app.guard_ms; allowed: above 15",
        "",
    ),
    ("deadline_ms = 100", 'input = "json"', "input", 'allowed: "oip", "rows", "text", "raw"', ""),
    ("default = -1", "default = 1979-05-27", "default", "routes.digits.default: must be a number, a text", ""),
    ("default = -1", "default = {a = 1}", "default", "routes.digits.default: must be a number, a text", ""),
    (
        "default = -1",
        "confidence_threshold = 0.5",
        "confidence_threshold",
        "confidence_threshold needs routes.digits.default",
        "",
    ),
    (
        'combine = "mean_probability"',
        'combine = "mean"\ndefault = "x"\n[routes.digits.options]',
        "default",
        "default is no number",
        "mean",
    ),
    ("processes = 1", "processes = 0", "processes", "pools.main.processes = 0 is not possible", "from 1 up to 256"),
    (
        'batching = "auto"',
        'batching = "fixed"',
        "[models.linear]",
        'models.linear.batch_size is missing; batching = "fixed" needs it',
        "",
    ),
    ('batching = "auto"', "batch_size = 5", "batch_size", 'only used with batching = "fixed"', ""),
    (
        'batching = "auto"',
        'batching = "fixed"\nbatch_size = 600',
        "batch_size",
        "batch_size = 600 is above max_batch; allowed: up to 512",
        "",
    ),
    ('"workers.digits_linear:model"', '"m.joblib"', "source", "set trust_pickle = true", ""),
    ('batching = "auto"', 'trusted_types = ["x.Y"]', "trusted_types", "only used with a .skops file", ""),
    ('batching = "auto"', 'runtime = "sklern"', "runtime", 'no runtime is called "sklern"', 'did you mean "sklearn"?'),
    ('"host:9092"', '"host"', "bootstrap_servers", "allowed: `host:port`, several with commas", ""),
    ('bootstrap_servers = "host:9092"', "nodes = 2", "nodes", "broker.nodes is not possible; allowed: 1, 3", ""),
    (
        'bootstrap_servers = "host:9092"',
        'client.security_protocol = "SSL"',
        "client.",
        "set broker.bootstrap_servers",
        "",
    ),
    ("[pools.main] ", '[pools."a b"] ', '[pools."a b"]', 'pools: the name "a b" is not possible', "letters, digits"),
    (
        "[broker] ",
        "[group]\nheartbeat_interval_ms = 2001\n[broker] ",
        "heartbeat",
        "more than a third of session_timeout_ms; allowed: up to 2000",
        "",
    ),
    (
        '["linear", "forest"]\nprocesses',
        '["linear", "forest", "linear"]\nprocesses',
        "models",
        "names linear more than once",
        "",
    ),
    (
        '["linear", "forest"]\nprocesses',
        "[]\nprocesses",
        "models",
        "pools.main.models is not possible; allowed: a list of names, at least one",
        "",
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "where", "start", "end"), MISTAKES, ids=[mistake[1][:40] for mistake in MISTAKES]
)
def test_a_mistake_is_told_with_its_line(old: str, new: str, where: str, start: str, end: str) -> None:
    text = DIGITS.replace(old, new, 1)
    assert text != DIGITS
    place = text.index(where, max(text.index(new) - len(where), 0) if where in new else 0)
    line = text[:place].count("\n") + 1
    told = [words for words in refused(text) if start in words]
    assert len(told) == 1, refused(text)
    assert told[0].startswith(f"app.toml:{line}: ")
    assert end in told[0]


def test_unknown_models_are_told_at_their_place_in_the_list() -> None:
    text = changed('["linear", "forest"]\nprocesses', '[\n  "linear",\n  "forrest",\n]\nprocesses')
    told = refused(text)
    assert told[0] == (
        f'app.toml:{line_of("forrest", text)}: pools.main.models: there is no model "forrest"; '
        'allowed: linear, forest; did you mean "forest"?'
    )
    assert 'model "forest" is in no pool; add it to one of: main' in told[1]


def test_a_model_in_two_pools_is_refused() -> None:
    text = DIGITS + '\n[pools.second]\nmodels = ["forest"]\n'
    assert refused(text) == [
        f'app.toml:{line_of("[pools.second]", text) + 1}: pools.second.models: model "forest" is in pool main too; '
        "allowed: one pool a model"
    ]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = changed("partitions = 4", "partitions = -4")
    text = changed('models = ["linear", "forest"]\npolicy', 'models = ["linaer", "forest"]\npolicy', text)
    text = changed("default = -1", "defaults = -1", text)
    told = refused(text)
    assert [words.split(":")[1] for words in told] == [
        str(line_of("partitions", text)),
        str(line_of("linaer", text)),
        str(line_of("defaults", text)),
    ]


def test_static_weights_name_the_models_of_the_route() -> None:
    table = 'policy = { name = "hedge", eta = 0.3, half_life_events = 350 }'
    told = refused(changed(table, 'policy = { name = "static", weights = { linear = 0, forrest = 0.0 } }'))
    assert any(
        '"forrest" is no model of the route; allowed: linear, forest; did you mean "forest"?' in words for words in told
    )
    assert any("lacks forest" in words for words in told)
    assert any("at least one weight must be above 0" in words for words in told)
    good = changed(table, 'policy = { name = "static", weights = { linear = 0, forest = 2.5 } }')
    assert parse_settings(good, "x").routes["digits"].policy.options() == {"weights": {"linear": 0, "forest": 2.5}}


def test_a_policy_may_be_named_alone() -> None:
    text = changed('{ name = "hedge", eta = 0.3, half_life_events = 350 }', '"exp3"')
    policy = parse_settings(text, "x").routes["digits"].policy
    assert (policy.name, policy.options()) == ("exp3", {})


def test_toml_that_is_broken_keeps_its_line() -> None:
    assert refused(changed("partitions = 4", "partitions =")) == ["app.toml:3: not TOML: Invalid value (column 13)"]
    assert refused("[app\n")[0].startswith("app.toml:1: not TOML: ")
    assert refused('[app]\nname = "a"\nname = "b"\n')[0].startswith("app.toml:3: not TOML: ")
    assert refused('a = """\n\n')[0].startswith("app.toml:")


def test_keys_that_pydantic_settings_would_obey_are_only_unknown() -> None:
    told = refused('_env_file = "x"\nself = 1\n' + DIGITS)
    assert told[0].startswith('app.toml:1: unknown section "_env_file"')
    assert told[1].startswith('app.toml:2: unknown section "self"')


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


# --- the environment ---


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


# --- secrets ---

SECURE = changed(
    'bootstrap_servers = "host:9092"',
    'bootstrap_servers = "host:9092"\nclient = { security_protocol = "SASL_SSL", sasl_mechanism = "PLAIN", '
    'sasl_username = "me", sasl_password = "hunter2" }',
)


def test_passwords_are_not_in_what_settings_show() -> None:
    settings = parse_settings(SECURE, "x")
    assert settings.broker.client.sasl_password is not None
    assert settings.broker.client.sasl_password.get_secret_value() == "hunter2"
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('sasl_password = "hunter2"', 'sasl_pasword = "hunter2"'),
        ('sasl_password = "hunter2"', 'sasl_password = ["hunter2"]'),
        ('sasl_username = "me"', 'sasl_username = ["hunter2"]'),
        ('"SASL_SSL"', '"hunter2"'),
        ('"host:9092"', '"me:hunter2@host:9092"'),
        (SECURE[SECURE.index("client = {") : SECURE.index("}") + 1], 'client = "hunter2"'),
        ('sasl_password = "hunter2"', 'sasl_password = "hunter2'),
    ],
)
def test_passwords_are_not_in_errors(old: str, new: str) -> None:
    text = changed(old, new, SECURE)
    assert not [words for words in refused(text) if "hunter2" in words]


def test_passwords_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_BROKER__CLIENT__SASL_PASSWORD", "12345")
    password = parse_settings(changed(', sasl_password = "hunter2"', "", SECURE), "x").broker.client.sasl_password
    assert password is not None
    assert password.get_secret_value() == "12345"


def test_sasl_without_its_parts_is_refused() -> None:
    told = refused(changed('sasl_mechanism = "PLAIN", sasl_username = "me", ', "", SECURE))
    assert [words.split(": ")[1].split(" is missing")[0] for words in told] == [
        "broker.client.sasl_mechanism",
        "broker.client.sasl_username",
    ]


# --- plugins ---


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greedy.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Greedy:\n"
        "    epsilon: float = 0.1\n"
        "    def __post_init__(self):\n"
        "        if not 0 <= self.epsilon <= 1:\n"
        "            raise ValueError('epsilon must be 0 to 1')\n"
    )
    info = tmp_path / "greedy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[streamserve.policies]\ngreedy = greedy:Greedy\nstatic = greedy:Greedy\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("plugin")
def test_a_policy_of_another_package_has_its_own_options() -> None:
    old = '{ name = "hedge", eta = 0.3, half_life_events = 350 }'
    good = parse_settings(changed(old, '{ name = "greedy", epsilon = 0.2 }'), "x")
    assert good.routes["digits"].policy.options() == {"epsilon": 0.2}
    told = refused(changed(old, '{ name = "greedy", epsilom = 0.2 }'))
    assert 'unknown key "epsilom" in policy greedy; allowed: name, epsilon; did you mean "epsilon"?' in told[0]
    told = refused(changed(old, '{ name = "greedy", epsilon = 2 }'))
    assert "routes.digits.policy: epsilon must be 0 to 1" in told[0]


@pytest.mark.usefixtures("plugin")
def test_a_policy_of_another_package_cannot_replace_ours() -> None:
    told = refused(changed('{ name = "hedge", eta = 0.3, half_life_events = 350 }', '{ name = "static", epsilon = 1 }'))
    assert 'unknown key "epsilon" in policy static' in told[0]


def test_the_schema_is_whole() -> None:
    assert set(Settings.model_json_schema()["properties"]) == set(Settings.model_fields)
