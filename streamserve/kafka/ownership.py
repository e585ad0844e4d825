"""Takes over and gives up partitions, and commits.

The group tells when (`assigned`, `revoked`); what a new owner needs is looked up by `takeover`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from streamserve.core.effects import Count
from streamserve.errors import BrokerError, ContractError, StreamserveError, TopicsDiffer
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.lateness import Lateness
from streamserve.kafka.loop import StageLoop
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.once import ExactlyOnce
from streamserve.kafka.plan import Plan
from streamserve.kafka.ports import At, Committed, GroupReader, LogLookups, LogReader, LogWriter
from streamserve.kafka.sweeper import Skipped, Sweeper
from streamserve.kafka.takeover import TakeOver
from streamserve.kafka.tasks import ended

_log = logging.getLogger(__name__)

MAX_METADATA_BYTES = 4_096
_RETRY_S = 0.2
_RETRY_MAX_S = 2.0
_RETAKE_WAIT_S = 0.02
_SHUT_OUT_WAIT_S = 1.0
_SOON_MS = 10_000
#: A loop that could not run for this part of a session may be on its way to losing its partitions.
_LATE_PARTS = 3


class Ownership:
    """Keeper of the partitions of one process."""

    def __init__(
        self,
        *,
        plan: Plan,
        loop: StageLoop,
        clock: BrokerClock,
        metrics: RoleMetrics,
        group_reader: GroupReader,
        followed_reader: LogReader | None,
        predecessors: TakeOver,
        lookups: LogLookups,
        writer: LogWriter,
        ready: Callable[[Collection[int]], Awaitable[None]] | None = None,
        sweeper: Sweeper | None = None,
        once: ExactlyOnce | None = None,
    ) -> None:
        """`sweeper`: gives what was passed over its records; None where nobody waits for any."""
        self._plan = plan
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._group = group_reader
        self._followed = followed_reader
        self._predecessors = predecessors
        self._lookups = lookups
        self._writer = writer
        self._ready = ready
        self._sweeper = sweeper
        self._once = once
        if once is not None:
            once.fences.on_lost = self.lost
        self.holds_commit: Callable[[int], bool] = lambda _number: False
        """Whether something that a commit would pass over is still on its way to the log."""
        self._retakes: dict[int, asyncio.Task[None]] = {}
        self._losses: dict[int, tuple[float, float]] = {}
        """When a partition was last lost, and how long the next loss soon after waits."""
        self._takeover: asyncio.Task[None] | None = None
        self._died: asyncio.Queue[BaseException] = asyncio.Queue()
        self._followed_at: dict[At, int] = {}
        self._committed: dict[int, tuple[int, Skipped | None]] = {}
        self._commit_lock = asyncio.Lock()
        self._heard_at_ms = clock.monotonic_ms()
        """When the newest commit that the group took was asked for."""
        self._lateness = Lateness(clock.monotonic_ms, plan.lease_ms / _LATE_PARTS)
        self._late_at_ms: float | None = None
        """The loop was found to be late then, and the group has not been heard from since."""
        self._ask_now = asyncio.Event()
        self.called_meanwhile: Callable[[float], Sequence[str]] = lambda _gap_ms: ()
        """Models that had a call in a thread of this process for most of the last so many milliseconds."""
        self.on_begun: Callable[[Collection[int]], None] = lambda _numbers: None
        """Told of partitions that have become ours, when the stage knows."""
        self.on_ended: Callable[[Collection[int]], None] = lambda _numbers: None
        """Told of partitions that are not ours any more."""
        self.joined = asyncio.Event()
        """The group has given us a first assignment, maybe an empty one."""
        loop.may_act = self.holds_lease

    # what the group says

    async def assigned(self, partitions: frozenset[At]) -> None:
        """Must return at once: heartbeats start only afterwards. The take-over goes on as a task."""
        self.forget(list(self._loop.ledgers))  # a member that was thrown out is not told so
        await self._end_retakes()
        # It may be an old answer that has lain in a socket while this process was stopped: only a commit tells.
        self._heard_at_ms, self._late_at_ms = float("-inf"), None
        self._metrics.rebalanced(len(partitions))
        numbers = sorted(at.partition for at in partitions)
        if not numbers:
            self.joined.set()
            return
        self._takeover = asyncio.get_running_loop().create_task(self._take_over(numbers), name="take over")
        self._takeover.add_done_callback(self._takeover_ended)

    async def revoked(self, partitions: frozenset[At]) -> None:
        """Finish, commit, forget: one deadline for all of it."""
        until_ms = self._clock.monotonic_ms() + self._plan.revoke_budget_ms
        numbers = [at.partition for at in partitions]
        await self.give_up(numbers, until_ms)

    async def give_up(self, numbers: Collection[int], until_ms: float) -> None:
        """Leave the rest of the budget, at least a quarter of it, to the commit. Nothing is taken over any more."""
        if self._takeover is not None:
            await ended(self._takeover)
            self._takeover = None
        await self._end_retakes()
        self._loop.close_to_new(numbers)
        if self._sweeper is not None:
            self._sweeper.loop.close_to_new(numbers)
        reserve_ms = self._plan.revoke_budget_ms / 4
        if self.holds_lease():  # else somebody else has them already
            await self._loop.finished(numbers, until_ms - reserve_ms)
            if self._sweeper is not None:
                await self._sweeper.loop.finished(numbers, until_ms - reserve_ms)
        try:
            left_s = max(reserve_ms, until_ms - self._clock.monotonic_ms()) / 1000
            await asyncio.wait_for(self.commit(numbers), left_s)
        except (TimeoutError, BrokerError) as error:
            _log.warning("partitions %s are given up without a last commit: %s", sorted(numbers), error)
        self.forget(numbers)

    def forget(self, numbers: Collection[int]) -> None:
        self._loop.end(numbers)
        self.on_ended(numbers)
        if self._sweeper is not None:
            self._sweeper.drop(numbers)
        if self._once is not None:
            self._once.forget(numbers)
        for number in numbers:
            self._committed.pop(number, None)
            if self._plan.predictions is not None and self._once is None:
                self._writer.drop(At(self._plan.predictions, number))
        self._followed_at = {at: o for at, o in self._followed_at.items() if at.partition not in numbers}
        self._follow()

    # taking over

    def lost(self, number: int, shut_out: bool) -> None:
        """It is not known what of a partition's is in the log, or (`shut_out`) another owner has taken it. Nothing more
        is decided for it until it is taken over anew, which we may do only while the group says that it is ours."""
        if number not in self._loop.ledgers:
            return
        _log.warning("partition %d: %s", number, "another owner has taken it" if shut_out else "taken over anew")
        self._metrics.lost(shut_out=shut_out)
        self._group.pause([At(self._plan.driving, number)])
        self.forget([number])
        now_ms, (before_ms, wait_s) = self._clock.monotonic_ms(), self._losses.get(number, (0.0, 0.0))
        # Who was shut out gives the group time to say so: two who take from each other in turn help nobody.
        wait_s = max(_SHUT_OUT_WAIT_S if shut_out else _RETAKE_WAIT_S, wait_s if now_ms - before_ms < _SOON_MS else 0.0)
        self._losses[number] = (now_ms, min(_RETRY_MAX_S, wait_s * 2))
        task = asyncio.get_running_loop().create_task(self._retake(number, wait_s), name=f"retake {number}")
        task.add_done_callback(self._takeover_ended)
        self._retakes[number] = task

    async def _retake(self, number: int, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        await self._take_over([number], anew=True)

    async def _end_retakes(self) -> None:
        for task in self._retakes.values():
            await ended(task)
        self._retakes.clear()

    async def _is_ours(self, numbers: list[int]) -> bool:
        """Ask the group, by a commit that changes nothing: it takes one from the owner only."""
        partitions = [At(self._plan.driving, number) for number in numbers]
        found = await self._lookups.committed(self._plan.group, partitions)
        starts = await self._lookups.starts(partitions)
        same = {at: found.get(at, Committed(offset=-1, metadata="")) for at in partitions}
        none_yet = {at: Committed(offset=starts[at], metadata="") for at, c in same.items() if c.offset < 0}
        return await self._group.commit(same | none_yet)

    async def _take_over(self, numbers: list[int], *, anew: bool = False) -> None:
        self._refuse_undeclared(numbers)
        wait_s = _RETRY_S
        while True:
            try:
                if anew and self._once is not None and not await self._is_ours(numbers):
                    _log.info("partitions %s are left to the group to give", numbers)
                    return
                anew = True
                found = await self._predecessors.look_up(numbers)
                if self._ready is not None:
                    await self._ready(numbers)
            except BrokerError as error:
                _log.warning("cannot take over partitions %s yet: %s", numbers, error)
                await asyncio.sleep(wait_s)
                wait_s = min(_RETRY_MAX_S, wait_s * 2)
            else:
                break
        # That look-ups were answered says nothing of the group: who was stopped meanwhile has to hear from it first.
        self._loop.begin(found.resumes)
        self.on_begun(numbers)
        if self._sweeper is not None and found.skipped:
            self._sweeper.take(found.skipped)
        self._followed_at.update(found.followed)
        self._follow()
        self._group.begin(found.driving)
        self.joined.set()
        _log.info("own partitions %s", numbers)
        if not self.holds_lease():  # ask at once instead of at the next turn
            with contextlib.suppress(BrokerError):
                await self.commit(numbers, also_unchanged=True)

    def _refuse_undeclared(self, numbers: list[int]) -> None:
        """Raise TopicsDiffer for a partition that the other topics lack: what is asked there has nowhere to go."""
        declared, found = self._plan.partitions, numbers[-1] + 1
        if declared is None or found <= declared:
            return
        raise TopicsDiffer(
            f"{self._plan.driving} has {found} partitions or more by now, declared are {declared}; this process stops. "
            f"Nothing is lost: raise the app's other topics to the same number of partitions, set `[app] partitions` "
            "to it in the config, and start again. Next time raise the requests topic last"
        )

    def _takeover_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            error = task.exception()
        elif task.cancelling():  # we have ended it
            error = None
        else:
            error = StreamserveError("a take-over was ended by something that was cancelled in it")
        if error is not None:
            self._died.put_nowait(error)

    async def watch(self) -> None:
        """Run until a take-over dies, and raise what it died of: its partitions would be served by nobody."""
        raise await self._died.get()

    def _follow(self) -> None:
        if self._followed is not None:
            self._followed.read(self._followed_at)

    # committing

    def holds_lease(self) -> bool:
        """Whether the group was heard from lately, and since this process was last late.

        Without partitions there is nothing to protect.
        """
        gap_ms = self._lateness.seen()
        if not self._loop.ledgers:
            return True
        if gap_ms:
            self._is_late(gap_ms)
        if self._late_at_ms is not None:
            if self._heard_at_ms < self._late_at_ms:
                return False
            self._late_at_ms = None
        return self._clock.monotonic_ms() - self._heard_at_ms < self._plan.lease_ms

    async def keep_time(self) -> None:
        """Notice, for ever, that the loop could not run for too long."""
        await self._lateness.tick(self.holds_lease)

    def _is_late(self, gap_ms: float) -> None:
        self._late_at_ms = self._clock.monotonic_ms()
        self._ask_now.set()
        models = self.called_meanwhile(gap_ms)
        for model in models or ("",):
            self._metrics.count(Count(what="loop_late", label=model, n=1))
        words = "no model was called meanwhile: was the process stopped, or the machine overloaded?"
        if models:
            tables = ", ".join(f"[models.{model.partition('@')[0]}]" for model in models)
            words = (
                f"called in a thread meanwhile: {', '.join(models)}. A call that holds the interpreter's lock stops "
                f'everything else; to isolate it set {tables} isolation = "process"'
            )
        _log.warning(
            "the loop could not run for %.0f ms, more than a third of the session: nothing is sent until the group "
            "has been heard from; %s",
            gap_ms,
            words,
        )

    async def commit_forever(self) -> None:
        """Commit what moved; now and then also what did not, since a commit is how this process hears of its group."""
        quiet_ms = self._plan.lease_ms / 4
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ask_now.wait(), self._plan.commit_interval_ms / 1000)
            self._ask_now.clear()
            silent = self._late_at_ms is not None or self._clock.monotonic_ms() - self._heard_at_ms > quiet_ms
            try:
                await self.commit(list(self._loop.ledgers), also_unchanged=silent)
                if self._once is not None:
                    await self._once.fences.refresh()
            except BrokerError as error:
                _log.warning("%s; tried again at the next turn", error)

    async def commit(self, numbers: Collection[int], *, also_unchanged: bool = False) -> None:
        """Commit what the ledgers allow. Raises BrokerError when the broker does not answer."""
        async with self._commit_lock:
            wanted: dict[int, Committed] = {}
            moved: dict[int, tuple[int, Skipped | None]] = {}
            held: list[int] = []
            for number in numbers:
                ledger = self._loop.ledgers.get(number)
                if ledger is None:
                    continue
                if self.holds_commit(number):
                    held.append(number)
                    continue
                offset = ledger.committable()
                left = None if self._sweeper is None else self._sweeper.left(number)
                if self._committed.get(number) == (offset, left) and not also_unchanged:
                    continue
                words = _with_skipped(self._loop.stage.commit_metadata(number), left)
                moved[number] = (offset, left)
                if len(words.encode()) > MAX_METADATA_BYTES:
                    raise ContractError(f"commit metadata is above {MAX_METADATA_BYTES} bytes: {words[:80]}...")
                wanted[number] = Committed(offset=offset, metadata=words)
            asked_at_ms = self._clock.monotonic_ms()
            if wanted:
                taken = await self._group.commit({At(self._plan.driving, n): c for n, c in wanted.items()})
            elif held and also_unchanged:  # without a word from the group what holds the commit would never be sent
                taken = await self._is_ours(sorted(held))
            else:
                return
            if taken:
                self._heard_at_ms = max(self._heard_at_ms, asked_at_ms)  # the answer may have waited for us
                self._committed.update({n: now for n, now in moved.items() if n in self._loop.ledgers})


def _with_skipped(words: str, left: Skipped | None) -> str:
    """A stage's words, with the range that is still to be swept."""
    return words if left is None or not words else f'{words[:-1]},"skipped":{left.words()}}}'
