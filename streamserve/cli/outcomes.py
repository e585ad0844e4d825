"""`streamserve outcomes`: what was decided and what was really so, as a data set."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from streamserve.cli.targeting import App, From, Servers, To, run, target_and_rest
from streamserve.client import UnusableInput
from streamserve.client.connection import KafkaLog
from streamserve.client.outcomes import as_row, outcomes, write_csv, write_parquet
from streamserve.client.scanning import scanning
from streamserve.client.spans import Span, span_of
from streamserve.client.targets import Target
from streamserve.core.records import OutcomeRecord

app = typer.Typer(help="Decisions joined with their feedback: export them to retrain with.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """One command so far; without this typer would take its name away."""


@app.command()
def export(
    config: Annotated[list[str] | None, typer.Argument(help="The app's config; else --app.", metavar="CONFIG")] = None,
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    route: Annotated[str | None, typer.Option("--route", help="Only outcomes of this route.")] = None,
    begin: From = None,
    end: To = None,
    form: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="parquet needs the extra.")] = "csv",
    out: Annotated[Path | None, typer.Option("--out", help="The file; left out: standard output (csv only).")] = None,
) -> None:
    """Write the app's outcomes as a table: one row for each feedback, with decision, answers, label and losses.

    Of several outcomes of one feedback the primary one. `chosen`, `served`, `members`, `label` and `losses` hold JSON.
    Exit code 1: there is none.
    """
    target, rest = target_and_rest(config or [], app, bootstrap_servers)
    if rest:
        raise UnusableInput(f"expected a config only; got {' '.join(rest)}")
    if form == "parquet" and out is None:
        raise UnusableInput("--format parquet needs a file: --out FILE")
    found = run(read_outcomes(target, span_of(begin, end, int(time.time() * 1000))))
    rows = (as_row(one) for one in found if one.primary and route in (None, one.route))
    if out is None:
        count = write_csv(sys.stdout, rows)
    elif form == "csv":
        with out.open("w", encoding="utf-8", newline="") as file:
            count = write_csv(file, rows)
    else:
        count = write_parquet(out, rows)
    typer.echo(f"{count} outcomes", err=True)
    if not count:
        raise typer.Exit(1)


async def read_outcomes(target: Target, span: Span) -> list[OutcomeRecord]:
    """All of them; what cannot be read is told on standard error."""
    unreadable: list[str] = []
    async with scanning(KafkaLog(target.bootstrap_servers, target.security)) as scanner:
        found = [one async for one in outcomes(target.app, scanner, span, unreadable.append)]
    for words in unreadable:
        typer.echo(words, err=True)
    return found
