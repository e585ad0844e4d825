"""The roles of an app as `streamserve up` runs them: real processes under its keepers, which start again what dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from streamserve.errors import StreamserveError
from streamserve.supervisor.children import Child, Household, child_environment
from streamserve.supervisor.news import ChildFacts, News, Snapshot, State
from streamserve.supervisor.plan import ProcessPlan, RoleName, program

_STOP_S = 9.5


class _Heard:
    """What the keepers tell, in order."""

    def __init__(self) -> None:
        self.news_so_far: list[News] = []

    def news(self, news: News) -> None:
        self.news_so_far.append(news)

    def status(self, snapshot: Snapshot) -> None:
        """Nothing: not asked for here."""

    def heard(self, name: str, line: str) -> None:
        """Nothing: it is in the process's log."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    child: Child
    keeping: asyncio.Task[None]
    hurry: asyncio.Event


class Roles:
    """Every process of an app. Made within the event loop."""

    def __init__(self, *, config: Path, folder: Path, servers: str, settings: Mapping[str, str], spares: bool) -> None:
        """`settings`: variables that override the config. `spares`: a loaded process waits behind each."""
        self._heard = _Heard()
        self._house = Household(
            program=program(),
            config=config,
            folder=folder,
            environment={**child_environment(servers), **settings},
            outlet=self._heard,
            spares=spares,
        )
        self._house.may_serve.set()
        self._kept: dict[str, _Kept] = {}

    @property
    def names(self) -> list[str]:
        return list(self._kept)

    def of(self, *roles: RoleName) -> list[ProcessPlan]:
        """What runs of these roles, in the order in which it was started."""
        return [kept.child.plan for kept in self._kept.values() if kept.child.plan.role in roles]

    def facts(self, name: str) -> ChildFacts:
        return self._kept[name].child.facts

    @property
    def news(self) -> list[News]:
        """What has happened to the processes, for people."""
        return self._heard.news_so_far

    async def start(self, plans: Iterable[ProcessPlan], environment: Mapping[str, str] | None = None) -> None:
        """Start these, and wait until all serve. Raises what kept one from it."""
        house = self._house
        if environment:
            house = replace(house, environment={**house.environment, **environment})
        new = []
        for plan in plans:
            child = Child(plan, house)
            kept = _Kept(child=child, keeping=asyncio.ensure_future(child.keep()), hurry=asyncio.Event())
            self._kept[plan.name] = kept
            new.append(kept)
        await asyncio.gather(*(self._served(kept) for kept in new))

    async def have_spares(self) -> None:
        """Wait until a loaded process waits behind each, as when the app has run for a while."""
        self._house.spares_wanted.set()
        await self.until(lambda: all(kept.child.facts.has_spare for kept in self._kept.values()), "spares are loaded")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the process that runs under this name now."""
        pid = self.facts(name).pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def restart(self, name: str) -> None:
        """SIGTERM, and wait until it serves again and a spare waits behind it."""
        restarts = self.facts(name).restarts
        self.signal(name, signal.SIGTERM)

        def again() -> bool:
            facts = self.facts(name)
            return facts.restarts > restarts and facts.state is State.SERVING and facts.has_spare

        await self.until(again, f"{name} serves again")

    async def stop(self, names: Iterable[str], *, at_once: bool = False) -> None:
        """Stop these in order, or with SIGKILL; they are not started again."""
        stopping = [self._kept.pop(name) for name in names]
        for kept in stopping:
            if at_once:
                kept.hurry.set()
        await asyncio.gather(*(kept.child.stop(_STOP_S, kept.hurry) for kept in stopping))
        for kept in stopping:
            kept.keeping.cancel()
        await asyncio.gather(*(kept.keeping for kept in stopping), return_exceptions=True)

    async def until(self, true: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Wait for a state of the processes. Raises StreamserveError where it does not come, or a keeper gives up."""
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    self._raise_if_given_up()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise StreamserveError(f"waited {timeout_s:.0f} s in vain until {what}; logs in {self.logs}") from None

    @property
    def logs(self) -> Path:
        return self._house.folder / "logs"

    def _raise_if_given_up(self) -> None:
        for kept in self._kept.values():
            if kept.keeping.done():
                kept.keeping.result()

    async def _served(self, kept: _Kept) -> None:
        serving = asyncio.ensure_future(kept.child.served.wait())
        await asyncio.wait({serving, kept.keeping}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if kept.keeping.done():
            kept.keeping.result()
