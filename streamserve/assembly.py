"""From settings to what the core works with: routes, policies, models as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from hashlib import blake2b
from typing import Any

from pydantic import ValidationError

from streamserve.bodyfield import BodyField
from streamserve.core.bounds import Bounds
from streamserve.core.contexts import ContextRule
from streamserve.core.desk import ModelRules
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection import Policy
from streamserve.core.selection.base import reads_probabilities
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.freezing import FreezeRules, Freezing
from streamserve.core.selection.guarded import Guarded, ShareLimits
from streamserve.core.selection.inheriting import Heir, Inheriting
from streamserve.core.selection.pooling import features_read
from streamserve.core.selection.registry import POLICIES
from streamserve.core.selection.second import WithSecond
from streamserve.core.selection.watched import Watched
from streamserve.errors import ConfigError
from streamserve.runtimes import ModelSpec
from streamserve.runtimes.isolation import Limits
from streamserve.settings import ModelSettings, PoolSettings, RouteSettings, Settings
from streamserve.settings.models import ContextSettings
from streamserve.settings.plugins import added_policy
from streamserve.settings.policies import PolicySettings


def app_rules(settings: Settings) -> AppRules:
    """What holds for all routes of the app, and the routes. Raises `ConfigError` on a policy that cannot be made."""
    return AppRules(
        routes=routes(settings),
        max_deadline_ms=settings.app.max_deadline_ms,
        max_request_bytes=settings.app.max_request_bytes,
        guard_ms=settings.app.guard_ms,
        epoch_delay_ms=settings.app.epoch_delay_ms,
        bounds=Bounds(**settings.bounds.model_dump()),
    )


def routes(settings: Settings) -> tuple[Route, ...]:
    """The app's routes, in the order of the config; a learnt state of a route is looked up by its name."""
    return tuple(_route(settings, name, route) for name, route in settings.routes.items())


def has_outcomes(settings: Settings) -> bool:
    """Whether somebody reads what feedback says, so that `up` starts a learner: a policy, a person, or insights."""
    wanted = settings.learn.outcomes == "always" or settings.insights is not None
    return wanted or any(_is_judged(route) for route in routes(settings))


def _is_judged(route: Route) -> bool:
    """Whether feedback has something to say: to a policy that learns, or to whoever compares shares."""
    return route.learns or route.policy.name == "ab"


def model_specs(settings: Settings, pool: str) -> tuple[ModelSpec, ...]:
    """The models of a pool, as a runtime takes them; load their files with `base_dir=settings.base_dir`.

    Raises `ConfigError` where the config has no such pool.
    """
    return tuple(model_spec(name, settings.models[name]) for name in _hosted(settings, pool))


def model_rules(settings: Settings, pool: str) -> dict[str, ModelRules]:
    """How each model of a pool is run, by model id. The pool's cache budget is shared out evenly.

    Raises `ConfigError` where the config has no such pool.
    """
    names = _hosted(settings, pool)
    share = settings.pools[pool].cache_bytes // len(names)
    return {settings.model_id(name): model_rules_of(settings, name, share) for name in names}


def make_policy(chosen: PolicySettings) -> Policy:
    """The policy that a route's settings describe: one of ours, or one that another package adds.

    Raises `ConfigError` where its class does not take the options.
    """
    policy_class = POLICIES.get(chosen.name) or added_policy(chosen.name)
    try:
        policy: Policy = policy_class(**chosen.options())
    except (TypeError, ValueError) as refused:
        raise ConfigError(f"policy {chosen.name} does not take these options: {refused}") from refused
    return policy


def _route(settings: Settings, name: str, route: RouteSettings) -> Route:
    models = tuple(settings.model_id(model) for model in route.models)
    second = None if route.second_opinion is None else settings.model_id(route.second_opinion)
    try:
        policy = make_policy(route.policy)
        heirs = _heirs(settings, route)
        if heirs:
            policy = Inheriting(policy=policy, heirs=heirs)
        if route.guard is not None:
            policy = Guarded(policy=policy, limits=ShareLimits(**route.guard.model_dump()))
        # A policy without a state has nothing to learn; what is put around it may have.
        learns = policy.initial(models) is not None or route.freeze is not None or route.confidence is not None
        if learns:
            policy = Watched(policy=policy, combine=route.combine)
        if route.freeze is not None:
            policy = Freezing(policy=policy, rules=FreezeRules(**route.freeze.model_dump()))
        if second is not None:
            models = (*models, second)
            policy = WithSecond(policy=policy, second=second)
        if route.confidence is not None:
            rules = ConfidenceRules(**route.confidence.model_dump())
            policy = Confident(policy=policy, rules=rules, combine=route.combine)
        policy.initial(models)  # what cannot hold for these models is refused here
    except ConfigError as error:
        raise ConfigError(f"{settings.path}: routes.{name}: {error}") from error
    return Route(
        name=name,
        models=models,
        pools=tuple(_pool_of(settings, model) for model in models),
        fingerprint=_fingerprint(settings, name, models),
        policy=policy,
        combine=route.combine,
        deadline_ms=route.deadline_ms,
        input=route.input,
        default=route.default,
        has_default=route.has_default,
        confidence_threshold=route.confidence_threshold,
        max_state_age_ms=route.max_state_age_ms,
        abstains=route.below_threshold == "abstain",
        decide_early=route.decide_early,
        learns=learns,
        probabilities=route.probabilities,
        tells_probabilities=reads_probabilities(policy),
        second=second,
        contexts=None if route.contexts is None else _context_rule(route.contexts, policy),
    )


def _pool_of(settings: Settings, model: str) -> str:
    """The pool that hosts this model id."""
    return next(
        pool for pool, hosted in settings.pools.items() for name in hosted.models if settings.model_id(name) == model
    )


def _fingerprint(settings: Settings, name: str, models: tuple[str, ...]) -> str:
    """Equal where two configs say the same of a route."""
    heirs = {model: [heir.of, heir.share] for model, heir in _heirs(settings, settings.routes[name]).items()}
    said = settings.routes[name].model_dump(mode="json", exclude_unset=True)
    whole = [said, models, [_pool_of(settings, model) for model in models], heirs]
    return blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=16).hexdigest()


def sections_of(settings: Settings) -> dict[str, dict[str, Any]]:
    """What can change in a running app: `models`, `pools` and `routes`, as plain JSON values."""
    return settings.model_dump(mode="json", include={"models", "pools", "routes"}, exclude_unset=True)


def with_sections(settings: Settings, sections: Mapping[str, Mapping[str, Any]]) -> Settings:
    """The same app with other models, pools and routes. Raises ConfigError where this code cannot read them."""
    try:
        return settings.model_copy(
            update={
                "models": {name: ModelSettings.model_validate(one) for name, one in sections["models"].items()},
                "pools": {name: PoolSettings.model_validate(one) for name, one in sections["pools"].items()},
                "routes": {name: RouteSettings.model_validate(one) for name, one in sections["routes"].items()},
            }
        )
    except ValidationError as error:
        raise ConfigError(f"a config in the log cannot be read by this release: {error}") from error


def _heirs(settings: Settings, route: RouteSettings) -> dict[str, Heir]:
    """By model id, of the route's models that inherit."""
    found = {}
    for name in route.models:
        model = settings.models[name]
        if model.inherits is not None:
            found[settings.model_id(name)] = Heir(of=model.inherits, share=model.inherits_share)
    return found


def _context_rule(contexts: ContextSettings, policy: Policy) -> ContextRule:
    return ContextRule(
        source=contexts.source,
        until=contexts.until,
        read_body=None if contexts.field is None else BodyField(contexts.field),
        most=contexts.most,
        pooling=contexts.pooling,
        features=features_read(policy),
        keyed=contexts.keyed,
        most_keyed=contexts.most_keyed,
        forget_after_ms=contexts.forget_after_ms,
    )


def model_spec(name: str, model: ModelSettings) -> ModelSpec:
    """One model, as a runtime takes it; in a pool or not."""
    return ModelSpec(
        name=name,
        version=model.version,
        source=model.source,
        runtime=model.runtime,
        trust_pickle=model.trust_pickle,
        trusted_types=model.trusted_types,
        options=model.options,
        precision=model.precision,
        head_rate=model.head_rate,
        head_store=_head_store(model),
        isolation=_limits(model) if model.isolation == "process" else None,
    )


def _head_store(model: ModelSettings) -> str | None:
    """The store that the plan's own arrays are in."""
    folder = model.options.get("store")
    return folder if model.head_rate is not None and isinstance(folder, str) else None


def most_rows(model: ModelSettings) -> int:
    """Of one call, as `batching` cuts them."""
    return {"none": 1, "fixed": model.batch_size or model.max_batch}.get(model.batching, model.max_batch)


def _limits(model: ModelSettings) -> Limits:
    return Limits(**{field.name: getattr(model, field.name) for field in fields(Limits)})


def model_rules_of(settings: Settings, name: str, cache_bytes: int) -> ModelRules:
    """How one model is run, with so much memory for what it has answered."""
    model = settings.models[name]
    return ModelRules(
        model=settings.model_id(name),
        batching=model.batching,
        max_batch=model.max_batch,
        batch_size=model.batch_size or model.max_batch,
        max_wait_ms=model.max_wait_ms,
        cache_bytes=0 if model.head_rate is not None else cache_bytes,  # it will not say the same again
    )


def _hosted(settings: Settings, pool: str) -> tuple[str, ...]:
    if pool not in settings.pools:
        raise ConfigError(f'{settings.path}: there is no pool "{pool}"; allowed: {", ".join(settings.pools)}')
    return settings.pools[pool].models
