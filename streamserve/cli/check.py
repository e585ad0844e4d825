"""`streamserve check`: what would go wrong, found before anything serves."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from streamserve.assembly import app_rules, model_specs
from streamserve.cli.numbers import seconds
from streamserve.cli.probe import read_sample
from streamserve.client.targets import running_broker
from streamserve.errors import BrokerError, ConfigError, ModelError, StreamserveError, TopicsDiffer
from streamserve.runtimes import ModelSpec
from streamserve.settings import Settings, load_settings

Report = dict[str, Any]

_NO_SAMPLE = "loaded, not tried: it does not say what a row looks like; give one with --sample"
_LAST_CHARACTERS = 600


def check(
    config: Annotated[Path, typer.Argument(help="The app's config, a TOML file.")],
    sample: Annotated[
        str | None,
        typer.Option("--sample", help="Rows to try every model on: a JSON list of rows, or a file of it or .npy."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no broker.")] = False,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit-s", callback=seconds, help="Longest that one model may take.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line, for programs.")] = False,
) -> None:
    """Load each model in a fresh interpreter, run a sample row, and compare config, broker and topics.

    Exit code: 0 all well, 2 the config is wrong, 3 a model is, 4 no broker answers, 5 its topics differ.
    """
    try:
        if sample is not None:
            read_sample(sample)
    except ModelError as error:
        raise typer.BadParameter(str(error), param_hint="--sample") from None
    try:
        settings = load_settings(config)
        app_rules(settings)
    except ConfigError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"ok": False, "config": {"file": str(config), "problem": str(error)}}))
        raise typer.Exit(error.exit_code) from None
    report: Report = {"ok": True, "config": describe(settings, config), "models": {}}
    _say(f"config  {config}: {_in_words(report['config'])}", quiet=as_json)
    for spec in _specs(settings):
        found = try_model(spec, settings.base_dir, sample, time_limit_s)
        report["models"][spec.model_id] = found
        _say(f"model   {_model_line(spec, found)}", quiet=as_json)
    report["routes"] = dict(_route_notes(settings, report["models"]))
    for route, note in report["routes"].items():
        _say(f"route   {route}: note: {note}", quiet=as_json)
    report["broker"] = _ask_broker(settings, config, offline=offline)
    _say(f"broker  {_broker_line(report['broker'])}", quiet=as_json)
    code = exit_code(report)
    report["ok"] = code == 0
    if as_json:
        typer.echo(json.dumps(report))
    raise typer.Exit(code)


def describe(settings: Settings, config: Path) -> Report:
    """What the config asks for, in numbers."""
    return {
        "file": str(config),
        "app": settings.app.name,
        "pools": len(settings.pools),
        "models": len(settings.models),
        "routes": len(settings.routes),
        "fused": settings.fused,
        "unused_models": sorted(
            set(settings.models)
            - {name for route in settings.routes.values() for name in (*route.models, route.second_opinion)}
        ),
    }


def try_model(spec: ModelSpec, base_dir: Path, sample: str | None, time_limit_s: float) -> Report:
    """What `streamserve.cli.probe` says of a model in an interpreter of its own; `problem` where it is no good."""
    question = {"spec": asdict(spec), "base_dir": str(base_dir), "sample": sample}
    command = [sys.executable, "-m", "streamserve.cli.probe"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question, default=str),
            capture_output=True,
            text=True,
            timeout=time_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"model {spec.model_id}: not loaded and tried within {time_limit_s:g} s (--time-limit-s)"}
    try:
        answer: Report = json.loads(done.stdout)
    except ValueError:
        words = f"model {spec.model_id}: its process {_ended(done.returncode)} without an answer"
        last = done.stderr.strip()[-_LAST_CHARACTERS:]
        return {"problem": f"{words}; its last words:\n{last}" if last else words}
    return answer


def exit_code(report: Report) -> int:
    """The exit code of the first kind of trouble: models, broker, topics."""
    if any("problem" in model for model in report["models"].values()):
        return ModelError.exit_code
    if report["broker"].get("problem"):
        return BrokerError.exit_code
    return TopicsDiffer.exit_code if report["broker"].get("differences") else 0


def _specs(settings: Settings) -> Iterator[ModelSpec]:
    for pool in settings.pools:
        yield from model_specs(settings, pool)


def _route_notes(settings: Settings, models: dict[str, Report]) -> Iterator[tuple[str, str]]:
    """What only shows once the models have answered."""
    for name, route in settings.routes.items():
        ids = [settings.model_id(model) for model in route.models]
        without = [model for model in ids if models.get(model, {}).get("probabilities") is False]
        if without and route.combine in ("mean_probability", "log_probability"):
            yield name, f"{', '.join(without)} gives no probabilities, so where it answers labels are voted on"


def _ask_broker(settings: Settings, config: Path, *, offline: bool) -> Report:
    servers = settings.broker.bootstrap_servers
    broker: Report = {} if servers else {"own": True}
    try:
        if servers is None and not offline:
            servers = running_broker(settings.app.name, settings.app.state_dir)
        if servers is None:
            return broker
        broker["bootstrap_servers"] = servers
        if offline:
            return broker | {"asked": False}
        broker["asked"] = True
        return broker | asyncio.run(_compare(settings, servers, config))
    except StreamserveError as error:
        return broker | {"asked": True, "problem": str(error)}


async def _compare(settings: Settings, servers: str, config: Path) -> Report:
    from streamserve.kafka import admin  # noqa: PLC0415  (so that `--offline` works without a Kafka client)
    from streamserve.kafka.fencing import try_transactions  # noqa: PLC0415  (as above)
    from streamserve.kafka.security import connection_options  # noqa: PLC0415  (as above)

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what goes wrong is said once, in our words
    options = connection_options(settings.broker.client)
    if settings.app.delivery == "exactly_once":
        await try_transactions({"bootstrap_servers": servers, **options}, settings.app.name)
    topics = await admin.declared_topics(settings, servers, options)
    found = await admin.plan(servers, topics, options)
    if settings.broker.bootstrap_servers is None and sum(one.what == "missing" for one in found) == len(topics):
        return {"topics": 0, "differences": []}  # nothing was made yet, and `up` makes it
    explanation = admin.explain(found, servers, str(config)) if found else ""
    return {"topics": len(topics), "differences": [asdict(one) for one in found], "explanation": explanation}


def _in_words(config: Report) -> str:
    counts = ", ".join(
        f"{config[what]} {what if config[what] != 1 else what[:-1]}" for what in ("pools", "models", "routes")
    )
    words = f"app {config['app']}, {counts}, {'fused (two hops)' if config['fused'] else 'split (three hops)'}"
    unused = config["unused_models"]
    return f"{words}; in no route: {', '.join(unused)}" if unused else words


def _model_line(spec: ModelSpec, found: Report) -> str:
    if "problem" in found:
        return f"{spec.model_id}: WRONG: {found['problem']}"
    start = f"{spec.model_id}: {found['runtime']}, loaded in {found['load_ms']:.0f} ms"
    if not found["sample"]:
        return f"{start}; {_NO_SAMPLE}"
    times = ", ".join(f"{ms:.2f} ms for {rows} row{'s' if rows != '1' else ''}" for rows, ms in found["ms"].items())
    return f"{start}; {times}; answers {found['output']}"


def _broker_line(broker: Report) -> str:
    if broker.get("problem"):
        return f"WRONG: {broker['problem']}"
    if "asked" not in broker:
        return "a Kafka of our own; `streamserve up` starts it and makes its topics"
    if not broker["asked"]:
        return f"{broker['bootstrap_servers']}: not asked (--offline)"
    if broker["differences"]:
        return f"WRONG: {broker['explanation']}"
    where = f"{broker['bootstrap_servers']}{' (a Kafka of our own)' if broker.get('own') else ''}"
    if not broker["topics"]:
        return f"{where}: no topics of this app yet; `streamserve up` makes them"
    return f"{where}: all {broker['topics']} topics are as declared"


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _say(words: str, *, quiet: bool) -> None:
    if not quiet:
        typer.echo(words)
