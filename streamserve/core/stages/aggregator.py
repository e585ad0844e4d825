"""The aggregator stage: requests and answers in, one terminal record each out.

Its own promises:

* every request of an owned partition gets exactly one terminal record, unless its predecessor wrote it;
* it is emitted when all chosen members have answered, at most `EARLY_WAIT_MS` after the answer can no longer change, or
  at the deadline minus guard, whichever is first;
* nothing is emitted after its deadline unless it is marked `late` or is `expired` or `error`; a default is only ever
  given in time;
* after a takeover no deadline fires before the answers that were in the log have been applied.

Long since taking in, settling and sending share one window; what a record says is in `settling`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import numpy as np

from streamserve.core.admission import Admission
from streamserve.core.asked import by_requests
from streamserve.core.bounds import Fill
from streamserve.core.codec import InputCodec
from streamserve.core.deciding import Deciding
from streamserve.core.effects import Continue, Count, Effect, EmitDeadLetters, EmitPredictions, Pause, settles
from streamserve.core.epochs import EpochTable
from streamserve.core.events import (
    AnswersFetched,
    Assigned,
    ContextsFetched,
    Drain,
    Event,
    Produced,
    ProduceFailed,
    RequestsFetched,
    Resume,
    Revoked,
    StatesFetched,
    StatesKnownUntil,
    Tick,
)
from streamserve.core.fast import distinct, every, indices, lowest, some
from streamserve.core.headroom import Headroom
from streamserve.core.messages import I64, Answers, Flags, Predictions, Requests
from streamserve.core.owned import Owned
from streamserve.core.routes import AppRules
from streamserve.core.settling import Settling
from streamserve.core.slicing import (
    answers_by_partition,
    joined_answers,
    predictions_by_partition,
    take_answers,
    take_letters,
    take_predictions,
    take_requests,
    unwritten,
)
from streamserve.core.table import NEVER_MS
from streamserve.core.takeover import Ownership
from streamserve.core.window import NO_ERROR, Due, Window

#: An answer that can no longer change waits so long for members that are about to answer: they are then in its record,
#: and a batch is settled in one step instead of one a member.
EARLY_WAIT_MS = 5


class AggregatorStage:
    """Stage of the owner of a request's terminal record."""

    def __init__(
        self,
        rules: AppRules,
        epochs: EpochTable,
        codecs: Mapping[str, InputCodec],
        admission: Admission | None = None,
        *,
        headroom: Headroom | None = None,
        sweeps: bool = False,
    ) -> None:
        """`sweeps`: it settles what another stage has passed over, which owns the keyed states in `epochs`."""
        self._owns_states = not sweeps
        self._rules = rules
        self._epochs = epochs
        self._admission = admission or Admission(rules, epochs)
        self._headroom = headroom or Headroom(rules.guard_ms, rules.shortest_budget_ms)
        self._window = Window(epochs.routes, rules.max_deadline_ms, rules.bounds.open_bytes)
        self._settling = Settling(self._window, epochs, codecs)
        self._deciding = Deciding(self._window, self._settling)
        self._owned: dict[int, Ownership] = {}
        self._catching_up: set[int] = set()
        self._open = Owned()
        self._next_request: I64 = np.zeros(1, np.int64)
        """By partition: one past the last request taken."""
        self._early: dict[int, deque[Answers]] = {}
        self._early_rows = 0
        self._paused = False
        self._touched: list[I64] = []
        self._acks: dict[int, tuple[_Batch, EmitPredictions | EmitDeadLetters]] = {}
        self._next_token = 0
        self._soonest_ms = NEVER_MS
        """No later than the first deadline of an unsettled request; exact unless it is stale."""
        self._soonest_is_stale = False
        self._early_due_ms: int | None = NEVER_MS
        """When the first request that was decided early is to be settled; None: to be looked up."""

    # -- protocol ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        self._headroom.heard(event)
        match event:
            case RequestsFetched():
                self._take(event.requests, now_ms, effects)
            case AnswersFetched():
                self._answered(event, effects)
            case Produced():
                self._acknowledge(event, effects)
            case ProduceFailed():
                self._send_again(event, effects)
            case StatesFetched() | ContextsFetched() | StatesKnownUntil():
                self._epochs.take(event)
            case Assigned():
                for partition, resume in event.partitions.items():
                    self._assign(partition, resume)
            case Revoked():
                self._revoke(event, effects)
            case Tick() | Drain():
                pass
            case _:
                raise TypeError(f"an aggregator stage takes no {type(event).__name__}")
        self._settle_ready(now_ms, event.waited_ms if isinstance(event, AnswersFetched) else 0, effects)
        if now_ms >= self._first_early_ms():
            self._settle_early(now_ms, effects)
        self._settle_due(now_ms, effects)
        self._window.drop_done()
        self._headroom.emitted(effects, now_ms)
        return effects

    def next_deadline_ms(self) -> int | None:
        if self._catching_up:
            soonest = self._soonest_deadline(self._catching_up)
        else:
            if self._soonest_is_stale:
                self._soonest_ms = self._soonest_deadline(())
                self._soonest_is_stale = False
            soonest = self._soonest_ms
        due = self._first_early_ms()
        if soonest != NEVER_MS:
            due = min(due, soonest - self._headroom.guard_ms)
        return None if due == NEVER_MS else due

    def _first_early_ms(self) -> int:
        if self._early_due_ms is None:
            table = self._window.table
            waiting = table["early_ms"][(table["early_ms"] > 0) & ~table["settled"]]
            self._early_due_ms = int(waiting.min()) if len(waiting) else NEVER_MS
        return self._early_due_ms

    def _soonest_deadline(self, without: Collection[int]) -> int:
        table = self._window.table
        waiting = ~table["settled"]
        for partition in without:
            waiting &= table["partition"] != partition
        return lowest(table["deadline_ms"][waiting]) if some(waiting) else NEVER_MS

    def commit_metadata(self, partition: int) -> str:
        """Where a new owner reads answers from, and from where it looks for what is already answered."""
        owner = self._owned.get(partition)
        if owner is None:
            return ""
        table = self._window.table
        mine = (table["partition"] == partition) & ~table["done"]
        first_answer = int(table["answer_offset"][mine].min()) if some(mine) else np.iinfo(np.int64).max
        for block in self._early.get(partition, ()):
            if block.log_offset is not None:
                first_answer = min(first_answer, int(block.log_offset.min()))
        lowest_open = int(table["offset"][mine].min()) if some(mine) else int(self._next_request[partition])
        return owner.metadata(first_answer, lowest_open)

    @property
    def takes_more(self) -> bool:
        """While the window has room. Which request is answered next is for the pools to say, so it also goes on where
        answers wait for requests that are not read yet, and while a deadline may not fire: else both would wait for
        each other for ever."""
        has_room = self.has_room and len(self._window) < self._rules.bounds.open_requests
        return has_room or self._paused or bool(self._catching_up)

    @property
    def has_room(self) -> bool:
        """For the bodies of more requests."""
        return self._window.has_room

    def fills(self) -> Mapping[str, Fill]:
        bounds = self._rules.bounds
        return {
            "open_requests": Fill(len(self._window), bounds.open_requests),
            "open_bytes": self._window.fill(),
            "early_answers": Fill(self._early_rows, bounds.early_answers),
            "guard_ms": self._headroom.fill(),
            **self._epochs.fills(),
        }

    @property
    def idle(self) -> bool:
        return not len(self._window.table)

    def unsettled(self, partition: I64, offsets: I64) -> Flags:
        """Which of these requests still wait for their terminal record."""
        return self._window.find(partition, offsets)[1]

    # -- ownership -----------------------------------------------------------------------------------------------

    def _assign(self, partition: int, resume: Resume) -> None:
        if self._owns_states:
            self._epochs.own([partition])
        self._owned[partition] = Ownership(resume)
        self._catching_up.discard(partition)
        if self._owned[partition].catching_up:
            self._catching_up.add(partition)
        self._open.begin(partition, 0)
        if partition >= len(self._next_request):
            self._next_request = np.append(self._next_request, np.zeros(partition + 1, np.int64))
        self._next_request[partition] = resume.position
        self._early[partition] = deque()

    def _revoke(self, event: Revoked, effects: list[Effect]) -> None:
        if self._owns_states:
            self._epochs.disown(event.partitions)
        for partition in event.partitions:
            self._owned.pop(partition, None)
            self._catching_up.discard(partition)
            self._open.end(partition)
            for block in self._early.pop(partition, ()):
                self._early_rows -= len(block)
            self._window.forget_partition(partition)
        # Should the partition come back, what becomes of the sends of this ownership is no longer its business.
        self._acks = {token: sent for token, sent in self._acks.items() if len(self._unsettled(sent[0]))}
        self._soonest_is_stale = True
        self._early_due_ms = None
        self._unpause(effects)

    # -- input ---------------------------------------------------------------------------------------------------

    def _take(self, requests: Requests, now_ms: int, effects: list[Effect]) -> None:
        owned = self._open.has(requests.partition)
        if not every(owned):
            requests = take_requests(requests, indices(owned))
        partitions = distinct(requests.partition)
        if not partitions:
            return
        np.maximum.at(self._next_request, requests.partition, requests.offsets + 1)
        admitted = self._admission.admit(requests)
        rows = self._unanswered(requests, partitions, effects)
        if len(rows):
            handles = self._window.add(requests, admitted, rows, now_ms)
            table = self._window.table
            at = table.at(handles)
            deadline = table["deadline_ms"][at]
            self._soonest_ms = min(self._soonest_ms, lowest(deadline))
            table["late_on_arrival"][at] = deadline - self._headroom.guard_ms <= now_ms
            if admitted.errors:
                self._touched.append(handles[table["error"][at] != NO_ERROR])
        if self._early_rows:
            self._apply_early(partitions, effects)

    def _unanswered(self, requests: Requests, partitions: list[int], effects: list[Effect]) -> I64:
        """Rows that have no terminal record from a predecessor; the others are settled."""
        left = np.ones(len(requests), np.bool_)
        for partition in partitions:
            owner = self._owned[partition]
            if owner.may_have_answered:
                mine = indices(requests.partition == partition)
                left[mine] = owner.unanswered(requests.offsets[mine])
        if not every(left):
            effects += settles(requests.partition[~left], requests.offsets[~left])
        return indices(left)

    def _answered(self, event: AnswersFetched, effects: list[Effect]) -> None:
        blocks = []
        for together in by_requests(event.blocks):
            owned = self._open.has(together[0].partition)
            if every(owned):
                blocks += together
            elif some(owned):
                blocks += [take_answers(block, indices(owned)) for block in together]
        self._apply(blocks)
        for partition, position in event.positions.items():
            owner = self._owned.get(partition)
            if owner is not None:
                owner.answers_at = max(owner.answers_at, position)
                if not owner.catching_up:
                    self._catching_up.discard(partition)
        if self._early_rows > self._rules.bounds.early_answers and not self._paused:
            self._paused = True
            effects.append(Pause(source="answers", partitions=tuple(self._owned)))

    def _apply(self, blocks: list[Answers]) -> None:
        for together in by_requests(joined_answers(blocks)):
            known = together[0].offsets < self._next_request[together[0].partition]
            self._touched += self._window.apply(together, known)
            if self._early_due_ms != NEVER_MS:  # an answer under another choice may have undone a decision
                self._early_due_ms = None
            for block in together if not every(known) else ():
                for partition, early in answers_by_partition(take_answers(block, indices(~known))):
                    self._early[partition].append(early)
                    self._early_rows += len(early)

    def _apply_early(self, partitions: list[int], effects: list[Effect]) -> None:
        """Answers that came before their requests."""
        blocks: list[Answers] = []
        for partition in partitions:
            blocks += self._early[partition]
            self._early[partition].clear()
        self._early_rows -= sum(len(block) for block in blocks)
        self._apply(blocks)
        self._unpause(effects)

    def _unpause(self, effects: list[Effect]) -> None:
        if self._paused and self._early_rows < self._rules.bounds.early_answers // 2:
            self._paused = False
            effects.append(Continue(source="answers", partitions=tuple(self._owned)))

    # -- settling ------------------------------------------------------------------------------------------------

    def _settle_ready(self, now_ms: int, waited_ms: int, effects: list[Effect]) -> None:
        """Requests that something new was heard of, so long ago: all members heard, decided, or unusable."""
        touched, self._touched = self._touched, []
        touched = [handles for handles in touched if len(handles)]
        if not touched:
            return
        table = self._window.table
        handles = touched[0] if len(touched) == 1 else np.unique(np.concatenate(touched))
        at = np.sort(table.at(handles[handles >= table.base]))
        at = at[~table["settled"][at]]
        heard = table["present"][at] | table["failed"][at]
        complete = ((table["chosen"][at] & ~heard) == 0) | (table["error"][at] != NO_ERROR)
        if not every(complete):
            undecided = at[~complete & (table["early_ms"][at] == 0)]
            decided = undecided[self._deciding.decided(undecided)]
            if len(decided):
                until_ms = now_ms + EARLY_WAIT_MS - waited_ms
                table["early_ms"][decided] = until_ms
                self._early_due_ms = min(self._first_early_ms(), until_ms)
        if some(complete):
            ready = at[complete]
            self._settle(Due(at=ready, early=np.zeros(len(ready), np.bool_)), now_ms, effects)

    def _settle_early(self, now_ms: int, effects: list[Effect]) -> None:
        """Requests whose answer can no longer change; when one of them goes, all go."""
        table = self._window.table
        at = indices((table["early_ms"] > 0) & ~table["settled"])
        if len(at):
            self._settle(Due(at=at, early=np.ones(len(at), np.bool_)), now_ms, effects)

    def _settle_due(self, now_ms: int, effects: list[Effect]) -> None:
        if now_ms < self._soonest_ms - self._headroom.guard_ms:
            return
        table = self._window.table
        due = ~table["settled"] & (table["deadline_ms"] - self._headroom.guard_ms <= now_ms)
        if not some(due):
            return
        for partition in self._catching_up:
            due &= table["partition"] != partition
        at = indices(due)
        if len(at):
            self._settle(Due(at=at, early=table["early_ms"][at] > 0), now_ms, effects)

    def _settle(self, due: Due, now_ms: int, effects: list[Effect]) -> None:
        table = self._window.table
        for block, at in self._settling.settle(due, now_ms):
            bad = self._settling.unusable(block)
            if some(bad):
                self._bury(take_predictions(block, indices(bad)), at[bad], effects)
                self._predict(_Batch(at[~bad] + table.base), take_predictions(block, indices(~bad)), effects)
            else:
                self._predict(_Batch(at + table.base), block, effects)
        table["settled"][due.at] = True
        self._soonest_is_stale = True
        if self._early_due_ms != NEVER_MS:
            self._early_due_ms = None

    def _bury(self, block: Predictions, at: I64, effects: list[Effect]) -> None:
        """Dead letters first, the terminal records once they are acknowledged: who takes over skips what has a
        terminal record, so a dead letter that came after it could be lost."""
        for part, rows in predictions_by_partition(block, at):
            batch = _Batch(rows + self._window.table.base, then=part)
            letters = self._settling.dead_letters(part, rows)
            self._send(batch, EmitDeadLetters(token=self._token(), letters=letters), effects)

    # -- sending -------------------------------------------------------------------------------------------------

    def _token(self) -> int:
        self._next_token += 1
        return self._next_token - 1

    def _send(self, batch: _Batch, emit: EmitPredictions | EmitDeadLetters, effects: list[Effect]) -> None:
        self._acks[emit.token] = (batch, emit)
        if isinstance(emit, EmitPredictions):
            block = emit.predictions
            for partition in distinct(block.partition):
                owner = self._owned.get(partition)
                if owner is not None:
                    owner.sending(emit.token, int(block.offsets[block.partition == partition].max()))
        effects.append(emit)

    def _unsettled(self, batch: _Batch) -> I64:
        """Rows of a batch that still wait for acknowledgements; those of revoked partitions do not."""
        table = self._window.table
        at = table.at(batch.handles[batch.handles >= table.base])
        waiting: I64 = at[~table["done"][at]]
        return waiting

    def _acknowledge(self, event: Produced, effects: list[Effect]) -> None:
        sent = self._acks.pop(event.token, None)
        if sent is None:
            return
        batch, _ = sent
        if batch.then is not None:
            block, batch.then = batch.then, None
            self._predict(batch, block, effects)
            return
        self._wrote(event)
        self._done(batch, effects)

    def _done(self, batch: _Batch, effects: list[Effect]) -> None:
        at, table = self._unsettled(batch), self._window.table
        if len(at):
            table["done"][at] = True
            effects += settles(table["partition"][at], table["offset"][at])

    def _wrote(self, event: Produced | ProduceFailed) -> None:
        for partition, offset in event.offsets.items():
            owner = self._owned.get(partition)
            if owner is not None:
                owner.wrote(event.token, offset)

    def _send_again(self, event: ProduceFailed, effects: list[Effect]) -> None:
        """Not in the log, or nobody knows: at least once means to send it again. Readers drop a second record."""
        sent = self._acks.pop(event.token, None)
        if sent is None:
            return
        batch, emit = sent
        if isinstance(emit, EmitDeadLetters):
            if n := len(self._unsettled(batch)):
                effects.append(Count(what="resent", label="dlq", n=n))
                letters = emit.letters
                left = np.arange(event.written.get(letters.partition, 0), len(letters.offsets))
                again = EmitDeadLetters(token=self._token(), letters=take_letters(letters, left))
                self._send(batch, again, effects)
            return
        block = emit.predictions
        self._wrote(event)
        rest = unwritten(block.partition, event.written)
        self._done(_Batch(batch.handles[~rest]), effects)
        batch.handles = batch.handles[rest]
        if n := len(self._unsettled(batch)):
            effects.append(Count(what="resent", label="predictions", n=n))
            self._predict(batch, take_predictions(block, indices(rest)), effects)

    def _predict(self, batch: _Batch, block: Predictions, effects: list[Effect]) -> None:
        """Emit the terminal records of those that still wait for one."""
        at = self._unsettled(batch)
        if not len(at):
            return
        if len(at) < len(block):
            rows = indices(np.isin(batch.handles, at + self._window.table.base))
            block = take_predictions(block, rows)
            batch.handles = batch.handles[rows]
        self._send(batch, EmitPredictions(token=self._token(), predictions=block), effects)


class _Batch:
    """Requests that settle together, once their terminal records are acknowledged."""

    __slots__ = ("handles", "then")

    def __init__(self, handles: I64, then: Predictions | None = None) -> None:
        self.handles = handles
        self.then = then
        """Terminal records to be emitted when the dead letters of the same requests are acknowledged."""
