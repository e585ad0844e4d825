"""What each mistake is told as, and where."""

from __future__ import annotations

import pytest

from streamserve.runtimes import system
from streamserve.settings import parse_settings
from tests.settings.digits import DIGITS, changed, line_of, refused

# old text, new text, where, what is told
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
    (
        "partitions = 4",
        'partitions = 4\ndelivery = "exactly-once"',
        "delivery",
        'app.delivery = "exactly-once" is not possible; allowed: "at_least_once", "exactly_once"',
        'did you mean "exactly_once"?',
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
        'there is no policy "hegde"; allowed: static, ab, hedge, stack',
        'did you mean "hedge"?',
    ),
    (
        '{ name = "hedge", eta',
        "{ eta",
        "policy",
        "routes.digits.policy.name is missing; allowed: static, ab, hedge, stack",
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
        'guard = { control = "lineer", control_share = 0.1 }\ndeadline_ms = 100',
        "guard",
        'routes.digits.guard.control: "lineer" is no model of the route; allowed: linear, forest',
        'did you mean "linear"?',
    ),
    (
        'policy = { name = "hedge", eta = 0.3, half_life_events = 350 }',
        'policy = { name = "linucb", features = 3 }',
        "policy",
        'routes.digits.contexts: linucb reads features: say where they come from, such as { source = "header" }',
        "",
    ),
    (
        'policy = { name = "hedge", eta = 0.3, half_life_events = 350 }',
        'policy = "static"\ncontexts = {}',
        "contexts",
        "routes.digits.contexts: policy static learns nothing",
        "",
    ),
    (
        "deadline_ms = 100",
        'contexts = { source = "body" }\ndeadline_ms = 100',
        "contexts",
        'routes.digits.contexts: source = "body" and field go together',
        "",
    ),
    (
        "deadline_ms = 100",
        'contexts = { until = ":" }\ndeadline_ms = 100',
        "contexts",
        'routes.digits.contexts: until is for source = "key"',
        "",
    ),
    (
        "deadline_ms = 100",
        "guard = { control_share = 0.1 }\ndeadline_ms = 100",
        "guard",
        "routes.digits.guard.control_share needs a model to give it to: guard.control",
        "",
    ),
    (
        "deadline_ms = 100",
        "guard = { least_share = 0.6 }\ndeadline_ms = 100",
        "guard",
        "routes.digits.guard.least_share = 0.6 is too much for 2 models",
        "; allowed: up to 1/2",
    ),
    (
        "deadline_ms = 100",
        "guard = { most_share = 0.4 }\ndeadline_ms = 100",
        "guard",
        "routes.digits.guard.most_share = 0.4 is too little for 2 models",
        "; allowed: from 1/2",
    ),
    (
        "deadline_ms = 100",
        "guard = { most_share = 0.7, most_explored = 0.2 }\ndeadline_ms = 100",
        "guard",
        "routes.digits.guard.most_explored = 0.2 leaves one model more than most_share",
        "; allowed: from 0.3",
    ),
    (
        'policy = { name = "hedge", eta = 0.3, half_life_events = 350 }',
        'policy = { name = "ab", shares = { linear = 1, forrest = 1 } }',
        "policy",
        'routes.digits.policy.shares: "forrest" is no model of the route',
        'did you mean "forest"?',
    ),
    (
        'policy = { name = "hedge", eta = 0.3, half_life_events = 350 }',
        'policy = { name = "ab", shares = { linear = 0, forest = 0 } }',
        "policy",
        "routes.digits.policy.shares: at least one share must be above 0",
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
    ("default = -1", "default = nan", "default", "routes.digits.default = NaN: nan is no finite number", "allowed: a"),
    ("default = -1", "default = -inf", "default", "routes.digits.default = -Infinity: -inf is no finite", "allowed: a"),
    ("default = -1", "default = [0.5, nan]", "default", "routes.digits.default: nan is no finite", "allowed: a number"),
    (
        "default = -1",
        "default = 9223372036854775808",
        "default",
        "routes.digits.default = 9223372036854775808: a whole number beyond 64 bits",
        "allowed: a number",
    ),
    (
        "default = -1",
        'default = [1, "a", true]',
        "default",
        "routes.digits.default: mixes numbers, texts, true or false; allowed: a number",
        "a list of one kind",
    ),
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
    ('batching = "auto"', "memory_bytes = 99999999", "memory_bytes", 'only used with isolation = "process"', ""),
    (
        'batching = "auto"',
        "head_rate = 0.5",
        "head_rate",
        "models.linear.head_rate is only used with a .plan file: `streamserve plan pack` makes one",
        "",
    ),
    (
        'batching = "auto"',
        'isolation = "process"\nown_thread = true',
        "own_thread",
        'of no use with isolation = "process"',
        "",
    ),
    ('batching = "auto"', 'isolation = "proces"', "isolation", "isolation", 'allowed: "thread", "process"'),
    (
        'batching = "auto"',
        'isolation = "process"\nmost_threads = 0',
        "most_threads",
        "models.linear.most_threads = 0 is not possible",
        "from 1 up to 10000",
    ),
    (
        'batching = "auto"',
        'isolation = "process"\nmemory_bytes = 1',
        "memory_bytes",
        "models.linear.memory_bytes = 1 is not possible",
        "from 16777216 up to",
    ),
    ('"workers.digits_linear:model"', '"m.joblib"', "source", "set trust_pickle = true", ""),
    (
        '"workers.digits_linear:model"',
        '"workers.digits_linear"',
        "source",
        'models.linear.source = "workers.digits_linear" is neither an import path (package.module:attribute, or',
        "a file ending in .skops,",
    ),
    ('"workers.digits_linear:model"', '"m.pkl"', "source", 'models.linear.source = "m.pkl" is a plain pickle', "save"),
    ('batching = "auto"', 'trusted_types = ["x.Y"]', "trusted_types", "only used with a .skops file", ""),
    ('batching = "auto"', 'precision = "f32"', "precision", 'is only used with runtime = "plan"', ""),
    ('batching = "auto"', 'precision = "f16"', "precision", 'precision = "f16" is not possible', ""),
    ('batching = "auto"', 'runtime = "sklern"', "runtime", 'no runtime is called "sklern"', 'did you mean "sklearn"?'),
    ('"host:9092"', '"host"', "bootstrap_servers", "allowed: `host:port`, several with commas", ""),
    (
        '"host:9092"',
        '"host:65536"',
        "bootstrap_servers",
        "is not possible; allowed: `host:port`",
        "ports from 1 to 65535",
    ),
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


def test_limits_that_a_system_cannot_hold_to_are_refused_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "CAN_WATCH", False)  # as on macOS
    isolated = changed('batching = "auto"', 'isolation = "process"')
    assert parse_settings(isolated, "app.toml").models["linear"].isolation == "process"
    text = changed('isolation = "process"', 'isolation = "process"\nmost_threads = 9\ncpu_cores = 2', isolated)
    assert refused(text) == [
        f"app.toml:{line_of('most_threads', text)}: models.linear.most_threads cannot be held to on this system, which "
        "has no /proc; allowed: leave it out"
    ]


def test_a_key_cannot_speak_to_the_terminal() -> None:
    told = refused(changed("deadline_ms = 100", '"a\\nb\\u001b[31m" = 1\ndeadline_ms = 100'))
    assert [line for line in told if 'unknown key "a\\nb\\u001b[31m" in [routes.digits]' in line] == told


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


def test_toml_that_is_broken_keeps_its_line() -> None:
    assert refused(changed("partitions = 4", "partitions =")) == ["app.toml:3: not TOML: Invalid value (column 13)"]
    assert refused("[app\n")[0].startswith("app.toml:1: not TOML: ")
    assert refused('a = """\n\n')[0].startswith("app.toml:")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("text", "line", "key", "first"),
    [
        ('[app]\nname = "a"\nname = "b"\n', 3, "app.name", 2),
        ('[app]\nname = """\nb"""\nname = [\n"é",\n]\n[x]\n', 4, "app.name", 2),
        ("a = [{ b = 1 }]\na = [\n{ b = 1 }]\n", 2, "a", 1),
        ("[app]\n[pools.a]\n[app]\n", 3, "app", 1),
        ("[a]\nb = 1\n[a.b]\n", 3, "a.b", 2),
        ("a.b = 1\na.b.c = 2", 2, "a.b", 1),
        ("[a]\nb = { c = 1, d = [{ e = 1 }], c = 2 }\n", 2, "a.b.c", 2),
        ("a = { b = 1 }\n[a]\nc = 1\n", 2, "a", 1),
        ("[[a]]\nb = 1\n[[a]]\nb = 1\nb = 2\n", 5, "a[1].b", 4),
    ],
)
def test_what_is_given_twice_is_named(text: str, line: int, key: str, first: int, newline: str) -> None:
    (told,) = refused(text.replace("\n", newline))
    assert told == (
        f"app.toml:{line}: not TOML: {key} is given twice, first in line {first}; allowed: each key and table once"
    )


@pytest.mark.parametrize(
    "label", ["-9223372036854775808", "9223372036854775807", "[1, 2.5]", '["a", "b"]', "[true]", "1e300"]
)
def test_a_default_of_one_kind_is_taken(label: str) -> None:
    assert parse_settings(changed("default = -1", f"default = {label}"), "x").routes["digits"].has_default


def test_keys_that_pydantic_settings_would_obey_are_only_unknown() -> None:
    told = refused('_env_file = "x"\nself = 1\n' + DIGITS)
    assert told[0].startswith('app.toml:1: unknown section "_env_file"')
    assert told[1].startswith('app.toml:2: unknown section "self"')
