"""`streamserve models`: models of a running app switched off and on, and a config put in force without a restart."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from streamserve.assembly import app_rules
from streamserve.cli.targeting import AsJson, Servers, run
from streamserve.client.arguments import MOST_MS
from streamserve.client.connection import KafkaLog
from streamserve.client.deploying import deploy as deploy_config
from streamserve.client.in_force import settings_in_force
from streamserve.client.scanning import scanning
from streamserve.client.standing import Standing, standings
from streamserve.client.switching import check_model, switch
from streamserve.client.targets import target_of_config
from streamserve.settings import load_settings

app = typer.Typer(
    help="How models stand; switch one off at once, deploy others: without a restart.", no_args_is_help=True
)

Config = Annotated[Path, typer.Argument(help="The app's config, a TOML file.")]
Model = Annotated[str, typer.Argument(help="`name@version`, or a name: every version of it.")]
Why = Annotated[str, typer.Option("--why", help="Words for whoever reads the record.")]


@app.command("list")
def list_models(config: Config, bootstrap_servers: Servers = None, as_json: AsJson = False) -> None:
    """Each model of each route: asked, switched off, or frozen because its answers were worse than the baseline's."""
    settings = load_settings(config)
    target = target_of_config(config, bootstrap_servers)
    log = KafkaLog(target.bootstrap_servers, target.security)

    async def read() -> list[Standing]:
        async with scanning(log) as scanner:
            rules = app_rules(await settings_in_force(scanner, settings))
            return await standings(target.app, scanner, rules.routes)

    for one in run(read()):
        typer.echo(json.dumps(asdict(one)) if as_json else standing_words(one))


def standing_words(one: Standing) -> str:
    """A line for a person."""
    if one.switched_off is not None:
        why = f": {one.switched_off.why}" if one.switched_off.why else ""
        state = f"off since {_time(one.switched_off.append_ms)}{why}"
    elif one.frozen is not None:
        state = (
            f"frozen since {_time(one.frozen.since_ms)}: mean loss above {one.frozen.loss_above:.3f}, the baseline's "
            f"below {one.frozen.baseline_below:.3f}"
        )
    else:
        state = "on"
    return f"{one.route}  {one.model}  {state}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


@app.command()
def deploy(
    config: Config,
    wait_ms: Annotated[
        int, typer.Option("--wait-ms", min=1, max=MOST_MS, help="For the pools to load what is new.")
    ] = 120_000,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            help="`POOL/INSTANCE` that is gone for good, not to be waited for; may be repeated. One that nothing was "
            "heard of for a minute is gone anyway.",
        ),
    ] = None,
    bootstrap_servers: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Put the config's models, pools' models and routes in force in the running app: no restart, no failed request.

    Pools load what is new while they serve; when each of their processes has it, one record puts the routes in force,
    for requests from four times `epoch_delay_ms` (1 s) after it, in every role. What cannot change while the app runs
    is refused, as is a model that cannot be loaded; nothing has changed then. To go back, deploy the old config.
    """
    settings = load_settings(config)
    target = target_of_config(config, bootstrap_servers)
    log = KafkaLog(target.bootstrap_servers, target.security)
    done = run(deploy_config(log, settings, wait_ms=wait_ms, without=without or ()))
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    if not done.changes:
        typer.echo("Nothing changes: the app runs with these models and routes.")
        return
    for words in done.changes:
        typer.echo(words)
    for member in done.gone:
        typer.echo(f"{member} was not waited for: nothing was heard of it for too long.")
    typer.echo(f"Config {done.number} is in force for requests since {_time(done.in_force_ms)}.")


@app.command()
def disable(
    config: Config, model: Model, why: Why = "", bootstrap_servers: Servers = None, as_json: AsJson = False
) -> None:
    """No request is given to this model any more: in force `epoch_delay_ms` (250 ms) after the record, in every role.

    What its routes would have asked it goes to their other models, in proportion. It stays loaded and is learnt about
    from late answers; a route's only model is refused.
    """
    _switch(config, model, bootstrap_servers, disabled=True, why=why, as_json=as_json)


@app.command()
def enable(
    config: Config, model: Model, why: Why = "", bootstrap_servers: Servers = None, as_json: AsJson = False
) -> None:
    """The model is asked again, as its routes' policies say; what has frozen it before now counts no more."""
    _switch(config, model, bootstrap_servers, disabled=False, why=why, as_json=as_json)


def _switch(config: Path, model: str, servers: str | None, *, disabled: bool, why: str, as_json: bool) -> None:
    settings = load_settings(config)
    target = target_of_config(config, servers)
    log = KafkaLog(target.bootstrap_servers, target.security)

    async def write() -> tuple[tuple[str, ...], int]:
        async with scanning(log) as scanner:
            rules = app_rules(await settings_in_force(scanner, settings))
        routes = check_model(model, rules.routes, disabled=disabled)
        return routes, await switch(log, target.app, model, disabled=disabled, why=why)

    routes, append_ms = run(write())
    delay_ms = settings.app.epoch_delay_ms
    in_force_ms = append_ms + delay_ms
    if as_json:
        typer.echo(json.dumps({"model": model, "disabled": disabled, "routes": routes, "in_force_ms": in_force_ms}))
        return
    verb = "off" if disabled else "on"
    typer.echo(f"{model} is {verb} in {', '.join(routes)} for requests from {delay_ms} ms after now on.")
