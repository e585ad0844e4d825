"""`streamserve chaos`: faults done on purpose to an app under load, and whether it kept its promises."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from streamserve.chaos.app import App, own_app, users_app
from streamserve.chaos.faults import FAULTS, fault_named
from streamserve.chaos.report import as_json as result_as_json
from streamserve.chaos.report import in_words, table, write_between
from streamserve.chaos.scene import FORMS, Fault, Options, Result
from streamserve.cli.numbers import MOST, finite
from streamserve.errors import ConfigError, StreamserveError

_DEFAULTS = Options()
_NOT_KEPT = 1


def chaos(
    config: Annotated[
        Path | None,
        typer.Argument(help="The app's config; left out: a small app of streamserve's own."),
    ] = None,
    *,
    faults: Annotated[
        list[str] | None, typer.Option("--fault", help="Which fault; give it several times for several.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every fault, one after the other.")] = False,
    shows_list: Annotated[bool, typer.Option("--list", help="Say what faults there are, and leave.")] = False,
    form: Annotated[str, typer.Option("--form", help="Of streamserve's own app: fused, split or both.")] = "both",
    request: Annotated[
        Path | None, typer.Option("--request", help="With CONFIG: a file that holds one request, as it is sent.")
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=1.0, callback=finite, help="Requests a second.")
    ] = _DEFAULTS.rate_per_s,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, callback=finite, help="Load after the fault is mended.")
    ] = _DEFAULTS.after_s,
    session_ms: Annotated[
        int, typer.Option("--session-ms", min=1_000, max=MOST, help="The group's session timeout.")
    ] = _DEFAULTS.session_ms,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=MOST, help="Of scaling out and in.")] = _DEFAULTS.rounds,
    outage_s: Annotated[
        float, typer.Option("--outage-s", min=1.0, callback=finite, help="How long all roles are down.")
    ] = _DEFAULTS.outage_s,
    patience: Annotated[
        float,
        typer.Option(
            "--patience", min=1.0, callback=finite, help="Promised times are multiplied by it, on a busy machine."
        ),
    ] = _DEFAULTS.patience,
    write: Annotated[
        Path | None, typer.Option("--write", help="Put the table between the two marker lines of this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line and fault, for programs.")] = False,
) -> None:
    """Do faults to an app under load and check its promises, from its predictions topic: nothing lost, nothing answered
    twice beyond what is stated, normal again in time.

    The app runs on a Kafka of its own in a temporary folder, whatever broker its config names: nothing of yours is
    touched. Needs the extra `chaos`. Exit code 1: a promise was not kept.
    """
    if shows_list:
        for fault in FAULTS.values():
            typer.echo(f"{fault.name:<18}{fault.does}")
        return
    chosen = list(FAULTS.values()) if every else [fault_named(name) for name in faults or ()]
    if not chosen:
        raise ConfigError("which fault? Give --fault NAME, or --all; --list says what there is")
    options = Options(
        rate_per_s=rate,
        after_s=seconds,
        session_ms=session_ms,
        rounds=rounds,
        outage_s=outage_s,
        patience=patience,
    )
    load_before = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="streamserve-chaos-"))
    results: list[Result] = []
    apps = _apps(config, request, form, folder)
    for result in _results(_run_module(), chosen, apps, folder, options):
        results.append(result)
        typer.echo(json.dumps(result_as_json(result)) if as_json else in_words(result))
    broken = any(result.broken for result in results)
    if not broken:
        shutil.rmtree(folder, ignore_errors=True)
    if write is not None:
        command = " ".join([*_told(config, chosen, form, options, every=every), f"--write {write}"])
        write_between(write, table(results, command=command, options=options, load_before=load_before))
    if broken:
        raise typer.Exit(_NOT_KEPT)


def _run_module() -> ModuleType:
    try:
        from streamserve.chaos import run  # noqa: PLC0415  (imports the client that sends the load)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise StreamserveError(
            "the load is sent by the Python package confluent-kafka, which is not installed: "
            "pip install 'streamserve[chaos]'"
        ) from None
    return run


def _results(run: ModuleType, faults: list[Fault], apps: list[App], folder: Path, options: Options) -> Iterator[Result]:
    """A Kafka of its own for each run: what one leaves behind must not slow down the next."""
    number = 0
    for fault in faults:
        for app in apps:
            app_form = "fused" if app.settings({}).fused else "split"
            if app_form not in fault.forms:
                if len(faults) == 1 and len(apps) == 1:
                    raise ConfigError(f"--fault {fault.name}: not for an app that is {app_form}")
                continue
            number += 1
            place = folder / f"{number:02}-{fault.name}-{app_form}"
            with run.started(place / "kafka", fault.nodes) as cluster:
                yield run.run_fault(fault, app, cluster, place, options)
            shutil.rmtree(place / "kafka", ignore_errors=True)


def _apps(config: Path | None, request: Path | None, form: str, folder: Path) -> list[App]:
    if config is not None:
        return [users_app(config, request)]
    if form not in (*FORMS, "both"):
        raise ConfigError(f"--form {form}: use fused, split or both")
    return [own_app(folder, one) for one in FORMS if form in (one, "both")]


def _told(config: Path | None, faults: list[Fault], form: str, options: Options, *, every: bool) -> list[str]:
    """The command as it was given, without what is as it comes."""
    asked = ["--all"] if every else [f"--fault {fault.name}" for fault in faults]
    values = {
        "--form": (form, "both"),
        "--rate": (options.rate_per_s, _DEFAULTS.rate_per_s),
        "--seconds": (options.after_s, _DEFAULTS.after_s),
        "--session-ms": (options.session_ms, _DEFAULTS.session_ms),
        "--rounds": (options.rounds, _DEFAULTS.rounds),
        "--outage-s": (options.outage_s, _DEFAULTS.outage_s),
        "--patience": (options.patience, _DEFAULTS.patience),
    }
    given = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, (value, default) in values.items()
        if value != default
    ]
    return ["streamserve chaos", *([str(config)] if config else []), *asked, *given]
