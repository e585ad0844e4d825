"""Faults of the broker, of the network to it, and of topics."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from streamserve.chaos.scene import Fault, Options, Promise, Scene
from streamserve.kafka.clients import ANSWER_MS
from streamserve.topics.names import Kind

if TYPE_CHECKING:
    from streamserve.chaos.load import Hand

_RECOVERY_S = 3.0
#: What a process that is cut off has open is still written by it, into sockets whose content arrives afterwards.
_OPEN_S = 0.1
_DISK_S = 30.0
_SLOW_MS = 50.0
_SLOW_S = 5.0
_RESETS = 8
_RESET_EVERY_S = 0.5
_UNREAD_S = 1.0
#: Clients look for new partitions every 10 s.
_SEEN_S = 30.0
_GROWN_BY = 2
_TOPICS_DIFFER = 5
_OTHERS = (
    Kind.ANSWERS,
    Kind.PREDICTIONS,
    Kind.FEEDBACK,
    Kind.OUTCOMES,
    Kind.EPOCHS,
    Kind.POLICY,
    Kind.CONTEXTS,
    Kind.MODELS,
    Kind.INSIGHTS,
    Kind.DLQ,
)


async def _kill_broker(scene: Scene) -> None:
    scene.begins()
    await scene.cluster.kill()
    await scene.cluster.start_again()
    scene.ends()


async def _broker_away(scene: Scene) -> None:
    scene.begins()
    await scene.cluster.kill()
    await scene.last(scene.options.session_s + 4.0)
    await scene.cluster.start_again()
    scene.ends()


async def _kill_leader(scene: Scene) -> None:
    leader = scene.hand.leader(scene.topic(Kind.REQUESTS), 0)
    scene.begins()
    await scene.cluster.kill(leader)


async def _fill_disk(scene: Scene) -> None:
    scene.begins()
    scene.cluster.fill_disk()
    ended = await scene.cluster.ended(_DISK_S)
    scene.expect(ended, f"the broker has not noticed for {_DISK_S:.0f} s that it cannot write")
    await scene.cluster.kill()
    await scene.cluster.start_again()
    scene.ends()


async def _cut(scene: Scene) -> None:
    """Shorter than the session: nobody loses a partition."""
    scene.begins()
    scene.proxy.hold()
    await scene.last(scene.options.session_s / 2)
    scene.proxy.release()
    scene.ends()


async def _cut_one(scene: Scene) -> None:
    """Longer than the session: what it had is the other's by then."""
    scene.begins()
    scene.proxy.hold()
    await scene.last(scene.options.session_s + 2.0)
    scene.proxy.release()
    scene.ends()


async def _half_open(scene: Scene) -> None:
    scene.begins()
    scene.proxy.half_open()


async def _slow(scene: Scene) -> None:
    scene.begins()
    scene.proxy.delay_ms = _SLOW_MS
    await scene.last(_SLOW_S)
    scene.proxy.delay_ms = 0.0
    scene.ends()


async def _resets(scene: Scene) -> None:
    scene.begins()
    for _ in range(_RESETS):
        scene.proxy.drop()
        await scene.last(_RESET_EVERY_S)
    scene.ends()


async def _truncate(scene: Scene) -> None:
    """Roles are held for a moment, so that there is something that they have not read."""
    names = [plan.name for plan in scene.roles.of("worker", "aggregate")]
    scene.begins()
    for name in names:
        scene.roles.signal(name, signal.SIGSTOP)
    await scene.last(_UNREAD_S)

    def truncate() -> None:
        scene.deleted_below = scene.hand.truncate(scene.topic(Kind.REQUESTS), scene.settings.app.partitions)

    await scene.blocking(truncate)
    for name in names:
        scene.roles.signal(name, signal.SIGCONT)
    scene.ends()


async def _grow(scene: Scene) -> None:
    """The requests topic first, which is the wrong order; then what the roles say is needed."""
    hand, grown = scene.hand, scene.settings.app.partitions + _GROWN_BY
    plans = scene.roles.of("worker", "aggregate", "learn")
    readers = {plan.name for plan in plans if plan.role != "learn"}
    scene.begins()
    await scene.blocking(lambda: hand.raise_partitions(scene.topic(Kind.REQUESTS), grown))
    scene.load.partitions = grown

    def refused() -> set[str]:
        told = [news for news in scene.roles.news if news.facts.get("exit_code") == _TOPICS_DIFFER]
        return {str(news.facts["name"]) for news in told if "partitions" in news.words}

    await scene.roles.until(lambda: refused() >= readers, "every role has stopped and said why", _SEEN_S)
    await scene.roles.stop(scene.roles.names)
    await scene.blocking(lambda: _grow_others(scene, hand, grown))
    scene.roles = scene.restarted({"STREAMSERVE_APP__PARTITIONS": str(grown)})
    await scene.roles.start(plans)
    scene.answers.follow(grown)
    scene.ends()


def _grow_others(scene: Scene, hand: Hand, partitions: int) -> None:
    for kind in _OTHERS:
        hand.raise_partitions(scene.topic(kind), partitions)


def _broker_back(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=lasted_s + _RECOVERY_S, normal_s=lasted_s + _RECOVERY_S + 1.0)


def _failed_over(_options: Options, _lasted_s: float) -> Promise:
    """Until the dead broker is fenced; 3.5 s where it was the active controller as well."""
    return Promise(gap_s=3.5 + _RECOVERY_S, normal_s=4.5 + _RECOVERY_S)


def _cut_off(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=lasted_s + 1.5, normal_s=lasted_s + 2.0)


def _forgotten(_options: Options, _lasted_s: float) -> Promise:
    """Until an answer has been waited for long enough, and the group is joined again."""
    return Promise(gap_s=ANSWER_MS / 1000 + 2.0, normal_s=ANSWER_MS / 1000 + 2.0)


def _taken_over(options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=options.session_s + 2.5, normal_s=lasted_s + 2.5, twice=int(options.rate_per_s * _OPEN_S))


def _slowed(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=1.0, normal_s=lasted_s + 1.0)


def _reset(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=2.0, normal_s=lasted_s + 2.0)


def _truncated(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=lasted_s + 1.5, normal_s=lasted_s + 1.5, deletes=True)


def _grown(_options: Options, lasted_s: float) -> Promise:
    return Promise(gap_s=lasted_s + 2.0, normal_s=lasted_s + 3.0)


FAULTS = (
    Fault(
        name="kill-broker",
        does="SIGKILL of the broker, started again at once",
        inject=_kill_broker,
        promise=_broker_back,
    ),
    Fault(
        name="broker-away",
        does="SIGKILL of the broker, started again when it was away for 4 s longer than a session",
        inject=_broker_away,
        promise=_broker_back,
    ),
    Fault(
        name="kill-leader",
        does="SIGKILL of one of three brokers, the leader of a partition; it does not come back",
        inject=_kill_leader,
        promise=_failed_over,
        nodes=3,
        after_s=9.0,
    ),
    Fault(
        name="disk-full",
        does="every write of the broker fails until it ends of it; started again with room on its disk",
        inject=_fill_disk,
        promise=_broker_back,
    ),
    Fault(
        name="cut",
        does="nothing gets through between roles and broker for half a session",
        inject=_cut,
        promise=_cut_off,
        proxied="all",
    ),
    Fault(
        name="cut-one",
        does="one of two processes of each role is cut off for 2 s longer than its session (a zombie)",
        inject=_cut_one,
        promise=_taken_over,
        proxied="one",
        processes=2,
    ),
    Fault(
        name="half-open",
        does="the broker's side of every connection of the roles is gone, and they are not told",
        inject=_half_open,
        promise=_forgotten,
        proxied="all",
        after_s=12.0,
    ),
    Fault(
        name="slow-link",
        does=f"{_SLOW_MS:.0f} ms more each way between roles and broker, for {_SLOW_S:.0f} s",
        inject=_slow,
        promise=_slowed,
        proxied="all",
    ),
    Fault(
        name="resets",
        does=f"every connection of the roles is reset, {_RESETS} times, every {_RESET_EVERY_S} s",
        inject=_resets,
        promise=_reset,
        proxied="all",
    ),
    Fault(
        name="truncate",
        does="DeleteRecords of all requests in the log, some of them not read yet",
        inject=_truncate,
        promise=_truncated,
    ),
    Fault(
        name="grow",
        does="partitions of the requests topic are raised from 4 to 6; then what the roles say is needed is done",
        inject=_grow,
        promise=_grown,
        settings={"STREAMSERVE_APP__PARTITIONS": "4"},
    ),
)
