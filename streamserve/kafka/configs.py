"""The configs of the log, as one process knows them: which routes are in force from when, what a pool is to host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from streamserve.assembly import app_rules, sections_of, with_sections
from streamserve.core.route_versions import RoutesRecord
from streamserve.core.routes import AppRules
from streamserve.errors import ConfigError, ContractError
from streamserve.kafka.codecs.configs import PROPOSED_KEY, ConfigRecord, decode_config
from streamserve.kafka.ports import Chunk
from streamserve.settings import Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InForce:
    record: ConfigRecord
    settings: Settings


class Configs:
    """Starts with the config of the file, which counts until the log has one in force."""

    def __init__(self, settings: Settings, rules: AppRules) -> None:
        """`rules`: of these settings."""
        self._delay_ms, self._keep_ms = rules.routes_delay_ms, rules.keep_ms
        self.started_with = settings
        self._in_force: list[_InForce] = []
        self._proposed: _InForce | None = None
        self.changed: list[Callable[[], None]] = []
        """Called when there is a new one."""

    @property
    def newest(self) -> Settings:
        """The newest one in force, or about to be."""
        return self._in_force[-1].settings if self._in_force else self.started_with

    @property
    def seen(self) -> int:
        """Number of the newest config, a proposed one too; 0: the log has none."""
        return max([one.record.number for one in (*self._in_force[-1:], *self._open())], default=0)

    def take(self, chunk: Chunk) -> tuple[RoutesRecord, ...]:
        """Records of the models topic; what they say of routes. What cannot be read is logged and changes nothing."""
        found: list[RoutesRecord] = []
        offsets, times = chunk.offsets.tolist(), chunk.append_ms.tolist()
        for i, value in enumerate(chunk.values):
            if value is None:
                if chunk.keys[i] == PROPOSED_KEY:
                    self._propose(None)
                continue
            try:
                record = decode_config(value, partition=chunk.at.partition, offset=offsets[i], append_ms=times[i])
                one = None if record is None else _InForce(record=record, settings=self._settings(record))
            except (ContractError, ConfigError) as error:
                _log.error("a config of the models topic is left out, routes stay as they are: %s", error)
                continue
            if one is None:
                continue
            if not one.record.in_force:
                self._propose(one)
            elif not self._in_force or one.record.offset > self._in_force[-1].record.offset:
                found.append(self._put_in_force(one))
        return tuple(found)

    def _settings(self, record: ConfigRecord) -> Settings:
        return with_sections(self.started_with, record.sections)

    def _propose(self, one: _InForce | None) -> None:
        self._proposed = one
        self._tell()

    def _put_in_force(self, one: _InForce) -> RoutesRecord:
        rules = app_rules(one.settings)
        if not self._in_force and sections_of(self.started_with) != one.record.sections:
            _log.warning("the log has config %d; it counts, not what the file says", one.record.number)
        self._in_force.append(one)
        self._forget_before(one.record.append_ms)
        _log.info("config %d: routes %s", one.record.number, ", ".join(one.settings.routes))
        self._tell()
        return RoutesRecord(
            number=one.record.number,
            routes=rules.routes,
            append_ms=one.record.append_ms,
            offset=one.record.offset,
        )

    def _tell(self) -> None:
        for told in self.changed:
            told()

    def _open(self) -> list[_InForce]:
        """The proposal, while it is newer than what is in force."""
        newest = self._in_force[-1].record.number if self._in_force else 0
        return [self._proposed] if self._proposed is not None and self._proposed.record.number > newest else []

    def to_host(self, pool: str, now_ms: int) -> dict[str, tuple[str, Settings]]:
        """Model id -> its name, and the config that says how it is loaded: of all that requests may still ask this
        pool, and of what is proposed. `now_ms`: of the broker."""
        self._forget_before(now_ms)
        found: dict[str, tuple[str, Settings]] = {}
        wanted = [one.settings for one in (*self._in_force, *self._open())]
        for settings in wanted if self._in_force else [self.started_with, *wanted]:
            hosted = settings.pools[pool].models if pool in settings.pools else ()
            found |= {settings.model_id(name): (name, settings) for name in hosted}
        return found

    def _forget_before(self, now_ms: int) -> None:
        """What no request that may still come was decided by. `now_ms`: of the broker."""
        ends = [later.record.append_ms + self._delay_ms for later in self._in_force[1:]]
        self._in_force = [
            one for i, one in enumerate(self._in_force) if i >= len(ends) or ends[i] + self._keep_ms > now_ms
        ]
