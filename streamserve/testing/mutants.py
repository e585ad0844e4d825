"""Planted faults: each breaks one thing of the product while it is entered, as a careless change could.

They prove that the simulator finds bugs (`streamserve simulate --fault NAME`). The product has no switch for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamserve.core.desk import Desk
from streamserve.core.effects import EmitPredictions, Settle, settles
from streamserve.core.epochs import EpochTable
from streamserve.core.events import Assigned, ProduceFailed
from streamserve.core.ledger import Ledger
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.join import JoinStage
from streamserve.core.stages.join_partition import Partition
from streamserve.core.stages.update import UpdateStage
from streamserve.core.stages.update_state import OwnedOutcomes
from streamserve.core.takeover import Ownership as Takeover
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.loop import StageLoop
from streamserve.kafka.ownership import Ownership
from streamserve.kafka.perform import Performer
from streamserve.kafka.ports import Ack
from streamserve.kafka.takeover import TakeOver
from streamserve.testing.mutants_choices import CHOICES
from streamserve.testing.mutants_delivery import PLANTED, patched
from streamserve.testing.simulator.models import SimulatedModel


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault that can be planted."""

    name: str
    words: str
    plant: Callable[[], AbstractContextManager[None]]


def _commit_before_produce() -> AbstractContextManager[None]:
    """Requests are settled when their terminal record is sent, not when it is acknowledged."""

    def make(original: Any) -> Any:
        def perform(self: Performer, effect: Any) -> None:
            original(self, effect)
            if isinstance(effect, EmitPredictions):
                for settle in settles(effect.predictions.partition, effect.predictions.offsets):
                    original(self, settle)

        return perform

    return patched(Performer, "perform", make)


def _ledger_off_by_one() -> AbstractContextManager[None]:
    """The commit is one past the lowest open request."""

    def make(original: Any) -> Any:
        def committable(self: Ledger) -> int:
            return int(original(self)) + (1 if len(self) else 0)

        return committable

    return patched(Ledger, "committable", make)


def _ledger_settles_the_highest() -> AbstractContextManager[None]:
    """Settling a request settles those before it."""

    def make(original: Any) -> Any:
        def settle(self: Ledger, offsets: Any) -> None:
            if len(offsets):
                offsets = np.arange(self.committable(), int(offsets.max()) + 1)
            original(self, offsets)

        return settle

    return patched(Ledger, "settle", make)


def _epoch_applied_early() -> AbstractContextManager[None]:
    """A learnt state holds from the moment at which it was written."""

    def make(original: Any) -> Any:
        def apply(self: EpochTable, states: Any) -> None:
            original(self, [replace(state, append_ms=state.append_ms - self._delay_ms) for state in states])

        return apply

    return patched(EpochTable, "apply", make)


def _forgotten_answered() -> AbstractContextManager[None]:
    """A new owner does not look for what its predecessor has answered."""

    def make(original: Any) -> Any:
        async def answered(self: TakeOver, positions: Any, words: Any) -> Any:
            found = await original(self, positions, words)
            return {number: offsets[:0] for number, offsets in found.items()}

        return answered

    return patched(TakeOver, "_answered", make)


def _forgotten_answers() -> AbstractContextManager[None]:
    """A new aggregator does not wait for the answers that are in the log."""

    def make(original: Any) -> Any:
        def handle(self: AggregatorStage, event: Any, now_ms: int) -> Any:
            if isinstance(event, Assigned):
                resumes = {n: replace(r, answers_end=0) for n, r in event.partitions.items()}
                event = Assigned(partitions=resumes)
            return original(self, event, now_ms)

        return handle

    return patched(AggregatorStage, "handle", make)


def _answers_read_too_late() -> AbstractContextManager[None]:
    """The commit's metadata says to read answers from the newest on, whatever is open."""

    def make(original: Any) -> Any:
        def metadata(self: Takeover, first_answer: int, lowest_open: int) -> Any:
            return original(self, np.iinfo(np.int64).max, lowest_open)

        return metadata

    return patched(Takeover, "metadata", make)


def _scan_from_too_late() -> AbstractContextManager[None]:
    """The commit's metadata says to scan predictions from what was acknowledged last."""

    def make(original: Any) -> Any:
        def metadata(self: Takeover, first_answer: int, lowest_open: int) -> Any:
            self._sent.clear()
            return original(self, first_answer, lowest_open)

        return metadata

    return patched(Takeover, "metadata", make)


def _outcomes_not_deduplicated() -> AbstractContextManager[None]:
    """A second outcome of the same feedback teaches again."""

    def make(original: Any) -> Any:
        def first_time(self: OwnedOutcomes, outcome: Any) -> bool:
            original(self, outcome)
            return True

        return first_time

    return patched(OwnedOutcomes, "first_time", make)


def _state_forgets_what_it_includes() -> AbstractContextManager[None]:
    """A restarted learner learns again what its state includes."""

    def make(original: Any) -> Any:
        def restore(self: UpdateStage, owned: Any, record: Any) -> None:
            original(self, owned, replace(record, includes={}))

        return restore

    return patched(UpdateStage, "_restore", make)


def _outcomes_settled_when_learnt() -> AbstractContextManager[None]:
    """An outcome is settled before the state that it changed is in the log."""

    def make(original: Any) -> Any:
        def handle(self: UpdateStage, event: Any, now_ms: int) -> Any:
            effects = original(self, event, now_ms)
            for owned in self._owned.values():
                for state in owned.states.values():
                    if state.pending:
                        effects.append(Settle(partition=owned.number, offsets=np.array(state.pending, np.int64)))
            return effects

        return handle

    return patched(UpdateStage, "handle", make)


def _feedback_settled_at_once() -> AbstractContextManager[None]:
    """Feedback is settled when it is read, not when its outcome is acknowledged."""

    def make(original: Any) -> Any:
        def take(self: JoinStage, event: Any, now_ms: int) -> None:
            original(self, event, now_ms)
            offsets = [record.offset for record in event.feedback.records]
            if event.feedback.partition in self._partitions:
                self._sender.settle(event.feedback.partition, offsets)

        return take

    return patched(JoinStage, "_take", make)


def _failed_sends_taken_for_sent() -> AbstractContextManager[None]:
    """A send whose outcome is unknown counts as acknowledged."""

    def make(original: Any) -> Any:
        def acknowledged(self: Performer, token: Any, partition: int, sent_at_ms: float, done: Any) -> None:
            if not done.cancelled() and done.result().error:
                done = asyncio.get_running_loop().create_future()
                done.set_result(Ack())
            original(self, token, partition, sent_at_ms, done)

        return acknowledged

    return patched(Performer, "_acknowledged", make)


def _own_clock() -> AbstractContextManager[None]:
    """Deadlines go by the machine's own clock."""
    return patched(BrokerClock, "acknowledged", lambda _original: lambda self, sent_at_ms, append_ms: None)


def _no_lease() -> AbstractContextManager[None]:
    """A process that has not heard from its group for long goes on as its owner."""
    return patched(Ownership, "holds_lease", lambda _original: lambda self: True)


def _guard_forgotten() -> AbstractContextManager[None]:
    """Terminal records are made a while after the deadline instead of a guard before it."""

    def make(original: Any) -> Any:
        def settle_due(self: AggregatorStage, now_ms: int, effects: Any) -> None:
            original(self, now_ms - 4 * self._rules.guard_ms, effects)

        return settle_due

    return patched(AggregatorStage, "_settle_due", make)


def _versions_mixed_up() -> AbstractContextManager[None]:
    """A model answers as another one does, now and then."""

    def make(original: Any) -> Any:
        def predict(self: SimulatedModel, batch: Any) -> Any:
            number = self.number + 1 if len(batch) % 7 == 3 else self.number
            return original(replace(self, number=number), batch)

        return predict

    return patched(SimulatedModel, "predict", make)


def _doomed_rows_run() -> AbstractContextManager[None]:
    """Rows that cannot make it any more are run all the same."""
    return patched(Desk, "doomed_until_ms", lambda _original: lambda self, now_ms, guard_ms: -1.0)


def _window_not_read_again() -> AbstractContextManager[None]:
    """A new owner of the join reads predictions from the newest on."""

    def make(original: Any) -> Any:
        def metadata(self: Partition) -> str:
            words = str(original(self))
            head, _, rest = words.partition('"predictions_from":')
            return f'{head}"predictions_from":{self._predictions_next},{rest.partition(",")[2]}'

        return metadata

    return patched(Partition, "metadata", make)


def _queue_kept_after_revocation() -> AbstractContextManager[None]:
    """A process goes on with what it holds of partitions that were taken from it."""

    def make(_original: Any) -> Any:
        def end(self: StageLoop, partitions: Any) -> None:
            for number in partitions:
                self.ledgers.pop(number, None)

        return end

    return patched(StageLoop, "end", make)


def _all_of_a_send_repeated() -> AbstractContextManager[None]:
    """Where one partition of a send has failed, the others are sent again, too."""

    def make(original: Any) -> Any:
        def handle(self: AggregatorStage, event: Any, now_ms: int) -> Any:
            if isinstance(event, ProduceFailed):
                event = replace(event, written={}, offsets={})
            return original(self, event, now_ms)

        return handle

    return patched(AggregatorStage, "handle", make)


def _choice_by_read_order() -> AbstractContextManager[None]:
    """The newest state that is known decides, whenever the request was written."""

    def make(original: Any) -> Any:
        def choose(self: EpochTable, route: int, *columns: Any) -> Any:
            partition, offsets, append_ms, *contexts = columns
            newest = original(self, route, partition, offsets, append_ms + 10_000, *contexts)
            return replace(newest, stale=original(self, route, *columns).stale)

        return choose

    return patched(EpochTable, "choose", make)


def _mutant(plant: Callable[[], AbstractContextManager[None]]) -> Mutant:
    return Mutant(name=plant.__name__[1:].replace("_", "-"), words=plant.__doc__ or "", plant=plant)


MUTANTS = {
    mutant.name: mutant
    for mutant in map(
        _mutant,
        (
            _commit_before_produce,
            _ledger_off_by_one,
            _ledger_settles_the_highest,
            _epoch_applied_early,
            _forgotten_answered,
            _forgotten_answers,
            _answers_read_too_late,
            _scan_from_too_late,
            _outcomes_not_deduplicated,
            _state_forgets_what_it_includes,
            _outcomes_settled_when_learnt,
            _feedback_settled_at_once,
            _failed_sends_taken_for_sent,
            _own_clock,
            _no_lease,
            _guard_forgotten,
            _versions_mixed_up,
            _doomed_rows_run,
            _window_not_read_again,
            _queue_kept_after_revocation,
            _choice_by_read_order,
            _all_of_a_send_repeated,
            *PLANTED,
            *CHOICES,
        ),
    )
}
