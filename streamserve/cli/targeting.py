"""What commands on an app's topics share: which app on which Kafka, and how their work is run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from streamserve.client import UnusableInput
from streamserve.client.targets import Target, target_of_app, target_of_config
from streamserve.core.routes import AppRules, Route
from streamserve.errors import ConfigError

DEFAULT_CONFIG = "streamserve.toml"
CONFIG_HELP = f"The config may come first; else --app, else {DEFAULT_CONFIG} in this folder."
_CONFIG_SUFFIX = ".toml"

App = Annotated[str | None, typer.Option("--app", help="The app's name, instead of a config.")]
Servers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="`host:port`, several with commas; left out: the config's, else ours."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]

From = Annotated[
    str | None, typer.Option("--from", help="An ISO time, a duration such as 2h (so long ago), or an offset.")
]
To = Annotated[str | None, typer.Option("--to", help="As --from; what is older, or below that offset.")]

_Result = TypeVar("_Result")


def target_and_rest(arguments: list[str], app: str | None, bootstrap_servers: str | None) -> tuple[Target, list[str]]:
    """Which app, and the arguments that are left."""
    if arguments and arguments[0].endswith(_CONFIG_SUFFIX):
        if app is not None:
            raise ConfigError(f"{arguments[0]} and --app {app}: name the app once")
        return target_of_config(arguments[0], bootstrap_servers), arguments[1:]
    if app is not None:
        return target_of_app(app, bootstrap_servers), arguments
    if Path(DEFAULT_CONFIG).exists():
        return target_of_config(DEFAULT_CONFIG, bootstrap_servers), arguments
    raise ConfigError(
        f"no app is named: give its config first (a path ending in {_CONFIG_SUFFIX}), or --app NAME, or run this where "
        f"{DEFAULT_CONFIG} is"
    )


def only_one(arguments: list[str], what: str) -> str:
    """The one argument that is left; raises UnusableInput, with `what` was expected, where there are others."""
    if len(arguments) != 1:
        raise UnusableInput(f"expected {what}; got {' '.join(arguments) or 'nothing'}")
    return arguments[0]


def route_of(rules: AppRules, name: str | None) -> Route:
    """The route that `--route` names; left out: the only one. Raises UnusableInput."""
    routes = {route.name: route for route in rules.routes}
    if name is None and len(routes) == 1:
        return next(iter(routes.values()))
    if name not in routes:
        given = "--route is needed" if name is None else f"--route {name}: there is none of that name"
        raise UnusableInput(f"{given}; the app has {', '.join(routes)}")
    return routes[name]


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run it to its end. What goes wrong is said once, in our words."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(work)
