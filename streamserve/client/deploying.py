"""Models, pools and routes of a running app changed: proposed, loaded by the pools, then put in force by one record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from streamserve.assembly import app_rules, sections_of, with_sections
from streamserve.client.changes import check_change, words_of_changes
from streamserve.client.connection import ClientLog
from streamserve.client.failures import UnusableInput
from streamserve.client.models_topic import ModelsTopic, read_models_topic
from streamserve.client.scanning import Scanner, scanning
from streamserve.errors import BrokerError, TopicsDiffer
from streamserve.kafka.codecs.configs import PROPOSED_KEY, config_key, config_place, encode_config
from streamserve.kafka.ports import At, Columns, LogWriter, Record
from streamserve.settings import Settings
from streamserve.topics import Kind, topic_name

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What became of it."""

    number: int
    """Of the config in force."""
    changes: tuple[str, ...]
    """In words; empty: it was in force already, and nothing was written."""
    in_force_ms: int
    """Requests appended from this broker time on get it."""
    gone: tuple[str, ...] = ()
    """Members (`<pool>/<instance>`) that were not waited for: nothing was heard of them for too long. Their records are
    taken out of the topic."""


async def deploy(
    log: ClientLog,
    settings: Settings,
    *,
    wait_ms: int = 120_000,
    without: Sequence[str] = (),
) -> Deployed:
    """Put the models, pools and routes of `settings` in force, and wait until they are.

    `wait_ms`: for the pools to load what is new. `without`: members (`<pool>/<instance>`) that are gone for good and
    are not waited for; others are taken for gone when nothing was heard of them for a minute.

    Raises UnusableInput for what cannot change while the app runs, or where its pools cannot load
    it (then nothing has changed); BrokerError, TopicsDiffer.
    """
    topic = topic_name(settings.app.name, Kind.MODELS)
    async with scanning(log) as scanner:
        partitions = await scanner.lookups.partition_count(topic)
        if not partitions:
            raise TopicsDiffer(f"{log.address} has no topic {topic}: the app has never been started there")
        writer = log.writer()
        await writer.start()
        try:
            places = [At(topic, partition) for partition in range(partitions)]
            return await _Deploy(scanner, writer, settings, places=places, without=without).run(wait_ms)
        finally:
            await writer.stop()


class _Deploy:
    def __init__(
        self,
        scanner: Scanner,
        writer: LogWriter,
        settings: Settings,
        *,
        places: list[At],
        without: Sequence[str],
    ) -> None:
        self._scanner, self._writer, self._settings = scanner, writer, settings
        self._places = places
        self._place = config_place(places[0].topic, len(places))
        self._without = set(without)
        self._wanted = sections_of(settings)
        self._known_ms = 0
        """A broker time that has come."""

    async def run(self, wait_ms: int) -> Deployed:
        seen = await self._look()
        if not seen.members():
            raise UnusableInput("no worker of this app runs: start it with this config instead")
        rules = app_rules(self._settings)
        present = self._present(seen)
        number = seen.in_force[-1].number if seen.in_force else 0
        changes = words_of_changes(present, self._settings)
        if not changes:
            in_force_ms = seen.in_force[-1].append_ms + rules.routes_delay_ms if seen.in_force else 0
            return Deployed(number=number, changes=(), in_force_ms=in_force_ms)
        check_change(present, self._settings)
        if not seen.in_force:  # what older requests have been decided by, for processes that start from now on
            number = seen.highest + 1
            await self._write(encode_config(sections_of(present), number, in_force=True))
        number = max(number, seen.highest) + 1
        await self._write(encode_config(self._wanted, number, in_force=False))
        try:
            await self._wait_for_pools(number, wait_ms)
        except BaseException:
            await self._write(Record(key=PROPOSED_KEY, value=None))
            raise
        append_ms = await self._write(encode_config(self._wanted, number, in_force=True))
        in_force_ms = append_ms + rules.routes_delay_ms
        await asyncio.sleep(rules.routes_delay_ms / 1000)
        await self._forget_old(seen, append_ms - rules.keep_ms)
        gone = await self._forget_gone()
        return Deployed(number=number, changes=tuple(changes), in_force_ms=in_force_ms, gone=gone)

    def _present(self, seen: ModelsTopic) -> Settings:
        """What is in force: as the log says, else what the workers were started with."""
        if seen.in_force:
            return with_sections(self._settings, seen.in_force[-1].sections)
        said = {name: one.config for name, one in seen.members().items() if name not in self._without}
        configs = [config for config in said.values() if config is not None]
        if not configs:
            raise UnusableInput("no worker says what it was started with: they are of an older release; restart them")
        differing = [name for name, config in said.items() if config != configs[0]]
        if differing:
            raise UnusableInput(
                f"workers were started with different configs ({', '.join(sorted(differing))} differ from the rest): "
                "finish the restart first; name one that is gone for good with --without"
            )
        return with_sections(self._settings, configs[0])

    async def _wait_for_pools(self, number: int, wait_ms: int) -> None:
        """Until each member of the pools has loaded what it is to host. Raises UnusableInput, with who lacks what."""
        until = time.monotonic() + wait_ms / 1000
        while True:
            seen = await self._look()
            if seen.in_force and seen.in_force[-1].number >= number:
                raise UnusableInput(f"another deploy has put config {seen.in_force[-1].number} in force meanwhile")
            lacking, failed = self._lacking(seen, number)
            if failed:
                raise UnusableInput("nothing was changed, a model cannot be loaded:\n" + "\n".join(failed))
            if not lacking:
                return
            if time.monotonic() > until:
                raise UnusableInput(
                    f"nothing was changed, the pools were not ready in {wait_ms / 1000:g} s:\n"
                    + "\n".join(lacking)
                    + "\nIf one of them is gone for good, name it with --without; else give them longer: --wait-ms"
                )
            await asyncio.sleep(_LOOK_S)

    def _lacking(self, seen: ModelsTopic, number: int) -> tuple[list[str], list[str]]:
        """Who has not loaded all yet, and who cannot: in words."""
        lacking, failed = [], []
        for pool, hosted in self._settings.pools.items():
            members = {
                name: one
                for name, one in seen.members(self._known_ms).items()
                if one.pool == pool and name not in self._without
            }
            wanted = {self._settings.model_id(name) for name in hosted.models}
            if not members:
                lacking.append(f"pool {pool}: no process of it runs")
            for name, one in members.items():
                missing = sorted(wanted - set(one.models))
                if one.seen == number:
                    failed += [f"{name}: {one.failed[model]}" for model in missing if model in one.failed]
                if missing or one.seen < number:
                    lacking.append(f"{name}: lacks {', '.join(missing) or 'nothing, but has not answered yet'}")
        return lacking, failed

    async def _look(self) -> ModelsTopic:
        return await read_models_topic(self._scanner, self._places)

    async def _forget_gone(self) -> tuple[str, ...]:
        """One that was only away says again what it hosts."""
        gone = (await self._look()).gone(self._known_ms)
        for name, one in gone.items():
            await self._write(Record(key=name.encode(), value=None), one.at)
        return tuple(sorted(gone))

    async def _forget_old(self, seen: ModelsTopic, before_ms: int) -> None:
        """Configs that were replaced so long ago that no request is decided by them any more."""
        for old, later in zip(seen.in_force, seen.in_force[1:], strict=False):
            if later.append_ms < before_ms:
                await self._write(Record(key=config_key(old.number, in_force=True), value=None))

    async def _write(self, record: Record, at: At | None = None) -> int:
        ack = await self._writer.send(at or self._place, Columns.of([record]))
        if ack.error:
            raise BrokerError(f"a config is not in the log: {ack.error}; routes are as before")
        self._known_ms = max(self._known_ms, ack.append_ms)
        return ack.append_ms
