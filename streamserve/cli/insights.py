"""`streamserve insights`: the process that makes windowed figures of an app, and shows them on a page."""

from __future__ import annotations

import asyncio
import logging

from streamserve.cli.roles import Config, Instance, Port, StatusFile
from streamserve.errors import ConfigError
from streamserve.kafka import logs
from streamserve.settings import load_settings
from streamserve.supervisor import parent


def insights(
    config: Config, instance: Instance = None, metrics_port: Port = None, status_file: StatusFile = None
) -> None:
    """Count how each route, model and context does, window by window: shares, accuracy, feedback and its delay,
    agreement, drift. Published to the insights topic and shown at a loopback port, /insights/, which the log names."""
    parent.watch_parent()
    settings = load_settings(config)
    try:
        from streamserve.insights.run import run_insights  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"insights need the package {missing.name}, which is not installed: pip install 'streamserve[insights]'"
        ) from missing
    from streamserve.kafka.roles import Start  # noqa: PLC0415  (mistakes in the config are told first)

    start = Start(instance=instance, metrics_port=metrics_port, status_file=status_file, supervision=parent)
    logs.set_up("insights")
    logging.getLogger("streamserve").addHandler(parent.TellsSupervisor())
    asyncio.run(run_insights(settings, start))
