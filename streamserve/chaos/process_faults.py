"""Faults of processes: killed, stopped, scaled, down, with a wrong clock."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

from streamserve.chaos.scene import Fault, Options, Promise, Scene, more_of
from streamserve.supervisor.plan import RoleName

#: A killed process is replaced by its spare, which has to join its group and look up where to go on.
_KILLED_GAP_S = 2.3
_REBALANCE_S = 1.5
#: The same while as many processes start on the same cores as serve there.
_SCALED_S = 2.5
#: After a session is over: the group is balanced, and what waited is worked off.
_TAKEN_OVER_S = 2.5
#: One process stops and its spare takes its place.
_ROLLED_S = 1.5
_QUICK_HEARTBEATS = {"STREAMSERVE_GROUP__HEARTBEAT_INTERVAL_MS": "300"}
_CLOCK_S = 600.0
_MOST = 4


def _killing(role: RoleName) -> Callable[[Scene], Awaitable[None]]:
    async def kill(scene: Scene) -> None:
        scene.begins()
        scene.roles.signal(scene.first(role), signal.SIGKILL)

    return kill


async def _kill_all(scene: Scene) -> None:
    scene.begins()
    for name in scene.roles.names:
        scene.roles.signal(name, signal.SIGKILL)


def _pausing(role: Callable[[Scene], RoleName]) -> Callable[[Scene], Awaitable[None]]:
    async def pause(scene: Scene) -> None:
        name = scene.first(role(scene))
        scene.begins()
        scene.roles.signal(name, signal.SIGSTOP)
        await scene.last(scene.options.session_s + 2.0)
        scene.roles.signal(name, signal.SIGCONT)
        scene.ends()

    return pause


async def _scale(scene: Scene) -> None:
    roles = scene.roles
    scene.begins()
    for _ in range(scene.options.rounds):
        more = more_of(roles.of("worker", "aggregate"), _MOST, "worker", "aggregate")
        await roles.start(more)
        await roles.stop([plan.name for plan in more])
    scene.ends()


def _clock_wrong(ahead_s: float) -> Callable[[Scene], Awaitable[None]]:
    async def move(scene: Scene) -> None:
        """Everything moves to a second machine, whose clock is wrong."""
        roles = scene.roles
        first = [plan.name for plan in roles.of("worker", "aggregate", "learn")]
        second = more_of(roles.of("worker", "aggregate", "learn"), 2, "worker", "aggregate", "learn")
        scene.begins()
        await roles.start(second, scene.wrong_clock(ahead_s))
        await roles.stop(first)
        scene.ends()

    return move


async def _rolling(scene: Scene) -> None:
    """One process after the other, each when the one before serves again and has its spare."""
    scene.begins()
    for plan in scene.roles.of("worker", "aggregate", "learn"):
        await scene.roles.restart(plan.name)
    scene.ends()


async def _outage(scene: Scene) -> None:
    plans = scene.roles.of("worker", "aggregate", "learn")
    scene.begins()
    await scene.roles.stop(scene.roles.names, at_once=True)
    await scene.last(scene.options.outage_s)
    await scene.roles.start(plans)
    scene.ends()


def _killed(options: Options, _lasted_s: float) -> Promise:
    return Promise(gap_s=_KILLED_GAP_S, normal_s=_KILLED_GAP_S + 1.0)


def _beside(_options: Options, _lasted_s: float) -> Promise:
    return Promise(gap_s=1.0, normal_s=1.0)


def _all_killed(_options: Options, _lasted_s: float) -> Promise:
    return Promise(gap_s=4.0, normal_s=5.0)


def _paused(options: Options, lasted_s: float) -> Promise:
    """Its partitions move when its session is over; when it wakes up the group is balanced again."""
    return Promise(
        gap_s=options.session_s + _TAKEN_OVER_S,
        normal_s=lasted_s + _TAKEN_OVER_S,
        twice=int(options.rate_per_s * 0.05),
    )


def _rebalanced(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=_REBALANCE_S, normal_s=lasted_s + _REBALANCE_S)


def _scaled(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=_SCALED_S, normal_s=lasted_s + _SCALED_S)


def _rolled(_options: Options, lasted_s: float) -> Promise:
    """Nobody whose deadline is 3 s misses it."""
    return Promise(gap_s=_ROLLED_S, normal_s=lasted_s + 1.0, unanswered=0)


def _rolled_tight(options: Options, lasted_s: float) -> Promise:
    """Half a second's load for each of the two processes that answer; the learners' restart disturbs nobody."""
    return Promise(gap_s=_ROLLED_S, normal_s=lasted_s + 1.0, unanswered=int(options.rate_per_s * 0.5 * 2))


def _fresh_first(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=lasted_s + 2.0, normal_s=lasted_s + 2.0)


def _worker(_scene: Scene) -> RoleName:
    return "worker"


def _aggregate(_scene: Scene) -> RoleName:
    return "aggregate"


FAULTS = (
    Fault(
        name="kill-worker",
        does="SIGKILL of a worker; its supervisor starts it again",
        inject=_killing("worker"),
        promise=_killed,
        spares=True,
    ),
    Fault(
        name="kill-aggregator",
        does="SIGKILL of the aggregator; its supervisor starts it again",
        inject=_killing("aggregate"),
        promise=_killed,
        forms=("split",),
        spares=True,
    ),
    Fault(
        name="kill-learner",
        does="SIGKILL of the learner; its supervisor starts it again",
        inject=_killing("learn"),
        promise=_beside,
        spares=True,
    ),
    Fault(
        name="kill-all",
        does="SIGKILL of all roles at once; their supervisor starts them again",
        inject=_kill_all,
        promise=_all_killed,
        spares=True,
    ),
    Fault(
        name="pause-worker",
        does="SIGSTOP of one of two workers for 2 s longer than its session, then SIGCONT (a zombie)",
        inject=_pausing(_worker),
        promise=_paused,
        processes=2,
    ),
    Fault(
        name="pause-aggregator",
        does="SIGSTOP of one of two aggregators for 2 s longer than its session, then SIGCONT (a zombie)",
        inject=_pausing(_aggregate),
        promise=_paused,
        forms=("split",),
        processes=2,
    ),
    Fault(
        name="scale",
        does="1 -> 4 -> 1 processes of each role, several times, with 4 partitions",
        inject=_scale,
        promise=_scaled,
        settings={"STREAMSERVE_APP__PARTITIONS": "4"},
    ),
    Fault(
        name="scale-6",
        does="1 -> 4 -> 1 processes of each role, several times, with 6 partitions",
        inject=_scale,
        promise=_scaled,
        settings={"STREAMSERVE_APP__PARTITIONS": "6"},
    ),
    Fault(
        name="rolling",
        does="SIGTERM of every process, one after the other, two of each role; deadlines are 3 s",
        inject=_rolling,
        promise=_rolled,
        processes=2,
        doubled=("worker", "aggregate", "learn"),
        spares=True,
        deadline_ms=3_000,
        settings=_QUICK_HEARTBEATS,
    ),
    Fault(
        name="rolling-tight",
        does="the same with deadlines of 100 ms",
        inject=_rolling,
        promise=_rolled_tight,
        forms=("fused",),  # six processes and a broker on two cores need most of 100 ms for three hops by themselves
        processes=2,
        doubled=("worker", "aggregate", "learn"),
        spares=True,
        deadline_ms=100,
        settings={**_QUICK_HEARTBEATS, "STREAMSERVE_APP__GUARD_MS": "10"},
    ),
    Fault(
        name="clock-fast",
        does="all roles move to a machine whose clock is 10 minutes ahead",
        inject=_clock_wrong(_CLOCK_S),
        promise=_rebalanced,
    ),
    Fault(
        name="clock-slow",
        does="all roles move to a machine whose clock is 10 minutes behind",
        inject=_clock_wrong(-_CLOCK_S),
        promise=_rebalanced,
    ),
    Fault(
        name="outage",
        does="all roles down while requests go on coming, for several times the largest deadline, then up again",
        inject=_outage,
        promise=_fresh_first,
        deadline_bounded=True,
    ),
)
