"""Two configs of one app compared: what changes, and what of it cannot change while the app runs."""

from __future__ import annotations

from collections.abc import Iterator

from streamserve.assembly import app_rules
from streamserve.client.failures import UnusableInput
from streamserve.core.routes import Route
from streamserve.settings import Settings


def words_of_changes(before: Settings, after: Settings) -> list[str]:
    """One line each; empty where models, pools and routes are the same."""
    found: list[str] = []
    was, now = _models(before), _models(after)
    found += [f"model {model} comes, in pool {now[model]}" for model in now if model not in was]
    found += [f"model {model} goes" for model in was if model not in now]
    found += [
        f"model {model} moves from pool {was[model]} to {now[model]}"
        for model in now
        if model in was and was[model] != now[model]
    ]
    old, new = ({route.name: route for route in app_rules(settings).routes} for settings in (before, after))
    found += [f"route {name} comes: {', '.join(new[name].models)}" for name in new if name not in old]
    found += [f"route {name} goes" for name in old if name not in new]
    found += [
        f"route {name} changes: {_of_route(old[name], new[name])}"
        for name in new
        if name in old and new[name].fingerprint != old[name].fingerprint
    ]
    if any(route.learns for route in new.values()) and not any(route.learns for route in old.values()):
        found.append(
            f"routes learn, and none did: start a learner where none runs (`streamserve learn {after.path}`); "
            "feedback waits for it in the log"
        )
    return found


def _models(settings: Settings) -> dict[str, str]:
    """Model id -> its pool."""
    return {settings.model_id(name): pool for pool, hosted in settings.pools.items() for name in hosted.models}


def _of_route(before: Route, after: Route) -> str:
    if before.models != after.models:
        return f"{', '.join(before.models)} -> {', '.join(after.models)}"
    return "its settings"


def check_change(before: Settings, after: Settings) -> None:
    """Raises UnusableInput with all that cannot change while the app runs."""
    reasons = list(_refused(before, after))
    if reasons:
        raise UnusableInput(
            "not while the app runs (restart its processes with the config instead):\n" + "\n".join(reasons)
        )


def _refused(before: Settings, after: Settings) -> Iterator[str]:
    for pool in {**before.pools, **after.pools}:
        old, new = before.pools.get(pool), after.pools.get(pool)
        if old is None or new is None:
            yield f"pools.{pool} {'comes' if old is None else 'goes'}: processes of it are to be started or stopped"
        elif old.model_dump(exclude={"models"}) != new.model_dump(exclude={"models"}):
            yield f"pools.{pool}: only its `models` can change"
    if before.fused != after.fused:
        yield "the app would no longer be fused, or would become so: that form is fixed when its processes start"
    yield from _of_models(before, after)
    yield from _of_routes(before, after)


def _of_models(before: Settings, after: Settings) -> Iterator[str]:
    old = {before.model_id(name): model for name, model in before.models.items()}
    for name, model in after.models.items():
        same = old.get(after.model_id(name))
        changed = {"inherits", "inherits_share"}
        if same is not None and same.model_dump(exclude=changed) != model.model_dump(exclude=changed):
            yield f"models.{name} is another one but its version is still {model.version}: give it a new version"


def _of_routes(before: Settings, after: Settings) -> Iterator[str]:
    old, new = ({route.name: route for route in app_rules(settings).routes} for settings in (before, after))
    for name, route in new.items():
        was = old.get(name)
        if was is not None and was.fingerprint == route.fingerprint:
            continue
        yield from _of_keyed(name, was, route)


def _of_keyed(name: str, was: Route | None, route: Route) -> Iterator[str]:
    """A state of a key stands in the log until its owner forgets it: all versions have to agree on which it is, and how
    long it counts."""
    if was is None or was.contexts is None or not was.keyed:
        if route.keyed:
            yield f"routes.{name}: its contexts become keyed: their states are looked for when processes start"
        return
    if route.contexts is None or not route.keyed:
        yield f"routes.{name}: its contexts are keyed: give a route without keys another name"
        return
    if route.policy.name != was.policy.name:
        yield f"routes.{name}: its keyed states are those of {was.policy.name}: give another policy another route"
    if route.contexts.forget_after_ms != was.contexts.forget_after_ms:
        yield f"routes.{name}: its `forget_after_ms`: what has been forgotten by then is in the log no more"
