"""`streamserve policies`: which policies a route may have, and when each is the right one."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer

from streamserve.core.selection.registry import POLICIES
from streamserve.errors import ConfigError
from streamserve.settings.plugins import added_policy, policy_names


def policies(
    as_data: Annotated[bool, typer.Option("--json", help="Say it in JSON.")] = False,
) -> None:
    """List the policies that `routes.NAME.policy` may name, those of other packages too, each with when to use it."""
    found = {name: when_to_use(name) for name in policy_names()}
    if as_data:
        typer.echo(json.dumps(found))
        return
    width = max(map(len, found))
    for name, words in found.items():
        typer.echo(f"{name:{width}}  {words}")


def when_to_use(name: str) -> str:
    """A policy's own line, or the first sentence about its class; why not, where it cannot be imported."""
    try:
        policy = POLICIES.get(name) or added_policy(name)
    except ConfigError as error:
        return str(error)
    said = getattr(policy, "when_to_use", None) or inspect.getdoc(policy) or "(says nothing about itself)"
    return str(said).partition("\n")[0]
