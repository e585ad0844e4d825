"""The models topic as it stands: who hosts what, and which configs there are. Read in this one place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from streamserve.client.failures import UnusableInput
from streamserve.client.scanning import Scanner
from streamserve.errors import ContractError
from streamserve.kafka.codecs.configs import ConfigRecord, decode_config
from streamserve.kafka.codecs.hosts import decode_hosts, is_gone
from streamserve.kafka.ports import At
from streamserve.topics.internal_values import HostsValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of a pool, by the newest that it has said."""

    hosts: HostsValue
    at: At
    said_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsTopic:
    """What stood there when it was read."""

    said: Mapping[str, Member]
    """By `<pool>/<instance>`: all that have not left in order."""
    configs: Sequence[ConfigRecord]
    """In the order of the log."""
    newest_ms: int
    """Append time of the newest record: so late it was at least, by the broker's clock."""

    @property
    def in_force(self) -> list[ConfigRecord]:
        """In the order of the log."""
        return [config for config in self.configs if config.in_force]

    @property
    def highest(self) -> int:
        """Number of any config; 0: there is none."""
        return max((config.number for config in self.configs), default=0)

    def gone(self, now_ms: int = 0) -> dict[str, Member]:
        """Those that have not been heard of for as long as they said. `now_ms`: a broker time that has come."""
        now_ms = max(now_ms, self.newest_ms)
        return {name: one for name, one in self.said.items() if is_gone(one.hosts, one.said_ms, now_ms)}

    def members(self, now_ms: int = 0) -> dict[str, HostsValue]:
        """The others."""
        gone = self.gone(now_ms)
        return {name: one.hosts for name, one in self.said.items() if name not in gone}


async def read_models_topic(scanner: Scanner, places: Collection[At]) -> ModelsTopic:
    """These partitions of it. Raises UnusableInput for a record that another release has written, BrokerError."""
    said: dict[str, Member] = {}
    configs: list[ConfigRecord] = []
    newest_ms = 0
    for at in places:
        async for record in scanner.read(at, *await scanner.bounds(at)):
            newest_ms = max(newest_ms, record.append_ms)
            key = (record.key or b"").decode("utf-8", "replace")
            said.pop(key, None)
            try:
                hosts = decode_hosts(record.value, f"{at.topic} {at.partition}-{record.offset}")
                config = decode_config(
                    record.value, partition=at.partition, offset=record.offset, append_ms=record.append_ms
                )
            except ContractError as error:
                raise UnusableInput(f"the models topic has a record that this release cannot read: {error}") from None
            if hosts is not None:
                said[key] = Member(hosts=hosts, at=at, said_ms=record.append_ms)
            if config is not None:
                configs.append(config)
    return ModelsTopic(said=said, configs=configs, newest_ms=newest_ms)
