"""`streamserve worker|aggregate|learn`: one process of one role, as a real deployment starts it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from streamserve.kafka import logs
from streamserve.kafka.roles import Start, run_aggregate, run_learn, run_worker
from streamserve.settings import load_settings
from streamserve.supervisor import parent

Config = Annotated[Path, typer.Argument(help="The app's config, a TOML file.")]
Instance = Annotated[
    str | None,
    typer.Option(help="Name of this process among its like. Restarted under it, it has its partitions back at once."),
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Loopback port of /metrics, /healthz, /readyz and /status; 0: any free one."),
]
StatusFile = Annotated[Path | None, typer.Option(help="Gets one line of JSON with the port once the role serves.")]


def worker(
    config: Config,
    pool: Annotated[str, typer.Option(help="Name of the pool whose models to serve.")],
    instance: Instance = None,
    metrics_port: Port = None,
    status_file: StatusFile = None,
) -> None:
    """Serve the models of a pool; in a fused app also write the predictions."""
    parent.watch_parent()
    settings = load_settings(config)
    _run(f"worker {pool}", run_worker(settings, pool, _start(instance, metrics_port, status_file)))


def aggregate(
    config: Config, instance: Instance = None, metrics_port: Port = None, status_file: StatusFile = None
) -> None:
    """Write the predictions of an app whose models are in several pools."""
    parent.watch_parent()
    settings = load_settings(config)
    _run("aggregate", run_aggregate(settings, _start(instance, metrics_port, status_file)))


def learn(config: Config, instance: Instance = None, metrics_port: Port = None, status_file: StatusFile = None) -> None:
    """Join feedback with predictions and learn from it."""
    parent.watch_parent()
    settings = load_settings(config)
    _run("learn", run_learn(settings, _start(instance, metrics_port, status_file)))


def _start(instance: str | None, metrics_port: int | None, status_file: Path | None) -> Start:
    return Start(instance=instance, metrics_port=metrics_port, status_file=status_file, supervision=parent)


def _run(role: str, work: Coroutine[Any, Any, None]) -> None:
    logs.set_up(role)
    logging.getLogger("streamserve").addHandler(parent.TellsSupervisor())
    asyncio.run(work)
