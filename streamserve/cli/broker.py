"""`streamserve broker`: a real Apache Kafka of our own."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from streamserve.cli.numbers import finite
from streamserve.errors import BrokerError
from streamserve.kafka.brokers import (
    BrokerOptions,
    BrokerStatus,
    FolderInUse,
    OwnBroker,
    await_ready,
    prepare,
    read_status,
    state_folder,
    stop_command,
    stop_recorded,
)

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(help="A real Apache Kafka of our own: start, stop, ask. Its data is kept.", no_args_is_help=True)

_NOT_RUNNING = 1
_LOOK_S = 3600.0
_START_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 0.1

Name = Annotated[str, typer.Option("--name", help="Which broker: each name has its own data.")]
StateDir = Annotated[Path | None, typer.Option("--state-dir", help="Its folder, instead of the one of --name.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on one line, for programs.")]


def _one_or_three(nodes: int) -> int:
    if nodes not in (1, 3):
        raise typer.BadParameter(f"a broker of our own has 1 node or 3, not {nodes}")
    return nodes


def _known_profile(profile: str) -> str:
    if profile not in ("laptop", "bench"):
        raise typer.BadParameter(f"there is no {profile!r}; there are: laptop, bench")
    return profile


class _StopAsked(BaseException):
    """SIGTERM or Ctrl-C came: unwinds to the place that stops the broker."""


@app.command()
def start(
    *,
    name: Name = "default",
    state_dir: StateDir = None,
    nodes: Annotated[
        int, typer.Option("--nodes", callback=_one_or_three, help="1, or 3 that replicate each other.")
    ] = 1,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Port of the first node; 0: any free one.")
    ] = 0,
    profile: Annotated[
        str,
        typer.Option("--profile", callback=_known_profile, help="laptop: small, starts fast. bench: for load."),
    ] = "laptop",
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay until SIGTERM or Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the broker and leave it running; says its address. One that runs already is left as it is."""
    folder = _folder(name, state_dir)
    options = _options(folder, nodes, profile, port)
    if foreground:
        _stay(OwnBroker(options, say=_say), as_json=as_json)
        return
    _report(_start_or_find(options), as_json=as_json)


@app.command()
def stop(
    name: Name = "default",
    state_dir: StateDir = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=0.0, callback=finite, help="Seconds until it is killed.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Stop the broker, whoever started it. Its data stays. Exit code 0 also when none ran."""
    folder = _folder(name, state_dir)
    stopped = stop_recorded(folder, timeout_s)
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "state_dir": str(folder)}))
    else:
        typer.echo(f"stopped; its data stays in {folder}" if stopped else f"no broker runs in {folder}")


@app.command()
def status(name: Name = "default", state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Say whether the broker runs, where, and since when. Exit code 0 when it is ready, else 1."""
    now = read_status(_folder(name, state_dir))
    _report(now, as_json=as_json)
    if not now.ready:
        raise typer.Exit(_NOT_RUNNING)


@app.command("prepare")
def prepare_command() -> None:
    """Fetch and build what a start needs, so that later starts take a second and need no registry."""
    prepared = prepare(_say)
    speed = "fast start" if prepared.archive else "slow start: this Java could make no class archive"
    typer.echo(f"broker ready to start: Java {prepared.java.version} from {prepared.java.source}, {speed}")


def _folder(name: str, state_dir: Path | None) -> Path:
    return state_dir.expanduser().absolute() if state_dir is not None else state_folder(name)


def _options(folder: Path, nodes: int, profile: str, port: int) -> BrokerOptions:
    if profile == "bench":
        return BrokerOptions(state_dir=folder, nodes=nodes, profile="bench", port=port)
    return BrokerOptions(state_dir=folder, nodes=nodes, profile="laptop", port=port)


def _start_or_find(options: BrokerOptions) -> BrokerStatus:
    """A broker that is ready: one that runs, one that another process is starting, else a new one."""
    until = time.monotonic() + _START_TIMEOUT_S
    while True:
        running = read_status(options.state_dir)
        if running.running:
            _refuse_other(running, options)
            return await_ready(options.state_dir, until - time.monotonic())
        broker = OwnBroker(options, say=_say)
        try:
            broker.start(detached=True)
        except FolderInUse:  # another start was quicker, and has not written down yet what it starts
            if time.monotonic() >= until:
                raise
            time.sleep(_LOOK_AGAIN_S)
        else:
            return broker.status()


def _refuse_other(running: BrokerStatus, wanted: BrokerOptions) -> None:
    """A start that asks for something else than what runs must not look as if it had been heard."""
    ports = [node.port for node in running.nodes]
    if len(ports) != wanted.nodes or (wanted.port and ports[0] != wanted.port):
        message = (
            f"a broker of {len(ports)} node(s) already runs in {running.state_dir} at {running.bootstrap_servers}; "
            f"stop it with '{stop_command(wanted.state_dir)}', or take another --name or --state-dir"
        )
        raise BrokerError(message)


def _stay(broker: OwnBroker, *, as_json: bool) -> None:
    """Run until a signal asks to stop (exit code 0) or a node ends by itself (`BrokerError`)."""
    previous = {number: signal.signal(number, _ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    why = ""
    try:
        broker.start()
        _report(broker.status(), as_json=as_json)
        while not broker.wait(_LOOK_S):
            pass
        why = broker.why_ended()
    except _StopAsked:
        pass
    finally:
        for number in previous:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not cut the orderly stop short
        broker.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if why:
        raise BrokerError(why)


def _ask_to_stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _StopAsked


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _report(now: BrokerStatus, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(now)))
        return
    if not now.running:
        ended = "; the last one ended without a stop" if now.ended_unasked else ""
        typer.echo(f"no broker runs in {now.state_dir}{ended}")
        return
    since = datetime.fromtimestamp(now.started_at_ms / 1000, UTC).astimezone()
    pids = ", ".join(str(node.pid) for node in now.nodes if node.running)
    state = "ready" if now.ready else "not all ready"
    typer.echo(f"Apache Kafka {now.kafka_version} at {now.bootstrap_servers} ({state})")
    typer.echo(f"  since {since:%Y-%m-%d %H:%M:%S %Z}, process {pids}, data in {now.state_dir}")
    typer.echo(f"  log {', '.join(node.log for node in now.nodes)}")
