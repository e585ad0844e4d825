"""`streamserve send`, `feedback`, `tail`, `show`: an app's topics from the command line."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import orjson
import typer

from streamserve.cli.numbers import finite
from streamserve.cli.reading import requests_in
from streamserve.cli.targeting import CONFIG_HELP, App, AsJson, Servers, only_one, run, target_and_rest
from streamserve.client import Client, Submitted, UnusableInput
from streamserve.client.arguments import MOST_MS
from streamserve.client.client import GRACE_MS
from streamserve.client.connection import KafkaLog
from streamserve.client.feedback import UNSET
from streamserve.client.inputs import Codec, Input
from streamserve.client.lines import dumps, line, plain, prediction_words
from streamserve.client.scanning import scanning
from streamserve.client.story import tell
from streamserve.client.targets import Target
from streamserve.errors import PredictionTimeout, TopicsDiffer
from streamserve.kafka.ports import At
from streamserve.kafka.tasks import ended
from streamserve.topics import Kind, topic_name

_MAX_OUTSTANDING = 256


class CodecName(StrEnum):
    """What a route reads."""

    OIP = "oip"
    ROWS = "rows"
    TEXT = "text"
    RAW = "raw"


_NOBODY_READS = (
    "note: no route of this config learns, so `streamserve up` starts no learner and the feedback is joined with "
    'nothing; to record it as outcomes set [learn] outcomes = "always"'
)
_LABEL_HELP = "The true answer: JSON, else a text. NaN and infinity are refused; quoted (`'\"nan\"'`) they are texts."


def send(
    data: Annotated[
        list[str],
        typer.Argument(
            help=f"{CONFIG_HELP} Then requests: JSON rows, a text, a whole JSON request, @FILE (one request; "
            ".npy too), or - for one request a line of standard input."
        ),
    ],
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    route: Annotated[str | None, typer.Option("--route", help="May be left out where the app has one.")] = None,
    deadline_ms: Annotated[
        int | None, typer.Option("--deadline-ms", min=1, max=MOST_MS, help="Budget from append; left out: the route's.")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="Whose learnt state chooses, where the route has contexts.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=-9, max=9, help="Under overload the highest is shed last.")
    ] = None,
    grace_ms: Annotated[
        int, typer.Option("--grace-ms", min=0, max=MOST_MS, help="How long after its deadline a request is waited for.")
    ] = GRACE_MS,
    key: Annotated[str | None, typer.Option("--key", help="Record key: equal keys go to one partition.")] = None,
    codec: Annotated[
        CodecName | None, typer.Option("--codec", help="What the route reads; left out: as the config says, else oip.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for predictions, or say the refs only.")] = True,
    as_json: AsJson = False,
) -> None:
    """Send requests and show their predictions. Exit code 0: each has its terminal record, 1: one has not."""
    target, requests = target_and_rest(data, app, bootstrap_servers)
    if not requests:
        raise UnusableInput("nothing to send: give JSON rows, @FILE, or - for standard input")
    if codec is not None:
        hints = {name: replace(hint, input=codec.value) for name, hint in target.routes.items()}
        target = replace(target, routes=hints)
    reads = codec.value if codec is not None else _codec_of(target, route)
    sending = _Sending(
        target=target,
        codec=reads,
        route=route,
        deadline_ms=deadline_ms,
        priority=priority,
        context=context,
        grace_ms=grace_ms,
        key=key,
    )
    late = run(_send_all(sending, requests, wait=wait, as_json=as_json))
    if late:
        raise typer.Exit(PredictionTimeout.exit_code)


def feedback(
    ref: Annotated[
        list[str], typer.Argument(help=f"{CONFIG_HELP} Then the request's ref, `<partition>-<offset>`.", metavar="REF")
    ],
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    label: Annotated[str | None, typer.Option("--label", help=_LABEL_HELP)] = None,
    reward: Annotated[
        float | None, typer.Option("--reward", min=0.0, max=1.0, callback=finite, help="0 to 1; 1 is best.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The one model (`name@version`) it is about.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The request's key; left out: the ref.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what really happened to a request: its label, a reward, or both."""
    target, rest = target_and_rest(ref, app, bootstrap_servers)
    asked = only_one(rest, "the request's ref, such as 2-17")

    said = UNSET if label is None else _label(label)

    async def tell_app() -> str:
        async with _client(target) as client:
            return await client.feedback(asked, label=said, reward=reward, model=model, key=key)

    place = run(tell_app())
    topic = topic_name(target.app, Kind.FEEDBACK)
    words = f"feedback for {asked} stands at {place} of {topic}"
    typer.echo(dumps({"ref": asked, "topic": topic, "feedback": place}) if as_json else words)
    if not target.has_outcomes:
        typer.echo(_NOBODY_READS, err=True)


def tail(
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{CONFIG_HELP} Then which topic: {', '.join(Kind)}. Left out: predictions.", metavar="TOPIC"
        ),
    ] = None,
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the oldest record kept.")] = False,
    until_end: Annotated[bool, typer.Option("--until-end", help="End where the topic ends now.")] = False,
    most: Annotated[int | None, typer.Option("--max", min=1, help="End after so many records.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show records of a topic as they come, one line each, until Ctrl-C."""
    target, rest = target_and_rest(topic or [], app, bootstrap_servers)
    kind = _kind(rest)
    run(_tail(target, kind, from_start=from_start, until_end=until_end, most=most, as_json=as_json))


def show(
    ref: Annotated[
        list[str], typer.Argument(help=f"{CONFIG_HELP} Then the request's ref, `<partition>-<offset>`.", metavar="REF")
    ],
    *,
    app: App = None,
    bootstrap_servers: Servers = None,
    as_json: AsJson = False,
) -> None:
    """One request's story across the topics: request, answers, prediction, feedback, outcome, and the learnt state."""
    target, rest = target_and_rest(ref, app, bootstrap_servers)
    asked = only_one(rest, "the request's ref, such as 2-17")

    async def story() -> str:
        async with scanning(KafkaLog(target.bootstrap_servers, target.security)) as scanner:
            found = await tell(target.app, asked, scanner, join_window_ms=target.join_window_ms)
        return dumps(found.plain()) if as_json else "\n".join(found.lines())

    typer.echo(run(story()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sending:
    """What all requests of one call share."""

    target: Target
    codec: Codec | None
    route: str | None
    deadline_ms: int | None
    priority: int | None
    context: str | None
    grace_ms: int
    key: str | None

    def submit(self, client: Client, x: Input) -> Submitted:
        return client.submit(
            x,
            route=self.route,
            deadline_ms=self.deadline_ms,
            priority=self.priority,
            context=self.context,
            key=self.key,
        )


def _codec_of(target: Target, route: str | None) -> Codec | None:
    if route is None and len(target.routes) == 1:
        return next(iter(target.routes.values())).input
    hint = target.routes.get(route or "")
    return None if hint is None else hint.input


def _client(target: Target, codec: Codec | None = None, grace_ms: int = GRACE_MS) -> Client:
    return Client(
        target.bootstrap_servers,
        app=target.app,
        grace_ms=grace_ms,
        codec=codec,
        routes=target.routes,
        security=target.security,
    )


async def _send_all(sending: _Sending, requests: list[str], *, wait: bool, as_json: bool) -> int:
    """How many requests had no answer in time."""
    sent: asyncio.Queue[Submitted | None] = asyncio.Queue(_MAX_OUTSTANDING)
    async with _client(sending.target, sending.codec, sending.grace_ms) as client:

        async def submit() -> None:
            try:
                async for x in requests_in(requests, sending.codec):
                    await sent.put(sending.submit(client, x))
            finally:
                await sent.put(None)

        submitting = asyncio.create_task(submit())
        try:
            late = 0
            while (submitted := await sent.get()) is not None:
                late += await _report(submitted, wait=wait, as_json=as_json)
            await submitting
            return late
        finally:
            await ended(submitting)
            if not submitting.cancelled():
                submitting.exception()  # told already, or overtaken by another error


async def _report(submitted: Submitted, *, wait: bool, as_json: bool) -> int:
    """Show what became of a request; 1 where it had no answer in time."""
    ref = await submitted.acknowledged() if not wait else ""
    if not wait:
        typer.echo(dumps({"ref": ref}) if as_json else ref)
        return 0
    try:
        prediction = await submitted.prediction()
    except PredictionTimeout as error:
        typer.echo(f"streamserve: {error}", err=True)
        return 1
    if as_json:
        typer.echo(dumps({"ref": prediction.ref, **orjson.loads(prediction.raw)}))
    else:
        typer.echo(f"{prediction.ref}  {prediction_words(prediction)}")
    return 0


def _label(text: str) -> Any:
    """JSON, else the text itself. A number that JSON lacks is more likely a slip than a text: it is refused."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    with suppress(ValueError):
        if not math.isfinite(float(text)):
            raise UnusableInput(
                f"--label {text}: JSON has no such number, and no answer is ever equal to it; "
                f"if the label is the text, quote it: --label '\"{text}\"'"
            )
    return text


def _kind(arguments: list[str]) -> Kind:
    if not arguments:
        return Kind.PREDICTIONS
    if len(arguments) > 1 or arguments[0] not in set(Kind):
        raise UnusableInput(f"{' '.join(arguments)!r} is no topic of an app; there are: {', '.join(Kind)}")
    return Kind(arguments[0])


async def _tail(
    target: Target, kind: Kind, *, from_start: bool, until_end: bool, most: int | None, as_json: bool
) -> None:
    topic = topic_name(target.app, kind)
    shown = 0
    async with scanning(KafkaLog(target.bootstrap_servers, target.security)) as scanner:
        lookups = scanner.lookups
        places = [At(topic, partition) for partition in range(await lookups.partition_count(topic))]
        if not places:
            raise TopicsDiffer(f"app {target.app} has no topic {topic}; `streamserve topics create CONFIG` makes it")
        ends = await lookups.ends(places)
        positions = await lookups.starts(places) if from_start else ends
        async for record in scanner.follow(positions, ends if until_end else None):
            typer.echo(dumps(plain(kind, record)) if as_json else line(kind, record))
            shown += 1
            if shown == most:
                return
