"""Which app, on which broker: from a config, or from a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamserve.client.arguments import check_budget, check_mapping, check_text, shown
from streamserve.client.failures import UnusableInput
from streamserve.client.inputs import Codec, check_codec
from streamserve.errors import BrokerError, ConfigError
from streamserve.places import state_folder
from streamserve.topics.names import IllegalName, check_app


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteHint:
    """What a client needs to know of a route."""

    deadline_ms: int
    """The route's own budget."""
    input: Codec
    """Its codec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An app on a broker."""

    app: str
    bootstrap_servers: str
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More keyword arguments of aiokafka's clients. Holds secrets."""
    routes: Mapping[str, RouteHint] = field(default_factory=dict)
    """Every route of the config; empty: not known."""
    join_window_ms: int = 600_000
    """How long after its prediction feedback may come."""
    has_outcomes: bool = True
    """Whether the config asks for a learner, without which feedback is joined with nothing."""


def target_of_config(config: Path | str, bootstrap_servers: str | None = None) -> Target:
    """The config's app. Raises ConfigError, and BrokerError where no broker is named and none of ours runs."""
    # The settings' library takes half a second of every program that needs no config.
    from streamserve.assembly import has_outcomes  # noqa: PLC0415  (it imports the settings)
    from streamserve.kafka.security import connection_options  # noqa: PLC0415  (it imports the settings)
    from streamserve.settings import load_settings  # noqa: PLC0415  (slow: see above)

    settings = load_settings(config)
    named = bootstrap_servers or settings.broker.bootstrap_servers
    return Target(
        app=settings.app.name,
        bootstrap_servers=named or own_broker(settings.app.name, settings.app.state_dir),
        security=connection_options(settings.broker.client),
        routes={
            name: RouteHint(deadline_ms=route.deadline_ms, input=route.input) for name, route in settings.routes.items()
        },
        join_window_ms=settings.learn.join_window_ms,
        has_outcomes=has_outcomes(settings),
    )


def target_of_app(app: str, bootstrap_servers: str | None = None) -> Target:
    """An app by its name. Raises ConfigError for a name that cannot be an app's, BrokerError as `own_broker`."""
    try:
        if not isinstance(app, str):
            raise ConfigError(f"app = {app!r}: expected the app's name, a str")
        check_app(app)
    except IllegalName as error:
        raise ConfigError(str(error)) from None
    return Target(app=app, bootstrap_servers=bootstrap_servers or own_broker(app))


def own_broker(app: str, state_dir: Path | None = None) -> str:
    """Address of the running Kafka of ours that serves this app, as `running_broker`. Raises BrokerError where none."""
    address = running_broker(app, state_dir)
    if address is None:
        folders = ", ".join(map(str, _folders(app, state_dir)))
        raise BrokerError(
            f"no Kafka is named and none of ours runs for app {app} (looked in {folders}). "
            "Start the app with `streamserve up CONFIG`, or name its Kafka: --bootstrap-servers HOST:PORT"
        )
    return address


def running_broker(app: str, state_dir: Path | None = None) -> str | None:
    """Address of the running Kafka of ours that serves this app: the one of `streamserve up`, else of `broker start`.

    `state_dir`: the config's `[app] state_dir`; None: the user's state folder. None where neither runs.
    """
    from streamserve.kafka.brokers import read_status  # noqa: PLC0415  (only where none is named)

    for folder in _folders(app, state_dir):
        status = read_status(folder)
        if status.running:
            return status.bootstrap_servers
    return None


def _folders(app: str, state_dir: Path | None) -> tuple[Path, Path]:
    return state_dir / "broker" if state_dir else state_folder(app), state_folder("default")


def check_set_up(bootstrap_servers: object, deadline_ms: object, grace_ms: object) -> None:
    """What every client is made with. Raises UnusableInput."""
    check_text(bootstrap_servers, "bootstrap_servers")
    check_budget(deadline_ms, "deadline_ms")
    if grace_ms is None:
        raise UnusableInput("grace_ms = None: give whole milliseconds; 0 waits for the deadline only")
    check_budget(grace_ms, "grace_ms", least=0)


def check_routes(routes: object) -> None:
    """Names of routes, each with its hint, or None. Raises UnusableInput."""
    expected = "names of routes, each with its RouteHint"
    check_mapping(routes, "routes", expected)
    for name, hint in routes.items() if isinstance(routes, Mapping) else ():
        if not isinstance(hint, RouteHint):
            raise UnusableInput(f"routes[{name!r}] = {shown(hint)}: expected {expected}")
        check_budget(hint.deadline_ms, f"routes[{name!r}].deadline_ms")
        check_codec(hint.input, f"routes[{name!r}].input")
