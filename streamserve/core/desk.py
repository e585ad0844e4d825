"""One model's desk in a worker: its queue, its batcher, the call under way, and how a failed call is taken apart."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

import numpy as np

from streamserve.core.asked import Asked
from streamserve.core.batching import Arrivals, Batcher, Load, Size, hopeless, make_batcher
from streamserve.core.circuit import Circuit
from streamserve.core.contention import Plan, Queued, plan_batch
from streamserve.core.events import BatchFinished
from streamserve.core.fast import some
from streamserve.core.lanes import Lane
from streamserve.core.messages import F64, I64, AnyArray, Flags, Outputs
from streamserve.core.table import Table
from streamserve.core.values import unchanging

#: Single requests that fail one after the other, with no call going well in between: the model, not the requests.
SUSPECTS_LIMIT = 4
#: Calls that failed whole, one after the other: from then on the model is taken to be bad.
FAILED_CALLS_LIMIT = 2
BISECT_EVERY = 16
#: A call that answers none of so many requests has failed, though it returned.
TELLING_REQUESTS = 4
#: Remembered of one model; requests of any more are held against it as before.
MOST_FORMS = 64
RETRY_HALVING_MS = 1000.0


@unchanging()
class ModelRules:
    """How one hosted model is to be run."""

    model: str
    batching: str = "auto"
    max_batch: int = 512
    batch_size: int = 64
    """Of `fixed` batching."""
    max_wait_ms: int = 0
    """A short batch may wait this long since its oldest request came, while slack allows (Clipper, 4.3.2)."""
    cache_bytes: int = 0
    trailing_shape: tuple[int, ...] | None = None
    """Shape of one row that the model takes; None: it does not say."""
    takes_text: bool | None = None
    lane: str | None = None
    """Models of one lane share a thread; None: it has one of its own."""


@unchanging(eq=False)
class Batch:
    """Requests of one model call. Everything that its answers need is copied: the requests may be gone by then."""

    number: int
    handles: I64
    n_rows: I64
    inputs: AnyArray
    asked: Asked
    """Of each request, what its answer needs."""
    started_ms: int
    limited: bool
    attempts: int = 1
    """Calls that held these requests, this one too."""
    part_of: int = -1
    """Handle of the one large request of which this is a part; -1: whole requests."""
    keys: tuple[Hashable, ...] = ()
    """Cache key of each request; empty where the cache is off."""

    def __len__(self) -> int:
        return len(self.handles)


class Forms:
    """Forms of rows (dtype, shape) that a model has answered.

    Law: a form is strange once another has been answered, until it is answered itself.
    """

    def __init__(self) -> None:
        self._answered: set[tuple[str, tuple[int, ...]]] = set()

    def answered(self, inputs: AnyArray) -> None:
        """The model has answered rows `[n, ...]` of this form."""
        if len(self._answered) < MOST_FORMS:
            self._answered.add((inputs.dtype.str, inputs.shape[1:]))

    def is_strange(self, inputs: AnyArray) -> bool:
        """It has answered others and never this one: that it fails on these says nothing of the model."""
        return bool(self._answered) and (inputs.dtype.str, inputs.shape[1:]) not in self._answered


class Desk:
    """State of one hosted model. Knows nothing of effects: the worker stage asks and tells."""

    def __init__(self, rules: ModelRules, table: Table, lane: Lane | None = None) -> None:
        self.rules = rules
        self.lane = lane
        self._table = table
        self._queue = np.zeros(0, np.int64)
        self.batcher: Batcher = make_batcher(rules.batching, rules.max_batch, rules.batch_size)
        self.arrivals = Arrivals()
        self.running: Batch | None = None
        self.retries: deque[Batch] = deque()
        self.suspects: list[tuple[Batch, BatchFinished]] = []
        """Requests on which a call with them alone has failed, and how."""
        self.circuit = Circuit()
        self.forms = Forms()
        self.calls_failed_in_row = 0
        self.parts: dict[int, list[Outputs]] = {}
        self.rows_taken: dict[int, int] = {}
        self.go_at_ms: int | None = None
        """When a short batch that waits is to go."""
        self.target_rows = 0
        """What the batcher would have taken for the newest call, had there been more."""
        self.most_rows_run = 0
        """Of the largest call that went well."""
        self._last_call_ms: int | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def has_work(self) -> bool:
        """Something is queued, or a failed call is still being taken apart."""
        return bool(len(self._queue) or self.retries or self.suspects)

    @property
    def has_begun(self) -> bool:
        """Something of it is held until more of it has run: parts of a large request, or of a call that failed."""
        return bool(self.retries or self.suspects or self.rows_taken)

    def head(self) -> int:
        """Handle of the request that it is next for; -1: none is left."""
        if self.retries:
            return int(self.retries[0].handles[0])
        return int(self._queue[0]) if len(self._queue) else -1

    def due_ms(self) -> int:
        """Deadline of the head of the queue; 0 where only a failed call is to be taken apart."""
        return int(self._table["deadline_ms"][int(self._queue[0]) - self._table.base]) if len(self._queue) else 0

    def add(self, handles: I64, now_ms: int) -> None:
        """Queue live requests, in order of deadline (stable, so in log order among equals)."""
        deadline = self._table["deadline_ms"]
        new = deadline[self._table.at(handles)]
        if len(new) > 1 and some(new[1:] < new[:-1]):
            order = np.argsort(new, kind="stable")
            handles, new = handles[order], new[order]
        self.arrivals.add(len(handles), now_ms)
        if not len(self._queue):
            self._queue = handles
            return
        last = deadline[self._table.at(self._queue[-1:])][0]
        self._queue = np.concatenate((self._queue, handles))
        if new[0] < last:
            order = np.argsort(deadline[self._table.at(self._queue)], kind="stable")
            self._queue = self._queue[order]

    def doomed_until_ms(self, now_ms: int, guard_ms: int) -> float:
        """Requests due by then cannot be answered in time, even alone.

        While nothing is called (everything is doomed) the prediction halves every second, so that a model which was
        slow for a while is tried again.
        """
        return now_ms + guard_ms + self._predict_ms(1, now_ms)

    def _predict_ms(self, rows: int, now_ms: int) -> float:
        predicted = self.batcher.predict_ms(rows)
        if self._last_call_ms is not None:
            predicted *= 0.5 ** ((now_ms - self._last_call_ms) / RETRY_HALVING_MS)
        return predicted

    def choose(self, rows: int, slack_ms: float, now_ms: int, guard_ms: int) -> tuple[I64, list[tuple[str, I64]]]:
        """The requests of the next batch, at most `rows`, and those for whom it is too late, by why.

        The latter are removed from the queue. slack_ms: of its head.
        """
        plan = self._plan(rows, now_ms, guard_ms) if self._overloaded(rows, now_ms, guard_ms) else None
        if plan is None:
            gone = self._pop_hopeless(rows, slack_ms, now_ms, guard_ms)
            return self._queue[:rows], [("hopeless", gone)]
        first, sheds = self._queue[plan.first], {"hopeless": plan.hopeless, "outranked": plan.outranked}
        gone = np.concatenate((plan.hopeless, plan.outranked))
        too_late = [(why, self._queue[at]) for why, at in sheds.items()]
        if len(gone):
            self.forget_parts(self._queue[gone])
            self._queue = np.delete(self._queue, gone)
        return first, too_late

    def _pop_hopeless(self, rows: int, slack_ms: float, now_ms: int, guard_ms: int) -> I64:
        """Remove and return the heads of the queue that a batch of so many rows would be too late for."""
        if len(self._queue) < 2 or self._predict_ms(rows, now_ms) <= slack_ms:
            return self._queue[:0]
        n = hopeless(self._slacks_ms(now_ms, guard_ms), rows, lambda k: self._predict_ms(k, now_ms))
        return self._pop_front(n)

    def _pop_front(self, n: int) -> I64:
        gone, self._queue = self._queue[:n], self._queue[n:]
        self.forget_parts(gone)
        return gone

    def _slacks_ms(self, now_ms: int, guard_ms: int) -> F64:
        slacks: F64 = self._table["deadline_ms"][self._table.at(self._queue)] - float(guard_ms + now_ms)
        return slacks

    def _overloaded(self, rows: int, now_ms: int, guard_ms: int) -> bool:
        """Batches of so many rows cannot serve all that is queued in time: somebody has to be left out."""
        n = len(self._queue)
        if n <= rows:
            return False
        last_ms = float(self._table["deadline_ms"][int(self._queue[-1]) - self._table.base])
        return now_ms + guard_ms + math.ceil(n / rows) * self._predict_ms(rows, now_ms) > last_ms

    def _plan(self, rows: int, now_ms: int, guard_ms: int) -> Plan | None:
        table = self._table
        at = table.at(self._queue)
        keys = table.lists["keys"]
        queued = Queued(
            slacks_ms=self._slacks_ms(now_ms, guard_ms),
            priority=table["priority"][at],
            keys=[keys[i] for i in at.tolist()],
            rows=table["n_rows"][at],
        )
        return plan_batch(rows, queued, lambda k: self._predict_ms(k, now_ms))

    def taken_for_bad(self) -> bool:
        """So many calls failed whole that the next one need not be taken apart; now and then one is, to be fair."""
        failed = self.calls_failed_in_row
        return failed > FAILED_CALLS_LIMIT and failed % BISECT_EVERY != 0

    def called(self, now_ms: int) -> None:
        """A call has begun or ended."""
        self._last_call_ms = now_ms

    def pop_due(self, until_ms: float) -> I64:
        """Remove and return the queued requests whose deadline is at most this."""
        if not len(self._queue):
            return self._queue
        if self.due_ms() > until_ms:
            return self._queue[:0]
        deadlines = self._table["deadline_ms"][self._table.at(self._queue)]
        return self._pop_front(int(np.searchsorted(deadlines, until_ms, side="right")))

    def remove(self, gone: I64) -> None:
        """Remove these handles wherever they are queued."""
        if len(self._queue):
            self._queue = self._queue[~np.isin(self._queue, gone)]
        self.forget_parts(gone)

    def remove_from_queue(self, handle: int) -> None:
        """All rows of this large request are taken: nothing of it waits any more."""
        self._queue = self._queue[self._queue != handle]

    def forget_parts(self, handles: I64) -> None:
        """Nothing of these large requests is under way any more."""
        if self.rows_taken:
            for handle in handles.tolist():
                self.rows_taken.pop(handle, None)
                self.parts.pop(handle, None)

    def queues(self, handles: I64) -> Flags:
        """`[n]`: which of these are queued."""
        return np.isin(handles, self._queue)

    def queued_bytes(self) -> I64:
        """`[n]`: of the bodies of the first 1, 2, ... queued requests together."""
        total: I64 = np.cumsum(self._table["n_bytes"][self._table.at(self._queue)])
        return total

    def expected_ms(self, rows: int) -> float:
        """Predicted time of a call, without trust in what small calls say of large ones; 0 while nothing is known."""
        seen = min(rows, self.most_rows_run)
        return self.batcher.predict_ms(seen) * rows / seen if seen else 0.0

    def has_room(self, most_requests: int, most_bytes: int) -> bool:
        """Neither so many requests nor so many bytes are queued."""
        n = len(self._queue)
        return n < most_requests and (not n or int(self.queued_bytes()[-1]) < most_bytes)

    def pop_over(self, most_requests: int, most_bytes: int) -> I64:
        """Remove and return those with the latest deadlines, so that no more than this is queued."""
        fit = min(most_requests, int(np.searchsorted(self.queued_bytes(), most_bytes, side="right")))
        return self.pop_beyond(fit) if fit < len(self._queue) else self._queue[:0]

    def pop_beyond(self, n: int) -> I64:
        """Remove and return all queued requests but the first n."""
        gone, self._queue = self._queue[n:], self._queue[:n]
        self.forget_parts(gone)
        return gone

    def take(self, handles: I64) -> None:
        """These, in order of the queue, are in a batch now."""
        n = len(handles)
        if n and handles[-1] == self._queue[n - 1] and handles[0] == self._queue[0]:  # nobody was passed over
            self._queue = self._queue[n:]
        else:
            self._queue = self._queue[~np.isin(self._queue, handles)]

    def oldest_arrival_ms(self) -> int:
        return int(self._table["arrived_ms"][self._table.at(self._queue)].min())

    def load(self, now_ms: int, guard_ms: int, backlog_rows: int) -> Load:
        head = int(self._queue[0]) - self._table.base
        deadline = int(self._table["deadline_ms"][head])
        append = int(self._table["append_ms"][head])
        n_rows = self._table["n_rows"][self._table.at(self._queue[: self.rules.max_batch])]
        return Load(
            queued_rows=int(np.maximum(n_rows, 1).sum()) + max(0, len(self._queue) - self.rules.max_batch),
            backlog_rows=backlog_rows,
            rows_per_ms=self.arrivals.rows_per_ms(now_ms),
            slack_ms=deadline - guard_ms - now_ms,
            budget_ms=max(1, deadline - append),
        )

    def waits_until_ms(self, size: Size, slack_ms: float, now_ms: int) -> int | None:
        """A short batch's moment to go, if it may still wait; None: go now."""
        wait = self.rules.max_wait_ms
        if not wait or size.why != "drained" or len(self._queue) >= self.rules.max_batch:
            return None
        until = self.oldest_arrival_ms() + wait
        until = min(until, int(now_ms + slack_ms - 2 * self.batcher.predict_ms(size.rows)))
        return until if until > now_ms else None
