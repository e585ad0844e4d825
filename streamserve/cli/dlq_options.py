"""Options that the commands of `streamserve dlq` share, and what they mean."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from streamserve.cli.targeting import CONFIG_HELP
from streamserve.client import UnusableInput
from streamserve.client.dead_letters import Filter, parse_place
from streamserve.client.times import parse_time_ms
from streamserve.topics import Kind

_SOURCES = (Kind.REQUESTS, Kind.FEEDBACK, Kind.EPOCHS, Kind.POLICY, Kind.CONTEXTS)

Places = Annotated[
    list[str] | None,
    typer.Argument(help=f"{CONFIG_HELP} Then dead letters by their place, `<partition>-<offset>`.", metavar="P-O"),
]
OnlyConfig = Annotated[list[str] | None, typer.Argument(help=CONFIG_HELP, metavar="CONFIG")]
Reason = Annotated[list[str] | None, typer.Option("--reason", help="Such as refused; may be given more than once.")]
Source = Annotated[
    list[str] | None, typer.Option("--source", help=f"Where they came from: {', '.join(_SOURCES)}; also several.")
]
Model = Annotated[
    list[str] | None, typer.Option("--model", help="The model that failed: `name@version` or its name; also several.")
]
Partition = Annotated[list[int] | None, typer.Option("--partition", min=0, help="Of the dead letters; also several.")]
Since = Annotated[str | None, typer.Option("--since", help="An ISO time, or a duration such as 10m: so long ago.")]
Until = Annotated[str | None, typer.Option("--until", help="As --since; what is older than that.")]
Ref = Annotated[str | None, typer.Option("--ref", help="Of a request: its dead letters and those of its feedback.")]
Id = Annotated[str | None, typer.Option("--id", help="The caller's id, in the value or in `ce_id`.")]
Contains = Annotated[
    str | None, typer.Option("--contains", help="Text in value, key, headers, message or stack; case counts.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def filter_of(
    *,
    places: list[str] | None = None,
    reason: list[str] | None = None,
    source: list[str] | None = None,
    model: list[str] | None = None,
    partition: list[int] | None = None,
    since: str | None = None,
    until: str | None = None,
    ref: str | None = None,
    id: str | None = None,
    contains: str | None = None,
    up_to: list[str] | None = None,
) -> Filter:
    """What the options mean; raises UnusableInput for those that mean nothing."""
    for name in source or ():
        if name not in _SOURCES:
            raise UnusableInput(f"--source {name}: dead letters come from {', '.join(_SOURCES)}")
    if ref is not None:
        parse_place(ref)
    asked_ms = now_ms()
    last: dict[int, int] = {}
    for text in up_to or ():
        number, offset = parse_place(text)
        last[number] = max(offset, last.get(number, 0))
    return Filter(
        places=frozenset(map(parse_place, places or ())),
        reasons=frozenset(reason or ()),
        sources=frozenset(source or ()),
        models=frozenset(model or ()),
        partitions=frozenset(partition or ()),
        since_ms=None if since is None else parse_time_ms(since, asked_ms),
        until_ms=None if until is None else parse_time_ms(until, asked_ms),
        up_to=last or None,
        ref=ref,
        id=id,
        contains=contains,
    )


def now_ms() -> int:
    """This machine's time."""
    return time.time_ns() // 1_000_000
