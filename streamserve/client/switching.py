"""Models switched off and on: one record of the models topic, which every role reads."""

from __future__ import annotations

from zlib import crc32

from streamserve.client.connection import ClientLog
from streamserve.client.failures import UnusableInput
from streamserve.core.routes import Route
from streamserve.errors import BrokerError, TopicsDiffer
from streamserve.kafka.codecs.switches import encode_switch, switch_key
from streamserve.kafka.ports import At, Columns
from streamserve.topics import Kind, topic_name


def check_model(name: str, routes: tuple[Route, ...], *, disabled: bool) -> tuple[str, ...]:
    """The routes that this model (`name@version`, or a name) is a candidate of. Raises UnusableInput where there are
    none, and where one would have no other."""
    concerned = []
    for route in routes:
        others = [model for model in route.models if name not in (model, model.rpartition("@")[0])]
        if len(others) == len(route.models):
            continue
        if disabled and not others:
            raise UnusableInput(f"{name} is all that route {route.name} has; a route keeps one model at least")
        concerned.append(route.name)
    if not concerned:
        known = sorted({model for route in routes for model in route.models})
        raise UnusableInput(f"there is no model {name}; the routes have {', '.join(known)}")
    return tuple(concerned)


async def switch(log: ClientLog, app: str, name: str, *, disabled: bool, why: str = "") -> int:
    """Write it; its append time, ms of the broker. Raises BrokerError, TopicsDiffer where the app has no topics."""
    topic = topic_name(app, Kind.MODELS)
    lookups, writer = log.lookups(), log.writer()
    await lookups.start()
    try:
        partitions = await lookups.partition_count(topic)
        if not partitions:
            raise TopicsDiffer(f"{log.address} has no topic {topic}: the app has never been started there")
        await writer.start()
        try:
            at = At(topic, crc32(switch_key(name)) % partitions)
            ack = await writer.send(at, Columns.of([encode_switch(name, disabled=disabled, why=why)]))
        finally:
            await writer.stop()
    finally:
        await lookups.stop()
    if ack.error:
        raise BrokerError(f"the switch of {name} is not in the log: {ack.error}")
    return ack.append_ms
