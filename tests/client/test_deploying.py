"""Deploys: what a change is called, what is refused in words, and in which order records stand in the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from streamserve.assembly import sections_of
from streamserve.client import UnusableInput
from streamserve.client.changes import check_change, words_of_changes
from streamserve.client.deploying import Deployed, deploy
from streamserve.errors import TopicsDiffer
from streamserve.kafka.codecs.configs import ConfigRecord, decode_config
from streamserve.kafka.codecs.hosts import LEASE_MS, encode_hosts
from streamserve.kafka.ports import At, Columns, Record
from streamserve.settings import Settings, parse_settings
from streamserve.testing.log import ManualClock, MemoryLog
from streamserve.topics import Kind, topic_name
from tests.client.conftest import APP, PARTITIONS, MemoryApp

MODELS = topic_name(APP, Kind.MODELS)
POOLS = {"p": ["a", "b"]}


def settings_of(
    *, models: str = "", routes: dict[str, list[str]] | None = None, pools: dict[str, list[str]] = POOLS, more: str = ""
) -> Settings:
    """A config with the models of its pools."""
    lines = [f'app.name = "{APP}"', "app.epoch_delay_ms = 20", f"app.partitions = {PARTITIONS}"]
    lines += [f"pools.{pool}.models = {hosted}" for pool, hosted in pools.items()]
    lines += [f'models.{name}.source = "m:{name}"' for hosted in pools.values() for name in hosted]
    lines += [f"routes.{route}.models = {asked}" for route, asked in (routes or {"r": ["a", "b"]}).items()]
    return parse_settings("\n".join([*lines, models, more]), "app.toml")


# -- what changes --------------------------------------------------------------------------------------------------


def test_changes_are_told_one_by_one() -> None:
    before = settings_of(routes={"r": ["a", "b"], "old": ["a"]})
    after = settings_of(
        pools={"p": ["b", "c"]}, routes={"r": ["b", "c"], "new": ["c"]}, models='models.b.version = "2"'
    )
    assert words_of_changes(before, after) == [
        "model b@2 comes, in pool p",
        "model c@1 comes, in pool p",
        "model a@1 goes",
        "model b@1 goes",
        "route new comes: c@1",
        "route old goes",
        "route r changes: a@1, b@1 -> b@2, c@1",
    ]
    check_change(before, after)
    assert words_of_changes(before, settings_of(routes={"r": ["a", "b"], "old": ["a"]})) == []


def test_the_first_route_that_learns_needs_a_learner_and_it_is_said_how_to_start_one() -> None:
    learning = settings_of(more='routes.r.policy = "hedge"')
    *_, last = words_of_changes(settings_of(), learning)
    assert "streamserve learn app.toml" in last
    check_change(settings_of(), learning)
    more = settings_of(more='routes.r.policy = "hedge"\nroutes.s = { models = ["a", "b"], policy = "hedge" }')
    assert not any("learner" in words for words in words_of_changes(learning, more))
    assert not any("learner" in words for words in words_of_changes(learning, settings_of()))


def test_with_exactly_once_routes_may_come() -> None:
    once = 'app.delivery = "exactly_once"'
    before = settings_of(models=once)
    check_change(before, settings_of(models=once, routes={"r": ["a", "b"], "new": ["b"]}))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"pools": {"p": ["a", "b"], "q": ["c"]}}, r"pools\.q comes.*no longer be fused"),
        ({"more": "pools.p.processes = 3"}, r"pools\.p: only its `models` can change"),
        ({"models": "models.a.max_batch = 7"}, r"models\.a is another one but its version is still 1"),
        (
            {"more": 'routes.r.policy = "hedge"\nroutes.r.contexts = { source = "key", keyed = true }'},
            r"routes\.r: its contexts become keyed",
        ),
    ],
)
def test_what_cannot_change_while_the_app_runs_is_named(after: dict[str, object], words: str) -> None:
    with pytest.raises(UnusableInput, match=f"(?s){words}"):
        check_change(settings_of(), settings_of(**after))  # type: ignore[arg-type]


KEYED = 'routes.r.policy = "hedge"\nroutes.r.contexts = {{ source = "key", keyed = true, forget_after_ms = {} }}'


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (KEYED.format(60_000), None),
        (KEYED.format(90_000), r"routes\.r: its `forget_after_ms`"),
        (KEYED.format(60_000).replace("hedge", "exp3"), r"routes\.r: its keyed states are those of hedge"),
        ('routes.r.policy = "hedge"', r"routes\.r: its contexts are keyed"),
    ],
)
def test_of_keyed_contexts_the_models_can_change_and_what_makes_up_a_state_cannot(more: str, words: str | None) -> None:
    before = settings_of(more=KEYED.format(60_000))
    after = settings_of(pools={"p": ["a", "b", "c"]}, routes={"r": ["b", "c"]}, more=more)
    if words is None:
        check_change(before, after)
        return
    with pytest.raises(UnusableInput, match=words):
        check_change(before, after)


# -- records -------------------------------------------------------------------------------------------------------


def app_of(*hosts: Record) -> MemoryApp:
    log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=ManualClock().epoch)
    for record in hosts:
        log.append(At(MODELS, 0), Columns.of([record]))
    return MemoryApp(log)


def started_with(settings: Settings, instance: str = "0") -> Record:
    hosted = [settings.model_id(name) for name in settings.pools["p"].models]
    return encode_hosts("p", instance, hosted, config=sections_of(settings))


def configs(app: MemoryApp) -> list[ConfigRecord]:
    return [
        config
        for partition, records in app.log.records(MODELS).items()
        for one in records
        if (config := decode_config(one.value, partition=partition, offset=one.offset, append_ms=one.append_ms))
    ]


@contextlib.asynccontextmanager
async def worker(app: MemoryApp, answer: Callable[[ConfigRecord], Record]) -> AsyncIterator[None]:
    """Says what it makes of each proposal."""

    async def run() -> None:
        answered = 0
        while True:
            proposed = [config for config in configs(app) if not config.in_force]
            for config in proposed[answered:]:
                app.log.append(At(MODELS, 0), Columns.of([answer(config)]))
            answered = len(proposed)
            await asyncio.sleep(0.01)

    task = asyncio.get_running_loop().create_task(run())
    try:
        yield
    finally:
        task.cancel()


def loads_all(config: ConfigRecord) -> Record:
    models = [f"{name}@{one.get('version', '1')}" for name, one in config.sections["models"].items()]
    return encode_hosts("p", "0", models, seen=config.number)


AFTER = settings_of(pools={"p": ["a", "b", "c"]}, routes={"r": ["a", "b", "c"]})


async def test_what_runs_is_put_in_force_first_then_what_is_to_be_once_it_is_loaded() -> None:
    app = app_of(started_with(settings_of()))
    async with worker(app, loads_all):
        done = await deploy(app, AFTER)
    assert done.changes == ("model c@1 comes, in pool p", "route r changes: a@1, b@1 -> a@1, b@1, c@1")
    found = configs(app)
    assert [(one.number, one.in_force) for one in found] == [(1, True), (2, False), (2, True)]
    assert found[0].sections == sections_of(settings_of())
    assert found[2].sections == sections_of(AFTER)
    assert done.in_force_ms == found[2].append_ms + 80
    again = await deploy(app, AFTER)
    assert again == Deployed(number=2, changes=(), in_force_ms=done.in_force_ms)
    assert len(configs(app)) == 3


async def test_a_model_that_a_worker_cannot_load_changes_nothing() -> None:
    def fails(config: ConfigRecord) -> Record:
        return encode_hosts("p", "0", ["a@1", "b@1"], seen=config.number, failed={"c@1": "no such file"})

    app = app_of(started_with(settings_of()))
    async with worker(app, fails):
        with pytest.raises(UnusableInput, match=r"nothing was changed(?s:.)*p/0: no such file"):
            await deploy(app, AFTER)
    assert [one.number for one in configs(app) if one.in_force] == [1]
    keys = [one.key for records in app.log.records(MODELS).values() for one in records]
    assert keys[-1] == b"@proposed" or b"@proposed" in keys


async def test_a_process_that_does_not_answer_is_named_and_may_be_left_out() -> None:
    app = app_of(started_with(settings_of()), started_with(settings_of(), "9"))
    async with worker(app, loads_all):
        with pytest.raises(UnusableInput, match=r"p/9: lacks c@1(?s:.)*--without"):
            await deploy(app, AFTER, wait_ms=100)
        assert (await deploy(app, AFTER, without=["p/9"])).changes


async def test_a_process_that_is_gone_for_good_is_not_waited_for_and_its_record_ends() -> None:
    clock = ManualClock()
    log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=clock.epoch)
    app = MemoryApp(log)
    gone = encode_hosts("p", "9", ["a@1"], config={"another": "config"}, lease_ms=LEASE_MS)
    log.append(At(MODELS, 1), Columns.of([gone]))
    clock.advance(LEASE_MS + 1)
    log.append(At(MODELS, 0), Columns.of([started_with(settings_of())]))
    async with worker(app, loads_all):
        done = await deploy(app, AFTER)
    assert done.changes
    assert done.gone == ("p/9",)
    assert [(one.key, one.value) for one in log.records(MODELS)[1] if one.key == b"p/9"][-1] == (b"p/9", None)


async def test_workers_that_were_started_with_different_configs() -> None:
    app = app_of(started_with(settings_of()), started_with(AFTER, "1"))
    with pytest.raises(UnusableInput, match=r"p/1 differ from the rest"):
        await deploy(app, AFTER)


async def test_nobody_there() -> None:
    with pytest.raises(UnusableInput, match="no worker of this app runs"):
        await deploy(app_of(), AFTER)
    with pytest.raises(TopicsDiffer, match="has never been started"):
        await deploy(MemoryApp(MemoryLog({}, epoch=ManualClock().epoch)), AFTER)
