"""`streamserve up`: everything a config needs, on this machine, in one command."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamserve.cli.numbers import finite
from streamserve.cli.stops import early_stop
from streamserve.settings import load_settings

if TYPE_CHECKING:
    from streamserve.supervisor.news import Outlet

Config = Annotated[Path, typer.Argument(help="The app's config, a TOML file.")]


def up(
    config: Config,
    *,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object per line on standard output: `waiting` while a start takes long, `ready`, and more.",
        ),
    ] = False,
    duration_s: Annotated[
        float | None,
        typer.Option("--duration", min=0.0, callback=finite, help="Seconds after which it stops by itself."),
    ] = None,
    spares: Annotated[
        bool,
        typer.Option(help="Keep a loaded process of each role waiting: one that dies is replaced in a second."),
    ] = True,
) -> None:
    """Run an app: a Kafka of its own if the config names none, the topics, and every role as a process that is kept
    alive. Ctrl-C or SIGTERM stops all in order, with exit code 0; again, at once. Shows a live view in a terminal,
    else plain lines."""
    settings = load_settings(config)
    from streamserve.supervisor.plan import processes, program  # noqa: PLC0415  (else mistakes in the config are told late)
    from streamserve.supervisor.supervise import Supervisor  # noqa: PLC0415  (as above)

    plans = processes(settings)
    early_stop.hold()
    outlet = _outlet(as_json=as_json)

    async def run() -> None:
        supervisor = Supervisor(settings, plans, outlet, program=program(), duration_s=duration_s, spares=spares)
        early_stop.hand_over(supervisor.ask_to_stop)
        await supervisor.run()

    try:
        asyncio.run(run())
    finally:
        outlet.close()


def _outlet(*, as_json: bool) -> Outlet:
    if as_json:
        from streamserve.supervisor.lines import JsonLines  # noqa: PLC0415  (one of the three is used)

        return JsonLines()
    if os.isatty(sys.stdout.fileno()):
        from streamserve.supervisor.view import LiveView  # noqa: PLC0415  (as above)

        return LiveView()
    from streamserve.supervisor.lines import PlainLines  # noqa: PLC0415  (as above)

    return PlainLines()
