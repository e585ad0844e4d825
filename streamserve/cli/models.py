"""`streamserve models`: the kill switch. One record switches a model off in every role; another switches it on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from streamserve.assembly import app_rules
from streamserve.cli.targeting import AsJson, Servers, run
from streamserve.client.connection import KafkaLog
from streamserve.client.switching import check_model, switch
from streamserve.client.targets import target_of_config
from streamserve.settings import load_settings

app = typer.Typer(help="Switch a model off at once, without a restart, and on again.", no_args_is_help=True)

Config = Annotated[Path, typer.Argument(help="The app's config, a TOML file.")]
Model = Annotated[str, typer.Argument(help="`name@version`, or a name: every version of it.")]
Why = Annotated[str, typer.Option("--why", help="Words for whoever reads the record.")]


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
    """The model is asked again, as its routes' policies say."""
    _switch(config, model, bootstrap_servers, disabled=False, why=why, as_json=as_json)


def _switch(config: Path, model: str, servers: str | None, *, disabled: bool, why: str, as_json: bool) -> None:
    rules = app_rules(load_settings(config))
    routes = check_model(model, rules.routes, disabled=disabled)
    target = target_of_config(config, servers)
    log = KafkaLog(target.bootstrap_servers, target.security)
    append_ms = run(switch(log, target.app, model, disabled=disabled, why=why))
    in_force_ms = append_ms + rules.epoch_delay_ms
    if as_json:
        typer.echo(json.dumps({"model": model, "disabled": disabled, "routes": routes, "in_force_ms": in_force_ms}))
        return
    verb = "off" if disabled else "on"
    typer.echo(f"{model} is {verb} in {', '.join(routes)} for requests from {rules.epoch_delay_ms} ms after now on.")
