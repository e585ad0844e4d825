"""`streamserve topics`: make, plan or check the topics of an app on its Kafka."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from streamserve.addresses import check_addresses
from streamserve.client.targets import own_broker
from streamserve.errors import TopicsDiffer
from streamserve.kafka import admin
from streamserve.kafka.security import connection_options
from streamserve.settings import load_settings
from streamserve.topics.catalogue import Topic
from streamserve.topics.comparison import Difference, Repair

app = typer.Typer(help="The app's topics on its Kafka: make them, or say how they differ.", no_args_is_help=True)

Config = Annotated[Path, typer.Argument(help="The app's config, a TOML file.")]
Servers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="`host:port`, several with commas; left out: the config's, else ours."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on one line, for programs.")]

_Ask = Callable[[str, Sequence[Topic], admin.ClientOptions], Awaitable[tuple[Difference, ...]]]


@app.command()
def create(config: Config, bootstrap_servers: Servers = None, as_json: AsJson = False) -> None:
    """Create missing topics and set settings that differ. Never adds or takes away partitions; run it as often as
    you like. Exit code 5, with nothing changed, where something cannot be mended in place."""
    _, topics, mended = _ask(config, bootstrap_servers, admin.create)
    if as_json:
        _print_json(topics, mended=mended)
        return
    for difference in mended:
        typer.echo(_done(difference))
    typer.echo(f"All {len(topics)} topics are as declared.")


@app.command()
def plan(config: Config, bootstrap_servers: Servers = None, as_json: AsJson = False) -> None:
    """Say what `create` would do; changes nothing. Exit code 0: nothing to do, 5: something."""
    _, topics, found = _ask(config, bootstrap_servers, admin.plan)
    if as_json:
        _print_json(topics, differences=found)
    else:
        for difference in found:
            typer.echo(f"{difference.repair:8} {difference}")
        for advice in dict.fromkeys(difference.advice for difference in found if difference.advice):
            typer.echo(advice)
        if not found:
            typer.echo(f"Nothing to do: all {len(topics)} topics are as declared.")
    if found:
        raise typer.Exit(TopicsDiffer.exit_code)


@app.command()
def check(config: Config, bootstrap_servers: Servers = None, as_json: AsJson = False) -> None:
    """Fail, as every role does at its start, where the topics are not as declared: exit code 5."""
    address, topics, found = _ask(config, bootstrap_servers, admin.plan)
    if as_json:
        _print_json(topics, differences=found)
        if found:
            raise typer.Exit(TopicsDiffer.exit_code)
        return
    if found:
        there = f" --bootstrap-servers {bootstrap_servers}" if bootstrap_servers else ""
        raise TopicsDiffer(admin.explain(found, address, f"{config}{there}"))
    typer.echo(f"All {len(topics)} topics are as declared.")


def _ask(
    config: Path, bootstrap_servers: str | None, ask: _Ask
) -> tuple[str, tuple[Topic, ...], tuple[Difference, ...]]:
    """The broker's address, the declared topics, and what `ask` says of them."""
    settings = load_settings(config)
    named = bootstrap_servers or settings.broker.bootstrap_servers
    address = named or own_broker(settings.app.name, settings.app.state_dir)
    check_addresses(address)
    options = connection_options(settings.broker.client)
    # What goes wrong is said once, in our words.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

    async def both() -> tuple[tuple[Topic, ...], tuple[Difference, ...]]:
        topics = await admin.declared_topics(settings, address, options)
        return topics, await ask(address, topics, options)

    topics, found = asyncio.run(both())
    return address, topics, found


def _done(difference: Difference) -> str:
    if difference.repair is Repair.CREATE:
        return f"created  {difference.topic} ({difference.declared})"
    return f"altered  {difference.topic}: {difference.what} {difference.found} -> {difference.declared}"


def _print_json(topics: Sequence[Topic], **found: Sequence[Difference]) -> None:
    report: dict[str, Any] = {"topics": {topic.spec.kind.value: topic.name for topic in topics}}
    report |= {name: [asdict(difference) for difference in some] for name, some in found.items()}
    typer.echo(json.dumps(report))
