"""How each model of an app stands: asked, switched off by an operator, or frozen by what was learnt."""

from __future__ import annotations

from dataclasses import dataclass

from streamserve.client.scanning import LogRecord, Scanner
from streamserve.core.epochs import outcome_partition
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route
from streamserve.core.selection.around import frozen_models
from streamserve.core.selection.freezing import Frozen
from streamserve.errors import ContractError, TopicsDiffer
from streamserve.kafka.codecs import decode_snapshot
from streamserve.kafka.codecs.switches import Switched, decode_switched
from streamserve.kafka.ports import At
from streamserve.topics import Kind, topic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One model of one route."""

    route: str
    model: str
    switched_off: Switched | None
    """The switch that holds, where it is off."""
    frozen: Frozen | None
    """Where no operator has switched it on since."""


async def standings(app: str, scanner: Scanner, routes: tuple[Route, ...]) -> list[Standing]:
    """Of every model of every route, as the log says it now. Raises TopicsDiffer where the app has no topics."""
    topic = topic_name(app, Kind.MODELS)
    count = await scanner.lookups.partition_count(topic)
    if not count:
        raise TopicsDiffer(f"app {app} has no topic {topic}: it has never been started there")
    switches = [
        switch
        for partition in range(count)
        for record in await _records(scanner, At(topic, partition))
        if (switch := _switch(record)) is not None
    ]
    found: list[Standing] = []
    for route in routes:
        frozen = await _frozen(app, scanner, route, count)
        found += [_standing(route, model, switches, frozen.get(model)) for model in route.models]
    return found


def _standing(route: Route, model: str, switches: list[Switched], frozen: Frozen | None) -> Standing:
    mine = [switch for switch in switches if switch.model in (model, model.rpartition("@")[0])]
    newest: dict[str, Switched] = {}
    for switch in mine:  # of each key the last in the log
        newest[switch.model] = switch
    off = next((switch for switch in newest.values() if switch.disabled), None)
    lifted = frozen is not None and any(not one.disabled and one.append_ms > frozen.since_ms for one in mine)
    return Standing(route=route.name, model=model, switched_off=off, frozen=None if lifted else frozen)


async def _frozen(app: str, scanner: Scanner, route: Route, partitions: int) -> dict[str, Frozen]:
    """By the newest snapshot of the state for all."""
    at = At(topic_name(app, Kind.POLICY), outcome_partition(route.name, "", partitions))
    newest: StateRecord | None = None
    for record in await _records(scanner, at):
        state = _state(record)
        is_mine = state is not None and (state.route, state.context, state.policy) == (
            route.name,
            "",
            route.policy.name,
        )
        if is_mine and state is not None and (newest is None or state.epoch > newest.epoch):
            newest = state
    if newest is None:
        return {}
    return dict(frozen_models(route.policy, route.policy.load(newest.data, route.models)))


def _state(record: LogRecord) -> StateRecord | None:
    """A record that cannot be read says nothing: what roles do with it is told by them."""
    try:
        return decode_snapshot(record.value, partition=record.at.partition, offset=record.offset)
    except ContractError:
        return None


def _switch(record: LogRecord) -> Switched | None:
    try:
        return decode_switched(
            record.value, partition=record.at.partition, offset=record.offset, append_ms=record.append_ms
        )
    except ContractError:
        return None


async def _records(scanner: Scanner, at: At) -> list[LogRecord]:
    start, end = await scanner.bounds(at)
    return [record async for record in scanner.read(at, start, end)]
