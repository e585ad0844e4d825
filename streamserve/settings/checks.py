"""What no single key can tell: names that must fit together, and values that exclude each other.

Each check reads the unchecked config, so that one mistake hides no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import PurePath

from streamserve.errors import ConfigError
from streamserve.runtimes import system
from streamserve.runtimes.isolation import Limits
from streamserve.settings import plugins, schema
from streamserve.settings.lines import KeyPath
from streamserve.settings.mistakes import Mistake, did_you_mean, dotted, listing
from streamserve.settings.policies import BUILT_IN
from streamserve.settings.raw import RawConfig

_HEARTBEATS_A_SESSION = 3
#: A state is published again within half of it, by a learner that may just be moving.
_LEAST_STATE_AGE_MS = 5_000
#: Combine rules whose answers come with a score by which a set or an interval can be made.
_WITH_SCORES = ("mean_probability", "log_probability", "mean")
_ROUNDING = 1e-9
_LIMITS = tuple(field.name for field in fields(Limits))
_WATCHED = ("memory_bytes", "most_threads")
_PASSWORD_KEYS = ("sasl_username", "sasl_password")
_SASL_KEYS = {"GSSAPI": (), "OAUTHBEARER": ("sasl_token_function",)}


def cross_checks(config: RawConfig) -> list[Mistake]:
    """Every mistake of this kind."""
    return [mistake for check in _CHECKS for mistake in check(config)]


def _model_names(config: RawConfig) -> Iterator[Mistake]:
    known = config.names("models")
    for section in ("pools", "routes"):
        for name in config.names(section):
            for index, model in enumerate(config.names(section, name, "models")):
                if model not in known:
                    path: KeyPath = (section, name, "models", index)
                    words = f'{dotted(path[:-1])}: there is no model "{model}"; allowed: {listing(known)}'
                    yield Mistake(path=path, words=words + did_you_mean(model, known))


def _hosting(config: RawConfig) -> Iterator[Mistake]:
    hosts: dict[str, str] = {}
    for pool in config.names("pools"):
        for index, model in enumerate(config.names("pools", pool, "models")):
            other = hosts.setdefault(model, pool)
            if other != pool:
                words = f'pools.{pool}.models: model "{model}" is in pool {other} too; allowed: one pool a model'
                yield Mistake(path=("pools", pool, "models", index), words=words)
    for route in config.names("routes"):
        for index, model in enumerate(config.names("routes", route, "models")):
            if model in config.names("models") and model not in hosts:
                pools = listing(config.names("pools"))
                words = f'routes.{route}.models: model "{model}" is in no pool; add it to one of: {pools}'
                yield Mistake(path=("routes", route, "models", index), words=words)


def _deadlines(config: RawConfig) -> Iterator[Mistake]:
    most, guard = config.number("app", "max_deadline_ms"), config.number("app", "guard_ms")
    for route in config.names("routes"):
        path: KeyPath = ("routes", route, "deadline_ms")
        deadline = config.number("routes", route, "deadline_ms")
        if deadline is None:
            continue
        if most is not None and deadline > most:
            words = f"{dotted(path)} = {deadline} is above app.max_deadline_ms; allowed: up to {most}"
            yield Mistake(path=path, words=words)
        if guard is not None and deadline <= guard:
            words = f"{dotted(path)} = {deadline} leaves nothing after app.guard_ms; allowed: above {guard}"
            yield Mistake(path=path, words=words)


def _defaults(config: RawConfig) -> Iterator[Mistake]:
    for route in config.names("routes"):
        has_default = ("routes", route, "default") in config
        threshold = config.number("routes", route, "confidence_threshold")
        below = config.text("routes", route, "below_threshold")
        abstains = below == "abstain"
        if threshold and not has_default and below not in ("abstain", "second_opinion"):
            path: KeyPath = ("routes", route, "confidence_threshold")
            yield Mistake(path=path, words=f"{dotted(path)} needs routes.{route}.default, which is given below it")
        age = config.number("routes", route, "max_state_age_ms")
        if age and age < _LEAST_STATE_AGE_MS:
            path = ("routes", route, "max_state_age_ms")
            yield Mistake(path=path, words=f"{dotted(path)} = {age} is below {_LEAST_STATE_AGE_MS}; 0: no bound")
        if abstains and not threshold:
            path = ("routes", route, "below_threshold")
            yield Mistake(path=path, words=f"{dotted(path)} needs routes.{route}.confidence_threshold above 0")
        coverage = config.number("routes", route, "confidence", "coverage")
        combine = config.text("routes", route, "combine") or "vote"
        if coverage and combine not in _WITH_SCORES:
            path = ("routes", route, "confidence", "coverage")
            words = f"{dotted(path)} needs a combine rule that scores its answers: {', '.join(_WITH_SCORES)}"
            yield Mistake(path=path, words=words)
        default = config[("routes", route, "default")]
        if has_default and config.text("routes", route, "combine") == "mean" and isinstance(default, str | bool):
            path = ("routes", route, "default")
            yield Mistake(path=path, words=f'{dotted(path)} is no number, but combine = "mean" answers numbers')


def _batches(config: RawConfig) -> Iterator[Mistake]:
    for model in config.names("models"):
        path: KeyPath = ("models", model, "batch_size")
        size, most = config.number("models", model, "batch_size"), config.number("models", model, "max_batch")
        fixed = config.text("models", model, "batching") == "fixed"
        if fixed and size is None:
            yield Mistake(path=path[:2], words=f'{dotted(path)} is missing; batching = "fixed" needs it')
        elif size is not None and not fixed:
            yield Mistake(path=path, words=f'{dotted(path)} is only used with batching = "fixed"')
        elif size is not None and most is not None and size > most:
            yield Mistake(path=path, words=f"{dotted(path)} = {size} is above max_batch; allowed: up to {most}")


def _isolation(config: RawConfig) -> Iterator[Mistake]:
    for model in config.names("models"):
        isolated = config.text("models", model, "isolation") == "process"
        path: KeyPath = ("models", model, "own_thread")
        if isolated and config[path] is True:
            yield Mistake(path=path, words=f'{dotted(path)} is of no use with isolation = "process"')
        for key in _LIMITS:
            path = ("models", model, key)
            if path not in config:
                continue
            if not isolated:
                yield Mistake(path=path, words=f'{dotted(path)} is only used with isolation = "process"')
            elif key in _WATCHED and not system.CAN_WATCH:
                words = "cannot be held to on this system, which has no /proc; allowed: leave it out"
                yield Mistake(path=path, words=f"{dotted(path)} {words}")


def _sources(config: RawConfig) -> Iterator[Mistake]:
    for model in config.names("models"):
        source = config.text("models", model, "source") or ""
        wrong = plugins.why_no_source(source) if source else ""
        if wrong:
            words = f"models.{model}.source = {json.dumps(source)} {wrong}"
            yield Mistake(path=("models", model, "source"), words=words)
        suffix = PurePath(source).suffix.lower()
        if suffix == ".joblib" and config[("models", model, "trust_pickle")] is False:
            words = "loading a .joblib file runs whatever code is in it; if you trust it, set trust_pickle = true"
            yield Mistake(path=("models", model, "source"), words=f"models.{model}.source: {words}")
        if suffix != ".skops" and config.names("models", model, "trusted_types"):
            path: KeyPath = ("models", model, "trusted_types")
            yield Mistake(path=path, words=f"{dotted(path)} is only used with a .skops file")
        runtime, known = config.text("models", model, "runtime"), plugins.runtime_names()
        if config.text("models", model, "precision") == "f32" and not (
            runtime == "plan" or (runtime is None and suffix == ".plan")
        ):
            path = ("models", model, "precision")
            yield Mistake(path=path, words=f'{dotted(path)} = "f32" is only used with runtime = "plan"')
        if config.number("models", model, "head_rate") is not None:
            yield from _learning_head(config, model, suffix)
        if runtime is not None and runtime not in known:
            path = ("models", model, "runtime")
            words = f'{dotted(path)}: no runtime is called "{runtime}"; allowed: {listing(known)}'
            yield Mistake(path=path, words=words + did_you_mean(runtime, known))


def _learning_head(config: RawConfig, model: str, suffix: str) -> Iterator[Mistake]:
    path: KeyPath = ("models", model, "head_rate")
    for wrong, words in (
        (suffix != ".plan", "is only used with a .plan file: `streamserve plan pack` makes one"),
        (config.text("models", model, "precision") == "f32", 'learns float64 weights; leave out precision = "f32"'),
        (config.text("models", model, "isolation") == "process", 'is of no use with isolation = "process"'),
    ):
        if wrong:
            yield Mistake(path=path, words=f"{dotted(path)} {words}")


def _policies(config: RawConfig) -> Iterator[Mistake]:
    for route in config.names("routes"):
        name, known = config.policy(route), plugins.policy_names()
        path: KeyPath = ("routes", route, "policy")
        if name is None or name in BUILT_IN:
            continue
        if name not in known:
            words = f'{dotted(path)}: there is no policy "{name}"; allowed: {listing(known)}'
            yield Mistake(path=(*path, "name"), words=words + did_you_mean(name, known))
        else:
            yield from _plugin_options(config, route, name)


def _plugin_options(config: RawConfig, route: str, name: str) -> Iterator[Mistake]:
    path: KeyPath = ("routes", route, "policy")
    try:
        found = plugins.added_policy(name)
    except ConfigError as error:
        yield Mistake(path=path, words=f"{dotted(path)}: {error}")
        return
    known = tuple(field.name for field in fields(found)) if is_dataclass(found) else ()
    given = config.names(*map(str, path)) if isinstance(config[path], dict) else ()
    for key in given:
        if key != "name" and key not in known:
            words = f'unknown key "{key}" in policy {name}; allowed: {listing(("name", *known))}'
            yield Mistake(path=(*path, key), words=words + did_you_mean(key, known))
    try:
        found(**{key: config[(*path, key)] for key in given if key in known})
    except (ConfigError, TypeError, ValueError) as error:
        yield Mistake(path=path, words=f"{dotted(path)}: {error}")


#: Policies that give each model a number: under which key, and what it is called.
_BY_MODEL = {"static": ("weights", "weight"), "ab": ("shares", "share")}


def _weights(config: RawConfig) -> Iterator[Mistake]:
    for route in config.names("routes"):
        key, word = _BY_MODEL.get(config.policy(route) or "", ("", ""))
        path: KeyPath = ("routes", route, "policy", key)
        if not key or path not in config:
            continue
        models = config.names("routes", route, "models")
        weights = config.names("routes", route, "policy", key)
        for model in weights:
            if model not in models:
                words = f'{dotted(path)}: "{model}" is no model of the route; allowed: {listing(models)}'
                yield Mistake(path=(*path, model), words=words + did_you_mean(model, models))
        lacking = [model for model in models if model not in weights]
        if weights and lacking:
            yield Mistake(path=path, words=f"{dotted(path)} lacks {listing(lacking)}; a {word} of 0 is allowed")
        if weights and not any(config.number(*map(str, path), model) for model in weights):
            yield Mistake(path=path, words=f"{dotted(path)}: at least one {word} must be above 0")


def _second_opinions(config: RawConfig) -> Iterator[Mistake]:
    for route in config.names("routes"):
        table: KeyPath = ("routes", route)
        second = config.text("routes", route, "second_opinion")
        wanted = config.text("routes", route, "below_threshold") == "second_opinion"
        where: KeyPath = (*table, "second_opinion" if second is not None else "below_threshold")
        for words in _second_faults(config, route, second) if second is not None and wanted else ():
            yield Mistake(path=where, words=f"{dotted(where)}: {words}")
        if wanted != (second is not None):
            words = 'second_opinion names the model, below_threshold = "second_opinion" asks it; one is missing'
            yield Mistake(path=where, words=f"{dotted(table)}: {words}")


def _second_faults(config: RawConfig, route: str, second: str) -> Iterator[str]:
    models, known = config.names("routes", route, "models"), config.names("models")
    if second not in known:
        yield f'there is no model "{second}"; allowed: {listing(known)}{did_you_mean(second, known)}'
        return
    if second in models:
        yield f"{second} is one of the route's models already; name another one"
    if not config.number("routes", route, "confidence_threshold"):
        yield "needs a confidence_threshold above 0, below which it is asked"
    if config.text("routes", route, "confidence", "of") != "probability":
        yield f'needs routes.{route}.confidence with of = "probability": how sure one model is'
    if config.number("routes", route, "confidence", "coverage"):
        yield "sets of classes (confidence.coverage) are not made with second opinions"
    if "contexts" in config.names("routes", route):
        yield "not with contexts"
    pools = [config.names("pools", pool, "models") for pool in config.names("pools")]
    if not any({second, *models} <= set(pool) for pool in pools):
        yield f"one pool must host it and all of the route's models ({listing(models)})"


_COMBINED_BY = {
    "stack": ("log_probability", "stack weighs log-probabilities"),
    "exp4": ("drawn", "exp4 draws which answer serves"),
}


def _combined_by(config: RawConfig) -> Iterator[Mistake]:
    """Policies that learn of one combine rule only."""
    for route in config.names("routes"):
        rule, why = _COMBINED_BY.get(config.policy(route) or "", ("", ""))
        if rule and config.text("routes", route, "combine") != rule:
            path: KeyPath = ("routes", route, "policy")
            yield Mistake(path=path, words=f'{dotted(path)}: {why}; set combine = "{rule}"')


_READS_FEATURES = ("linucb", "squarecb")
_LEARNS_NOTHING = ("static", "ab")
_JSON_INPUTS = ("oip", "rows")


def _contexts(config: RawConfig) -> Iterator[Mistake]:
    for route in config.names("routes"):
        policy, table = config.policy(route), ("routes", route, "contexts")
        where: KeyPath = table if "contexts" in config.names("routes", route) else ("routes", route, "policy")
        for words in _context_faults(config, route, policy):
            yield Mistake(path=where, words=f"{dotted(table)}: {words}")
        if policy in _READS_FEATURES and "guard" in config.names("routes", route):
            path: KeyPath = ("routes", route, "guard")
            yield Mistake(path=path, words=f"{dotted(path)}: {policy} decides by features; a guard cannot limit that")


def _context_faults(config: RawConfig, route: str, policy: str | None) -> Iterator[str]:
    named = "contexts" in config.names("routes", route)
    if policy in _READS_FEATURES and not named:
        yield f'{policy} reads features: say where they come from, such as {{ source = "header" }}'
    if not named:
        return
    if policy is None or policy in _LEARNS_NOTHING:
        yield f"policy {policy or 'static'} learns nothing; states by context are for policies that learn"
    source = config.text("routes", route, "contexts", "source") or "header"
    field, until = (config.text("routes", route, "contexts", name) for name in ("field", "until"))
    if (source == "body") != (field is not None):
        yield 'source = "body" and field go together: the field of the body that names the context'
    if until and source != "key":
        yield 'until is for source = "key"'
    keyed = config["routes", route, "contexts", "keyed"] is True
    if policy in _READS_FEATURES and keyed:
        yield f"keyed: {policy} reads features, and all requests of the route share one state"
    for name in () if keyed else ("most_keyed", "forget_after_ms"):
        if ("routes", route, "contexts", name) in config:
            yield f"{name} is for keyed = true"
    codec = config.text("routes", route, "input") or "oip"
    if source == "body" and codec not in _JSON_INPUTS:
        yield f'source = "body" reads JSON, and requests of this route are {codec}'


def _guards(config: RawConfig) -> Iterator[Mistake]:
    for route in config.names("routes"):
        path: KeyPath = ("routes", route, "guard", "control")
        models, control = config.names("routes", route, "models"), config.text(*map(str, path))
        share = config.number("routes", route, "guard", "control_share")
        for named in (path, ("routes", route, "freeze", "baseline")):
            model = config.text(*map(str, named))
            if model is not None and model not in models:
                words = f'{dotted(named)}: "{model}" is no model of the route; allowed: {listing(models)}'
                yield Mistake(path=named, words=words + did_you_mean(model, models))
        if control is None and share:
            path = ("routes", route, "guard", "control_share")
            yield Mistake(path=path, words=f"{dotted(path)} needs a model to give it to: guard.control")
        if control is None and len(models) > 1:
            yield from _shares(config, ("routes", route, "guard"), len(models))


def _shares(config: RawConfig, guard: KeyPath, models: int) -> Iterator[Mistake]:
    """Limits that cannot all hold. With a control that depends on the policy, which says it itself."""
    least, most, explored = (
        config.number(*map(str, guard), key) for key in ("least_share", "most_share", "most_explored")
    )
    if least is not None and least * models > 1 + _ROUNDING:
        path = (*guard, "least_share")
        yield Mistake(
            path=path, words=f"{dotted(path)} = {least:g} is too much for {models} models; allowed: up to 1/{models}"
        )
    if most is not None and most * models < 1 - _ROUNDING:
        path = (*guard, "most_share")
        words = f"{dotted(path)} = {most:g} is too little for {models} models; allowed: from 1/{models}"
        yield Mistake(path=path, words=words)
    if most is not None and explored is not None and most + explored < 1 - _ROUNDING:
        path = (*guard, "most_explored")
        words = f"{dotted(path)} = {explored:g} leaves one model more than most_share; allowed: from {1 - most:g}"
        yield Mistake(path=path, words=words)


def _heirs(config: RawConfig) -> Iterator[Mistake]:
    for model in config.names("models"):
        path: KeyPath = ("models", model, "inherits")
        version = config.text("models", model, "version") or "1"
        if config.text(*map(str, path)) == f"{model}@{version}":
            yield Mistake(path=path, words=f"{dotted(path)}: {model}@{version} is this model itself; name another one")


def _broker(config: RawConfig) -> Iterator[Mistake]:
    named = config.text("broker", "bootstrap_servers") is not None
    client: KeyPath = ("broker", "client")
    protocol = config.text("broker", "client", "security_protocol") or ""
    if not named and protocol != "PLAINTEXT":
        words = "is for a Kafka that is not ours; set broker.bootstrap_servers"
        yield Mistake(path=(*client, "security_protocol"), words=f"broker.client.security_protocol {words}")
    nodes, replication = config.number("broker", "nodes"), config.number("app", "replication")
    if not named and nodes is not None and replication is not None and replication > nodes:
        words = f"app.replication = {replication} is above broker.nodes of our own Kafka; allowed: up to {nodes}"
        yield Mistake(path=("app", "replication"), words=words)
    if protocol.startswith("SASL"):
        mechanism = config.text("broker", "client", "sasl_mechanism") or ""
        for key in ("sasl_mechanism", *_SASL_KEYS.get(mechanism, _PASSWORD_KEYS)):
            if (*client, key) not in config:
                words = f"broker.client.{key} is missing; security_protocol = {protocol} needs it"
                allowed = schema.allowed(schema.node_at((*client, key)) or {})
                yield Mistake(path=(*client, "security_protocol"), words=f"{words}; allowed: {allowed}")
    if (*client, "ssl_keyfile") in config and (*client, "ssl_certfile") not in config:
        yield Mistake(path=(*client, "ssl_keyfile"), words="broker.client.ssl_keyfile needs ssl_certfile")


def _heartbeats(config: RawConfig) -> Iterator[Mistake]:
    session, heartbeat = config.number("group", "session_timeout_ms"), config.number("group", "heartbeat_interval_ms")
    if session is not None and heartbeat is not None and heartbeat * _HEARTBEATS_A_SESSION > session:
        words = f"group.heartbeat_interval_ms = {heartbeat} is more than a third of session_timeout_ms"
        allowed = f"allowed: up to {int(session // _HEARTBEATS_A_SESSION)}"
        yield Mistake(path=("group", "heartbeat_interval_ms"), words=f"{words}; {allowed}")


_CHECKS = (
    _model_names,
    _hosting,
    _deadlines,
    _defaults,
    _batches,
    _isolation,
    _sources,
    _policies,
    _weights,
    _guards,
    _heirs,
    _second_opinions,
    _combined_by,
    _contexts,
    _broker,
    _heartbeats,
)
