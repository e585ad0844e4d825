"""The models of a running worker process: loaded, warmed and dropped while it serves, as the configs of the log say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from streamserve.assembly import model_rules_of, model_spec, sections_of
from streamserve.core.desk import ModelRules
from streamserve.core.effects import Count
from streamserve.core.events import Event, ModelsHosted
from streamserve.errors import BrokerError, StreamserveError
from streamserve.kafka.announcing import Announcement
from streamserve.kafka.codecs.hosts import LEASE_MS, SAY_EVERY_MS, encode_hosts
from streamserve.kafka.configs import Configs
from streamserve.kafka.hosting import form_of_rows, plans_of, with_lanes
from streamserve.kafka.logs import about
from streamserve.kafka.runner import Runner
from streamserve.kafka.tasks import happens_or
from streamserve.runtimes import load
from streamserve.runtimes.base import Runtime
from streamserve.runtimes.sampling import sample_of

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
#: Between the stage's hearing that a model has gone and the end of its thread.
_LET_GO_S = 1.0


class LivePool:
    """What one process hosts. Its dictionary of runtimes is the one place that holds them, with the runner."""

    def __init__(
        self,
        pool: str,
        runtimes: dict[str, Runtime],
        configs: Configs,
        announcement: Announcement,
        *,
        runner: Runner,
        post: Callable[[Event], None],
        count: Callable[[Count], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms`: of the broker."""
        self._pool = pool
        self._runtimes = runtimes
        self._configs = configs
        self._announcement = announcement
        self._runner = runner
        self._post = post
        self._count = count
        self._now_ms = now_ms
        self._failed: dict[str, str] = {}
        self._untold = False
        self._said_ms = 0
        self._changed = asyncio.Event()
        configs.changed.append(self._changed.set)
        self.say: Callable[[Announcement], Awaitable[None]] | None = None
        """Writes what it hosts; None: nobody is told yet."""

    @property
    def announcement(self) -> Announcement:
        """What it hosts now."""
        configs = self._configs
        record = encode_hosts(
            self._pool,
            self._announcement.instance,
            sorted(self._runtimes),
            plans_of(self._runtimes),
            failed=self._failed,
            seen=configs.seen,
            config=None if configs.seen else sections_of(configs.started_with),
            lease_ms=LEASE_MS,
        )
        return replace(self._announcement, record=record)

    async def tell(self) -> None:
        """Say what it hosts now. Raises BrokerError."""
        if self.say is not None:
            now_ms = self._now_ms()
            await self.say(self.announcement)
            self._untold, self._said_ms = False, now_ms

    async def follow(self) -> None:
        """For ever: host what is to be hosted, and say it; now and then again, or it would be taken for gone."""
        while True:
            await happens_or(self._changed, _LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Load what is missing and let go of what nobody can ask for any more."""
        is_news = self._changed.is_set()
        self._changed.clear()
        wanted = self._configs.to_host(self._pool, self._now_ms())
        if is_news:
            self._failed = {}  # whoever proposes it again has mended something
        before = sorted(self._runtimes), dict(self._failed)
        for model, (name, settings) in wanted.items():
            if model not in self._runtimes and model not in self._failed:
                spec = model_spec(name, settings.models[name])
                await self._load(model, partial(load, spec, base_dir=settings.base_dir))
        gone = [model for model in self._runtimes if model not in wanted]
        kept = {model: one for model, one in self._runtimes.items() if model in wanted}
        if (sorted(kept), dict(self._failed)) != before:
            self._post(ModelsHosted(models=self._rules(kept)))
        if gone:
            await asyncio.sleep(_LET_GO_S)
            for model in gone:
                _log.info("model %s is let go", model, extra=about("unload", model=model))
                await self._runner.drop(model)
                del self._runtimes[model]
        self._untold |= is_news or (sorted(self._runtimes), self._failed) != before
        if self._untold or self._now_ms() >= self._said_ms + SAY_EVERY_MS:
            try:
                await self.tell()
            except BrokerError as error:  # it serves on; whoever deploys waits for this
                _log.warning("what this process hosts cannot be told yet: %s", error)

    def _rules(self, runtimes: Mapping[str, Runtime]) -> dict[str, ModelRules]:
        wanted = self._configs.to_host(self._pool, self._now_ms())
        named = {model: wanted[model] for model in runtimes if model in wanted}
        share = self._configs.newest.pools[self._pool].cache_bytes // max(1, len(named))
        rules = {model: model_rules_of(settings, name, share) for model, (name, settings) in named.items()}
        return with_lanes(form_of_rows(rules, runtimes), runtimes)

    async def _load(self, model: str, make: Callable[[], Runtime]) -> None:
        _log.info("loading model %s", model, extra=about("load", model=model))
        try:
            runtime = await self._runner.adopt(model, make, sample_of)
        except StreamserveError as error:
            self._failed[model] = str(error)
        except Exception as error:  # noqa: BLE001  (a model is foreign code)
            self._failed[model] = f"{type(error).__name__}: {error}"
        else:
            self._runtimes[model] = runtime
            self._count(Count(what="models", label="loaded", model=model, n=1))
            return
        self._count(Count(what="models", label="not_loaded", model=model, n=1))
        _log.error("model %s cannot be loaded; this process serves on without it: %s", model, self._failed[model])
