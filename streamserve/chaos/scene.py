"""What a fault is, and what it has to work with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from streamserve.chaos.account import Account
from streamserve.chaos.app import Form
from streamserve.errors import ConfigError
from streamserve.settings import Settings
from streamserve.supervisor.plan import ProcessPlan, RoleName
from streamserve.topics.names import Kind, topic_name

if TYPE_CHECKING:  # what faults there are can be told without the client that sends the load
    from streamserve.chaos.cluster import Cluster
    from streamserve.chaos.load import Answers, Hand, Load
    from streamserve.chaos.processes import Roles
    from streamserve.chaos.proxy import Proxy

FORMS: tuple[Form, ...] = ("fused", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How large a run is."""

    rate_per_s: float = 1_000.0
    before_s: float = 3.0
    """Load before the fault."""
    after_s: float = 6.0
    """Load after it was mended."""
    session_ms: int = 6_000
    rounds: int = 5
    """Of scaling out and in."""
    outage_s: float = 12.0
    patience: float = 1.0
    """Limits on time are multiplied by it: machines that run tests are shared."""

    @property
    def session_s(self) -> float:
        return self.session_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Limits. Nothing is ever lost, so that is no limit here."""

    gap_s: float
    """Longest time without an answer in time in a partition."""
    normal_s: float
    """From the fault's begin until service is as before."""
    twice: int = 0
    """Requests with a second terminal record, where the default delivery cannot exclude one."""
    unanswered: int | None = None
    """Requests that got the default or `expired`; None: not limited."""
    deletes: bool = False
    """The fault deletes requests that nobody has read."""


class Scene:
    """A running app under load, and the hands that do things to it."""

    def __init__(
        self,
        *,
        settings: Settings,
        options: Options,
        cluster: Cluster,
        roles: Roles,
        load: Load,
        answers: Answers,
        hand: Hand,
        proxy: Proxy,
        restarted: Callable[[Mapping[str, str]], Roles],
        wrong_clock: Callable[[float], Mapping[str, str]],
    ) -> None:
        """`restarted`: the same app with other settings, its processes yet to be started. `wrong_clock`: seconds ahead
        -> environment of a process."""
        self.settings, self.options = settings, options
        self.cluster, self.roles, self.load, self.answers, self.hand = cluster, roles, load, answers, hand
        self.proxy, self.restarted, self.wrong_clock = proxy, restarted, wrong_clock
        self.began_ms = self.ended_ms = 0.0
        self.deleted_below: Mapping[int, int] = {}
        """Partition -> first request that was not deleted from the log."""
        self.broken: list[str] = []
        """Promises of this fault alone that were not kept, in words."""

    def begins(self) -> None:
        """The fault is done now."""
        self.began_ms = self.ended_ms = time.time() * 1000

    def ends(self) -> None:
        """Whatever caused the trouble is over; without a call the fault was over at once."""
        self.ended_ms = time.time() * 1000

    @property
    def lasted_s(self) -> float:
        return (self.ended_ms - self.began_ms) / 1000

    def topic(self, kind: Kind) -> str:
        return topic_name(self.settings.app.name, kind)

    def first(self, role: RoleName) -> str:
        """Name of the first process of a role. Raises ConfigError where the app has none."""
        found = self.roles.of(role)
        if not found:
            raise ConfigError(f"this app has no process of the role {role!r}: the fault cannot be done to it")
        return found[0].name

    def expect(self, kept: bool, words: str) -> None:
        """Note a promise that was not kept."""
        if not kept:
            self.broken.append(words)

    async def last(self, seconds: float) -> None:
        """Let the fault last."""
        await asyncio.sleep(seconds)

    async def blocking(self, call: Callable[[], object]) -> None:
        await asyncio.to_thread(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong."""

    name: str
    does: str
    """What is done, for people."""
    inject: Callable[[Scene], Awaitable[None]]
    """Does it, calls `begins` and, where it lasts, `ends`."""
    promise: Callable[[Options, float], Promise]
    """From the options, and the seconds from `begins` to `ends`."""
    forms: tuple[Form, ...] = FORMS
    nodes: Literal[1, 3] = 1
    processes: int = 1
    """Of each role that answers requests (`doubled`)."""
    doubled: tuple[RoleName, ...] = ("worker", "aggregate")
    spares: bool = False
    """Loaded processes wait to take a dead one's place, as under `streamserve up`."""
    proxied: Literal["none", "all", "one"] = "none"
    """Which processes reach the broker through the proxy; `one`: the second of each role."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables that override the config."""
    after_s: float = 0.0
    """Load after it lasts at least so long."""
    deadline_ms: int | None = None
    """Of every route, instead of the config's."""
    deadline_bounded: bool = False
    """The app's largest deadline is made small, so that a short outage is a long one."""


def more_of(plans: Iterable[ProcessPlan], processes: int, *roles: RoleName) -> list[ProcessPlan]:
    """Further processes of these roles, up to so many of each pool (or role)."""
    found = [plan for plan in plans if plan.role in roles]
    have: dict[tuple[RoleName, str | None], set[int]] = {}
    for plan in found:
        have.setdefault((plan.role, plan.pool), set()).add(plan.instance)
    return [
        ProcessPlan(role=role, instance=instance, pool=pool)
        for (role, pool), instances in have.items()
        for instance in range(processes)
        if instance not in instances
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One fault done once."""

    fault: str
    form: str
    rate_per_s: float
    lasted_s: float
    account: Account
    promise: Promise
    load_lag_s: float
    broken: tuple[str, ...]
    """Promises that were not kept, in words; empty: all were."""
    logs: str
