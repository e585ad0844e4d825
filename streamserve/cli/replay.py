"""`streamserve replay`: a candidate model over recorded requests, before it is deployed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from streamserve.assembly import app_rules, model_spec, most_rows
from streamserve.cli.numbers import finite
from streamserve.cli.pictures import Plot, check_plot
from streamserve.cli.replay_plot import write_plot
from streamserve.cli.replay_report import in_words, listed_line, report_of
from streamserve.cli.targeting import AsJson, From, Servers, To, route_of, run
from streamserve.client import UnusableInput
from streamserve.client.candidate import Candidate, loaded_candidate
from streamserve.client.connection import KafkaLog
from streamserve.client.replay import Listeners, Question, Replay
from streamserve.client.replay import replay as replay_requests
from streamserve.client.spans import span_of
from streamserve.client.targets import Target, target_of_config
from streamserve.core.evaluation.agreement import Replayed
from streamserve.core.routes import AppRules, Route
from streamserve.settings import ModelSettings, Settings, load_settings
from streamserve.settings.candidate import checked_model

_INTERRUPTED = 130
_TOLERANCE = 0.01
_NEWS_S = 0.2


def replay(
    config: Annotated[Path, typer.Argument(help="The app's config.")],
    *,
    model: Annotated[
        str, typer.Option("--model", help="The candidate: NAME or NAME@VERSION of the config, in a route or not.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            help="Another source than the config's: an import path, or a file (of the working folder, else of the "
            "config's). NAME may be new then; else its other keys hold.",
        ),
    ] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", help="Another runtime than the config's, by its name.")
    ] = None,
    route: Annotated[str | None, typer.Option("--route", help="Whose requests; where the app has several.")] = None,
    begin: From = None,
    end: To = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            min=0.0,
            max=1.0,
            callback=finite,
            help=f"For numbers (combine = mean): two answers agree up to this distance; left out: {_TOLERANCE}.",
        ),
    ] = None,
    disagreements: Annotated[
        Path | None,
        typer.Option("--disagreements", help="A file: a JSON line for each request answered otherwise, or refused."),
    ] = None,
    plot: Plot = None,
    bootstrap_servers: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Run a candidate model over recorded requests at full speed, and compare it with what was answered then.

    Agreement with the served answer and with each member's; accuracy where the outcomes topic has a label, on both
    sides over the same requests; latency of the model's calls (p50, p99 within 1 %). Nothing is written to the app's
    topics. Ctrl-C ends it with a report of what was done. Exit code 1: there was no request to replay.
    """
    settings = load_settings(config)
    rules = app_rules(settings)
    section_name, section = _candidate_section(settings, model, source, runtime)
    asked = _route(settings, rules, route, section_name)
    distance = _tolerance(tolerance, asked)
    span = span_of(begin, end, int(time.time() * 1000))
    check_plot(plot)
    target = target_of_config(config, bootstrap_servers)
    spec = model_spec(section_name, section)
    question = Question(rules=rules, route=asked, span=span, tolerance=distance)
    # What the model itself prints is not to stand in the report.
    with _listing(disagreements) as listed, _progress() as progress, redirect_stdout(sys.stderr):
        listeners = Listeners(listed=listed, progress=progress)
        result = run(
            _replay(target, loaded_candidate(spec, most_rows(section), settings.base_dir), question, listeners)
        )
    report = report_of(result, spec.model_id, asked.name, disagreements)
    typer.echo(json.dumps(report) if as_json else in_words(report))
    if plot is not None:
        write_plot(plot, report, result.times)
    if result.failure is not None:
        raise result.failure
    if result.is_broken_off:
        raise typer.Exit(_INTERRUPTED)
    if not result.comparison.requests:
        raise typer.Exit(1)


async def _replay(
    target: Target, loading: AbstractAsyncContextManager[Candidate], question: Question, listeners: Listeners
) -> Replay:
    log = KafkaLog(target.bootstrap_servers, target.security)
    async with loading as candidate:
        return await replay_requests(log, target.app, candidate, question, listeners)


def _candidate_section(
    settings: Settings, model: str, source: str | None, runtime: str | None
) -> tuple[str, ModelSettings]:
    """Name and settings of the candidate. Raises UnusableInput."""
    name, _, version = model.partition("@")
    if source is not None and Path(source).is_file():
        source = str(Path(source).absolute())
    given = {"version": version or None, "source": source, "runtime": runtime}
    changes = {key: value for key, value in given.items() if value is not None}
    section = settings.models.get(name)
    if section is None and source is None:
        known = ", ".join(map(settings.model_id, settings.models))
        raise UnusableInput(
            f"--model {model}: the config has {known}; give one of these, or where the new one is: --source"
        )
    if section is not None and source is None and version not in ("", section.version):
        raise UnusableInput(
            f"--model {model}: the config's is {settings.model_id(name)}; give --source to try another one in its place"
        )
    kept = {} if section is None else section.model_dump(exclude_unset=True)
    return name, checked_model(name, {**kept, **changes})


def _route(settings: Settings, rules: AppRules, name: str | None, model: str) -> Route:
    """The route that is named, else the only one that the candidate is in, else the app's only one."""
    if name is None and len(rules.routes) > 1:
        its = [key for key, route in settings.routes.items() if model in route.models]
        name = its[0] if len(its) == 1 else None
    return route_of(rules, name)


def _tolerance(given: float | None, route: Route) -> float:
    if route.combine != "mean":
        if given is not None:
            raise UnusableInput(
                f"--tolerance: route {route.name} answers classes, which agree or do not; it is for combine = mean"
            )
        return 0.0
    return _TOLERANCE if given is None else given


@contextmanager
def _listing(file: Path | None) -> Iterator[Callable[[Replayed], None]]:
    """Writes what it is given to the file. Raises UnusableInput where that is not possible, also half-way."""
    if file is None:
        yield lambda _one: None
        return
    with _written(file):
        lines = file.open("w", encoding="utf-8")

    def listed(one: Replayed) -> None:
        with _written(file):
            lines.write(f"{listed_line(one)}\n")

    try:
        yield listed
    finally:
        with _written(file):
            lines.close()


@contextmanager
def _written(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnusableInput(f"--disagreements {file}: cannot be written: {error.strerror}") from None


@contextmanager
def _progress() -> Iterator[Callable[[Replay], None]]:
    """A line on a terminal that is written over; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _replay: None
        return
    due_s = 0.0

    def progress(result: Replay) -> None:
        nonlocal due_s
        now_s = time.monotonic()
        if now_s < due_s:
            return
        due_s = now_s + _NEWS_S
        found = result.comparison
        rate = found.requests / result.seconds if result.seconds else 0.0
        words = f"{result.done:4.0%}  {found.requests:,} requests, {rate:,.0f}/s, {found.disagreements:,} answered"
        typer.echo(f"\r{words} otherwise\x1b[K", err=True, nl=False)

    try:
        yield progress
    finally:
        typer.echo("\r\x1b[K", err=True, nl=False)
