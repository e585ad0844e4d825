"""`streamserve dlq`: look at an app's dead letters, put them back, remove them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from streamserve.cli.dlq_options import (
    Contains,
    DryRun,
    Id,
    Model,
    OnlyConfig,
    Partition,
    Places,
    Reason,
    Ref,
    Since,
    Source,
    Until,
    Yes,
    filter_of,
    now_ms,
)
from streamserve.cli.numbers import MOST
from streamserve.cli.targeting import App, AsJson, Servers, run, target_and_rest
from streamserve.client import UnusableInput
from streamserve.client import purge as purging
from streamserve.client import redrive as redriving
from streamserve.client.connection import KafkaLog
from streamserve.client.dead_letters import Filter, Letter, Survey, survey
from streamserve.client.letter_words import (
    count_lines,
    counts,
    lines,
    plain,
    removal_lines,
    removal_plain,
    result_line,
    result_plain,
    whole,
)
from streamserve.client.lines import dumps
from streamserve.client.purge import Removal
from streamserve.client.redrive import Result
from streamserve.client.scanning import scanning
from streamserve.client.targets import Target
from streamserve.errors import StreamserveError

app = typer.Typer(help="Dead letters, the records that could not be used: see, put back, remove.", no_args_is_help=True)


@app.command("list")
def list_letters(
    config: OnlyConfig = None,
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    reason: Reason = None,
    source: Source = None,
    model: Model = None,
    partition: Partition = None,
    since: Since = None,
    until: Until = None,
    ref: Ref = None,
    id: Id = None,
    contains: Contains = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, max=MOST, help="The newest so many.")] = None,
    count: Annotated[bool, typer.Option("--count", help="How many by source, reason and model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show dead letters, one line each, the newest last: place, age, source, reason, model, words."""
    target, rest = target_and_rest(config or [], app, bootstrap_servers)
    if rest:
        raise UnusableInput(f"{rest[0]}: `list` takes filters only; `dlq show {rest[0]}` shows one")
    chosen = filter_of(
        reason=reason,
        source=source,
        model=model,
        partition=partition,
        since=since,
        until=until,
        ref=ref,
        id=id,
        contains=contains,
    )
    found = run(_survey(target, chosen))
    for told in found.marks.unreadable:
        typer.echo(f"{found.topic} {told}", err=True)
    seen_ms = now_ms()
    if count:
        rows = counts(found)
        _echo([dumps(row) for row in rows] if as_json else count_lines(rows, seen_ms) if rows else [])
    else:
        letters = found.letters[-limit:] if limit else found.letters
        if len(letters) < len(found.letters):
            typer.echo(f"{len(found.letters) - len(letters)} older ones are not shown (--limit)", err=True)
        _echo([dumps(plain(letter, found.marks)) for letter in letters] if as_json else _lines(found, letters))
    _none_is_said(found, chosen)


@app.command()
def show(
    places: Places = None,
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    ref: Ref = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="FILE|-", help="Write the value as it came; - for standard output.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show everything of a dead letter, or with --ref of those of a request. Exit code 1: there is none."""
    target, rest = target_and_rest(places or [], app, bootstrap_servers)
    if not rest and not ref:
        raise UnusableInput("expected a dead letter's place, such as 1-4 (`dlq list` shows them), or --ref")
    chosen = filter_of(places=rest, ref=ref)
    found = run(_survey(target, chosen, keep_values=True))
    _none_is_said(found, chosen)
    if value is not None:
        _write_value(found, value)
        return
    seen_ms = now_ms()
    for number, letter in enumerate(found.letters):
        if as_json:
            typer.echo(dumps(plain(letter, found.marks, with_value=True)))
        else:
            _echo([*([""] if number else []), *whole(letter, found, seen_ms)])


@app.command()
def redrive(
    places: Places = None,
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    reason: Reason = None,
    source: Source = None,
    model: Model = None,
    partition: Partition = None,
    since: Since = None,
    until: Until = None,
    ref: Ref = None,
    id: Id = None,
    contains: Contains = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=MOST, help="Put back so many, the oldest first.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what was put back before.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back on the topic that they came from, as they were, so that a request keeps its id; its
    budget (`ss-deadline-ms`) starts anew. One that was put back is not put back again, unless with --again.

    Run one redrive at a time: two at once may put the same record back twice. Exit code 1: one that is meant could
    not be put back, or there is none.
    """
    target, rest = target_and_rest(places or [], app, bootstrap_servers)
    chosen = filter_of(
        places=rest,
        reason=reason,
        source=source,
        model=model,
        partition=partition,
        since=since,
        until=until,
        ref=ref,
        id=id,
        contains=contains,
    )
    found, planned = run(_plan(target, chosen, again=again, limit=limit, settles=not dry_run))
    _none_is_said(found, chosen)
    results = [result for result in planned if dry_run or result.fate != "to send"]
    _tell(results, as_json=as_json)
    if not dry_run and (to_send := len(planned) - len(results)):
        _ask(f"Put back {to_send} of {len(found.letters)} dead letters of {found.topic}?", yes=yes)
        results += run(_redrive(target, found, planned, as_json=as_json))
    if not as_json:
        fates = Counter(result.fate for result in results)
        typer.echo(", ".join(f"{count} {fate}" for fate, count in fates.items()))
    if any(result.fate in ("failed", "impossible") for result in results):
        raise typer.Exit(1)


@app.command()
def purge(
    config: OnlyConfig = None,
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="All that are there now.")] = False,
    before: Annotated[str | None, typer.Option("--before", help="As --since; what is older than that.")] = None,
    up_to: Annotated[
        list[str] | None,
        typer.Option("--up-to", metavar="P-O", help="In that partition up to that one, itself too; also several."),
    ] = None,
    reason: Reason = None,
    source: Source = None,
    model: Model = None,
    partition: Partition = None,
    since: Since = None,
    until: Until = None,
    ref: Ref = None,
    id: Id = None,
    contains: Contains = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters for good. Kafka removes from the front of a partition only: what stands behind a dead letter
    that is not meant cannot be removed singly, is told, and stays. Exit code 1: something that is meant stays.
    """
    target, rest = target_and_rest(config or [], app, bootstrap_servers)
    if rest:
        raise UnusableInput(f"{rest[0]}: single dead letters cannot be removed; `--up-to {rest[0]}` removes up to it")
    if before is not None and until is not None:
        raise UnusableInput("--before and --until say the same: give one")
    chosen = filter_of(
        reason=reason,
        source=source,
        model=model,
        partition=partition,
        since=since,
        until=before or until,
        ref=ref,
        id=id,
        contains=contains,
        up_to=up_to,
    )
    if not all_of_them and chosen == Filter():
        raise UnusableInput("nothing says what is to be removed: --before TIME, --up-to P-O, a filter, or --all")
    if all_of_them and chosen != Filter():
        raise UnusableInput("--all means all: give it alone, or filters without it")
    found = run(_survey(target, chosen, whole=True))
    _none_is_said(found, chosen)
    planned = purging.plan(found)
    count = sum(len(removal.removed) for removal in planned)
    if count and not dry_run:
        new = sum(removal.not_redriven for removal in planned)
        _ask(f"Remove {count} dead letters of {found.topic} for good, {new} of them never redriven?", yes=yes)
        planned = run(_purge(target, planned))
    for removal in planned:
        typer.echo(dumps(removal_plain(removal, dry_run)) if as_json else "\n".join(removal_lines(removal, dry_run)))
    if any(removal.kept or removal.error for removal in planned):
        raise typer.Exit(1)


async def _survey(target: Target, chosen: Filter, *, keep_values: bool = False, whole: bool = False) -> Survey:
    async with scanning(_log(target)) as scanner:
        return await survey(target.app, scanner, chosen, routes=target.routes, keep_values=keep_values, whole=whole)


async def _plan(
    target: Target, chosen: Filter, *, again: bool, limit: int | None, settles: bool
) -> tuple[Survey, list[Result]]:
    """`settles`: what an earlier redrive left open is written down, where it can be told."""
    log = _log(target)
    async with scanning(log) as scanner:
        found = await survey(target.app, scanner, chosen, routes=target.routes, whole=True)
        sources = {letter.said.source for letter in found.letters}
        topics = {source.topic for source in sources if source.topic}
        partitions = {topic: await scanner.lookups.partition_count(topic) for topic in sorted(topics)}
        unsure = await redriving.look_for_unsure(scanner, found.marks, sources)
    if settles and unsure.sent:
        async with redriving.writing(log) as writer:
            await redriving.settle(writer, found, unsure)
    return found, redriving.plan(target.app, found, partitions, unsure, again=again, limit=limit)


async def _redrive(target: Target, found: Survey, planned: list[Result], *, as_json: bool) -> list[Result]:
    log = _log(target)
    results = []
    async with scanning(log) as scanner, redriving.writing(log) as writer:
        async for result in redriving.redrive(scanner, writer, found, planned):
            _tell([result], as_json=as_json)
            results.append(result)
    return results


async def _purge(target: Target, planned: list[Removal]) -> list[Removal]:
    async with scanning(_log(target)) as scanner:
        return await purging.purge(scanner, planned)


def _log(target: Target) -> KafkaLog:
    return KafkaLog(target.bootstrap_servers, target.security)


def _none_is_said(found: Survey, chosen: Filter) -> None:
    """Nothing found is a failure where a single one was named, else only said."""
    missing = sorted(set(chosen.places) - {(letter.at.partition, letter.offset) for letter in found.letters})
    if missing:
        places = ", ".join(f"{partition}-{offset}" for partition, offset in missing)
        raise StreamserveError(
            f"no dead letter that is meant stands at {places} of {found.topic}; `streamserve dlq list` shows what does"
        )
    if not found.letters and chosen.names_one:
        raise StreamserveError(f"no dead letter of {found.topic} is meant by that; `streamserve dlq list` shows all")
    if not found.letters:
        typer.echo(f"no dead letters in {found.topic}{'' if chosen == Filter() else ' are meant by that'}", err=True)


def _tell(results: list[Result], *, as_json: bool) -> None:
    _echo([dumps(result_plain(result)) if as_json else result_line(result) for result in results])


def _write_value(found: Survey, value: str) -> None:
    if len(found.letters) != 1:
        places = ", ".join(letter.place for letter in found.letters)
        raise UnusableInput(f"--value writes one value, and there are {len(found.letters)}: name one of {places}")
    (letter,) = found.letters
    if letter.value is None:
        raise StreamserveError(f"{letter.place} has no value (it is null): nothing was written")
    if value == "-":
        sys.stdout.buffer.write(letter.value)
        sys.stdout.buffer.flush()
        return
    try:
        Path(value).write_bytes(letter.value)
    except OSError as error:
        raise UnusableInput(f"{value}: cannot be written: {error.strerror or error}") from None
    cut = f"; only the beginning is kept of what has SHA-256 {letter.said.sha256}" if letter.is_cut else ""
    typer.echo(f"{value}: {len(letter.value)} bytes{cut}")


def _ask(question: str, *, yes: bool) -> None:
    """Go on only where the answer is yes."""
    if yes:
        return
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        typer.echo("", err=True)
        raise UnusableInput("nobody is there to answer, so nothing was done; --yes does it without asking")
    if answer.strip().lower() not in ("y", "yes"):
        raise StreamserveError("not confirmed, so nothing was done")


def _lines(found: Survey, letters: Sequence[Letter]) -> list[str]:
    return lines(found, letters, now_ms()) if letters else []


def _echo(text: Sequence[str]) -> None:
    for each in text:
        typer.echo(each)
