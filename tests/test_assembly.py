"""From a config to the core's values."""

from __future__ import annotations

import pytest

from streamserve.assembly import app_rules, make_policy, model_rules, model_specs, routes
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.guarded import Guarded, ShareLimits
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.inheriting import Heir, Inheriting
from streamserve.core.selection.second import WithSecond
from streamserve.core.selection.static import Static
from streamserve.core.selection.watched import Watched
from streamserve.errors import ConfigError
from streamserve.settings import Settings, parse_settings
from streamserve.settings.policies import Exp3Policy, HedgePolicy, OtherPolicy, StaticPolicy
from tests.settings.digits import changed

CONFIG = """\
[app]
name = "a"
guard_ms = 7
max_deadline_ms = 5000
max_request_bytes = 1000
epoch_delay_ms = 100

[pools.left]
models = ["x", "y"]
cache_bytes = 1000

[pools.right]
models = ["z"]

[models.x]
version = "3"
source = "x.skops"
trusted_types = ["a.B"]
options = { threads = 2, device = "cpu" }
batching = "fixed"
batch_size = 32
max_batch = 64
max_wait_ms = 5

[models.y]
source = "m:y"
runtime = "callable"

[models.z]
source = "z.joblib"
trust_pickle = true

[routes.first]
models = ["z", "x"]
policy = { name = "hedge", eta = 0.5 }
combine = "mean_probability"
deadline_ms = 250
input = "rows"
default = [0, 1]
confidence_threshold = 0.25
probabilities = true
decide_early = false

[routes.second]
models = ["y"]
"""


@pytest.fixture
def settings() -> Settings:
    return parse_settings(CONFIG, "a.toml")


def test_a_route_has_what_its_settings_say(settings: Settings) -> None:
    first, second = routes(settings)
    assert (first.name, first.models, first.combine) == ("first", ("z@1", "x@3"), "mean_probability")
    assert (first.deadline_ms, first.input, first.probabilities, first.decide_early) == (250, "rows", True, False)
    assert (first.default, first.has_default, first.confidence_threshold) == ([0, 1], True, 0.25)
    assert first.policy == Watched(policy=Hedge(eta=0.5), combine="mean_probability")
    assert first.learns
    assert (second.policy, second.learns) == (Static(), False)
    assert (second.default, second.has_default, second.deadline_ms) == (None, False, 100)


def test_the_rules_of_the_app(settings: Settings) -> None:
    rules = app_rules(settings)
    assert [route.name for route in rules.routes] == ["first", "second"]
    assert (rules.max_deadline_ms, rules.max_request_bytes) == (5000, 1000)
    assert (rules.guard_ms, rules.epoch_delay_ms) == (7, 100)


def test_models_of_a_pool(settings: Settings) -> None:
    x, y = model_specs(settings, "left")
    (z,) = model_specs(settings, "right")
    assert (x.model_id, x.source, x.trusted_types) == ("x@3", "x.skops", ("a.B",))
    assert dict(x.options) == {"threads": 2, "device": "cpu"}
    assert (y.model_id, y.runtime, y.trust_pickle) == ("y@1", "callable", False)
    assert z.trust_pickle


def test_rules_of_the_models_of_a_pool(settings: Settings) -> None:
    rules = model_rules(settings, "left")
    assert list(rules) == ["x@3", "y@1"]
    x, y = rules.values()
    assert (x.model, x.batching, x.batch_size, x.max_batch, x.max_wait_ms) == ("x@3", "fixed", 32, 64, 5)
    assert (y.batching, y.max_batch) == ("auto", 512)
    assert x.cache_bytes == y.cache_bytes == 500


def test_an_unknown_pool_is_refused(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r'a\.toml: there is no pool "middle"; allowed: left, right'):
        model_specs(settings, "middle")


def test_policies_take_the_options_that_are_given_and_their_own_defaults() -> None:
    assert make_policy(StaticPolicy()) == Static()
    assert make_policy(StaticPolicy(weights={"x": 2.0})) == Static(weights={"x": 2.0})
    assert make_policy(HedgePolicy(name="hedge", half_life_events=9)) == Hedge(half_life_events=9)
    assert make_policy(Exp3Policy(name="exp3", gamma=0.5)) == Exp3(gamma=0.5)


def test_a_policy_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match='there is no policy "clever"; allowed: static, ab, hedge, stack'):
        make_policy(OtherPolicy(name="clever"))


def test_a_guard_is_put_around_the_policy_of_its_route() -> None:
    old = "deadline_ms = 100"
    guarded = parse_settings(changed(old, "guard = { least_share = 0.1 }\n" + old), "x")
    route = next(route for route in app_rules(guarded).routes if route.name == "digits")
    guarded_policy = Guarded(policy=Hedge(eta=0.3, half_life_events=350), limits=ShareLimits(least_share=0.1))
    assert route.policy == Watched(policy=guarded_policy, combine=route.combine)
    assert (route.policy.name, route.learns) == ("hedge", True)
    impossible = parse_settings(
        changed(old, 'guard = { least_share = 0.9, control = "linear", control_share = 0.1 }\n' + old), "x"
    )
    with pytest.raises(ConfigError, match=r"^x: routes\.digits: guard: .* cannot hold for"):
        app_rules(impossible)


def test_a_model_that_inherits_does_so_in_the_routes_that_learn() -> None:
    config = CONFIG.replace('source = "m:y"', 'source = "m:y"\ninherits = "old@7"\ninherits_share = 0.25')
    config = config.replace('models = ["z", "x"]', 'models = ["z", "y"]')
    first = routes(parse_settings(config, "a.toml"))[0]
    assert isinstance(first.policy, Watched)
    inheriting = first.policy.policy
    assert isinstance(inheriting, Inheriting)
    assert inheriting.heirs == {"y@1": Heir(of="old@7", share=0.25)}
    with pytest.raises(ConfigError, match="y@1 is this model itself"):
        parse_settings(config.replace("old@7", "y@1"), "a.toml")


SECOND = """\
confidence_threshold = 0.9
below_threshold = "second_opinion"
second_opinion = "y"
confidence = { of = "probability" }
"""
WITH_W = CONFIG.replace('models = ["x", "y"]', 'models = ["x", "y", "w"]').replace(
    "[models.z]", '[models.w]\nsource = "m:w"\n\n[models.z]'
)


def second(text: str = SECOND, models: str = '["x"]') -> Settings:
    config = WITH_W.replace('[routes.second]\nmodels = ["y"]\n', f"[routes.second]\nmodels = {models}\n{text}")
    return parse_settings(config, "a.toml")


def test_a_second_opinion_is_the_last_model_of_its_route_and_no_choice_of_its_policy() -> None:
    found = routes(second())[1]
    assert (found.models, found.second, found.second_mask) == (("x@3", "y@1"), "y@1", 2)
    assert (found.learns, found.abstains, found.has_default) == (True, False, False)
    assert found.confident is not None
    assert isinstance(found.confident.policy, WithSecond)
    assert found.policy.distribution(found.policy.initial(found.models), found.models).masks.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SECOND.replace('"y"', '"v"'), 'there is no model "v"'),
        (SECOND.replace('"y"', '"z"'), "one pool must host it"),
        (SECOND.replace('"y"', '"x"'), "one of the route's models already"),
        (SECOND.replace("0.9", "0.0"), "needs a confidence_threshold above 0"),
        (SECOND.replace('of = "probability"', "prior = 3.0"), 'with of = "probability"'),
        (SECOND.replace('second_opinion = "y"\n', ""), "one is missing"),
        (SECOND + "contexts = {}\n", "not with contexts"),
        (SECOND.replace('"probability" }', '"probability", coverage = 0.9 }'), "not made with second opinions"),
    ],
)
def test_what_a_second_opinion_needs_is_told(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        second(text)


def test_a_policy_that_asks_several_models_has_no_second_opinion() -> None:
    with pytest.raises(ConfigError, match="asks several models at once"):
        routes(second(models='["x", "w"]'))
