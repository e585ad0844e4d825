"""What the routes of an app have learnt, as the log says it now: the newest snapshot of each shared state."""

from __future__ import annotations

from dataclasses import dataclass

from streamserve.client.scanning import Scanner
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route
from streamserve.core.selection.figures import StateFigures, figures_of
from streamserve.errors import ContractError, TopicsDiffer
from streamserve.kafka.codecs import decode_snapshot
from streamserve.kafka.ports import At
from streamserve.topics import Kind, topic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntState:
    """One state of a route, in the order of contexts; "" is the one that all requests share."""

    route: str
    context: str
    policy: str
    partition: int
    epoch: int
    """Its version: the offset in its partition of the epochs topic."""
    append_ms: int
    figures: StateFigures | None
    """None where this config cannot read it."""
    words: str = ""
    """Why not."""


async def learnt_states(app: str, scanner: Scanner, routes: tuple[Route, ...]) -> list[LearntState]:
    """Of these routes. Raises TopicsDiffer where the app has no topics."""
    topic = topic_name(app, Kind.POLICY)
    count = await scanner.lookups.partition_count(topic)
    if not count:
        raise TopicsDiffer(f"app {app} has no topic {topic}: it has never been started there")
    by_name = {route.name: route for route in routes}
    newest: dict[tuple[str, str], StateRecord] = {}
    unreadable: list[LearntState] = []
    for partition in range(count):
        at = At(topic, partition)
        start, end = await scanner.bounds(at)
        async for record in scanner.read(at, start, end):
            if record.value is None:
                continue
            try:
                state = decode_snapshot(record.value, partition=partition, offset=record.offset)
            except ContractError as error:
                unreadable.append(_unreadable(record.key, partition, record.offset, record.append_ms, str(error)))
                continue
            before = newest.get((state.route, state.context))
            if state.route in by_name and (before is None or state.epoch > before.epoch):
                newest[state.route, state.context] = state
    found = [_learnt(by_name[state.route], state) for _, state in sorted(newest.items())]
    return [*found, *unreadable]


def _learnt(route: Route, state: StateRecord) -> LearntState:
    figures, words = None, ""
    if state.policy != route.policy.name:
        words = f"it is of policy {state.policy}, the route's is {route.policy.name}: nothing is decided by it"
    else:
        try:
            figures = figures_of(route.policy, route.policy.load(state.data, route.models), route.models)
        except ContractError as error:
            words = str(error)
    return LearntState(
        route=state.route,
        context=state.context,
        policy=state.policy,
        partition=state.partition,
        epoch=state.epoch,
        append_ms=state.append_ms,
        figures=figures,
        words=words,
    )


def _unreadable(key: bytes | None, partition: int, offset: int, append_ms: int, words: str) -> LearntState:
    """Roles hold on to the newest that they could read; here it is told which one cannot be."""
    name = "" if key is None else key.decode("utf-8", "replace")
    return LearntState(
        route=name,
        context="",
        policy="",
        partition=partition,
        epoch=-1,
        append_ms=append_ms,
        figures=None,
        words=f"its snapshot at offset {offset} cannot be read: {words}",
    )
