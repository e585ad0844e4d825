"""`streamserve learn-head`: the head of one model learnt while it serves."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamserve.assembly import model_spec
from streamserve.cli.numbers import MOST
from streamserve.cli.targeting import AsJson, Servers, run
from streamserve.client.arguments import MOST_MS
from streamserve.client.connection import KafkaLog
from streamserve.client.failures import UnusableInput
from streamserve.client.targets import target_of_config
from streamserve.kafka import logs
from streamserve.kafka.codecs import input_codec
from streamserve.kafka.signals import stopping_by_signal
from streamserve.runtimes.frameworks import require
from streamserve.runtimes.sources import resolve
from streamserve.settings import Settings, load_settings

if TYPE_CHECKING:
    from streamserve.client.head_learning import Learning, Published


def learn_head(  # noqa: PLR0917  (typer: options)
    config: Annotated[Path, typer.Argument(help="The app's config, a TOML file.")],
    model: Annotated[str, typer.Argument(help="Name of a model with `head_rate`.")],
    every_rows: Annotated[int, typer.Option(min=1, max=MOST, help="A head is published after so many rows,")] = 100,
    every_ms: Annotated[int, typer.Option(min=1, max=MOST_MS, help="or so long after the first of them.")] = 500,
    bootstrap_servers: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Learn the head of a white-box plan from labels while it serves; workers answer with each head once it is out.

    Reads outcomes (so `streamserve learn` runs too) and the texts of their requests, until it is stopped. It may be
    killed at any time, and be started again: the head is that of one that was not. What a worker reads its arrays from
    must be the store that this writes (the model's `options.store`).
    """
    settings = load_settings(config)
    target = target_of_config(config, bootstrap_servers)
    log = KafkaLog(target.bootstrap_servers, target.security)
    logs.set_up(f"learn-head {model}")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    learning = _learning(settings, model, every_rows, every_ms)

    def told(published: Published) -> None:
        said = asdict(published)
        if as_json:
            typer.echo(json.dumps(said))
        else:
            typer.echo(
                f"head of {said['rows']} rows: {said['right']} of {said['new_rows']} new ones right before they were "
                f"learnt from, {said['passed_over']} outcomes passed over"
            )

    async def work() -> None:
        stop = asyncio.Event()
        with stopping_by_signal(stop.set):
            await follow(log, learning, told, stop)

    from streamserve.client.head_learning import learn_head as follow  # noqa: PLC0415  (numba takes a second)

    run(work())


def _learning(settings: Settings, name: str, every_rows: int, every_ms: int) -> Learning:
    model = settings.models.get(name)
    learning = [other for other, one in settings.models.items() if one.head_rate is not None]
    if model is None or model.head_rate is None:
        raise UnusableInput(
            f"{settings.path}: model {name} has no head_rate; those that have: {', '.join(learning) or 'none'}"
        )
    spec = model_spec(name, model)
    require("numba", spec)
    from streamserve.client.head_learning import Learning  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.store import Store  # noqa: PLC0415  (as above)

    asking = {route: one for route, one in settings.routes.items() if name in one.models}
    return Learning(
        app=settings.app.name,
        model=spec.model_id,
        plan=resolve(spec, settings.base_dir).obj,
        rate=model.head_rate,
        store=Store(spec.head_store),
        codecs={route: input_codec(one.input, settings.app.max_request_bytes) for route, one in asking.items()},
        every_rows=every_rows,
        every_ms=every_ms,
    )
