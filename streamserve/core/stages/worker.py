"""The worker stage: requests in, model calls out, answers on.

Its own promises:

* no call is made for a request that, by the predicted time, can no longer make its deadline;
* a short batch waits only while `max_wait_ms` since its oldest request's arrival is not over, and never when full;
* a bad request costs nobody else in its batch: values are read one by one, failed calls are bisected;
* every request is settled by its deadline, even if a model call never returns;
* no model's queue is longer than its bound, however long one hangs.

Long since what comes in, is given up and goes on meets in one table; what runs and why is in `answering` and `desk`,
who is asked in `hosted`, what waits for acknowledgements in `worker_send`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np

from streamserve.core.admission import Admission, Admitted
from streamserve.core.answering import Answering
from streamserve.core.blocks import Answered
from streamserve.core.bounds import Fill, fullest
from streamserve.core.codec import InputCodec
from streamserve.core.desk import Desk, ModelRules
from streamserve.core.effects import Count, Effect, settles
from streamserve.core.epochs import EpochTable
from streamserve.core.events import (
    Assigned,
    BatchesFinished,
    ContextsFetched,
    Drain,
    Event,
    ModelsHosted,
    Produced,
    ProduceFailed,
    RequestsFetched,
    Revoked,
    StatesFetched,
    StatesKnownUntil,
    Tick,
)
from streamserve.core.fast import distinct, every, has_bit, indices, some
from streamserve.core.headroom import Headroom
from streamserve.core.hosted import Hosted
from streamserve.core.lanes import LaneRules, in_turn
from streamserve.core.messages import I64, U64, Answers, Flags, Requests
from streamserve.core.opinions import unsure
from streamserve.core.owned import Owned
from streamserve.core.reasons import PRESENT, Missing
from streamserve.core.routes import AppRules
from streamserve.core.slicing import take_answers, take_requests
from streamserve.core.stages.worker_send import Sending
from streamserve.core.table import NEVER_MS, Table

SHED = int(Missing.SHED)
NOBODY = np.zeros(0, np.int64)
DEFAULT_LANE_RULES = LaneRules()
_COLUMNS = {
    "partition": np.int64,
    "offset": np.int64,
    "append_ms": np.int64,
    "deadline_ms": np.int64,
    "arrived_ms": np.int64,
    "route": np.int64,
    "priority": np.int64,
    "chosen": np.uint64,
    "probability": np.int64,
    "epoch": np.int64,
    "stale": np.bool_,
    "group": np.int64,
    "first_row": np.int64,
    "n_rows": np.int64,
    "n_bytes": np.int64,
    "waiting": np.int64,  # hosted models that have not answered yet
    "heard": np.bool_,  # one has answered
    "unacked": np.int64,  # answers sent and not acknowledged
    "done": np.bool_,
    "may_second": np.bool_,  # it may be given to the model for second opinions
    "ids": np.object_,  # the bodies' ids, known once they are decoded
}


class WorkerStage:
    """Stage of one process of a pool. `models`: model id -> rules, those that this pool hosts."""

    def __init__(
        self,
        rules: AppRules,
        models: Mapping[str, ModelRules],
        codecs: Mapping[str, InputCodec],
        epochs: EpochTable,
        admission: Admission | None = None,
        *,
        headroom: Headroom | None = None,
        settles: bool = True,
        lane_rules: LaneRules = DEFAULT_LANE_RULES,
        pool: str = "",
    ) -> None:
        """`settles` False: its answers are handed over in this process and somebody else settles its requests.

        `pool`: whose models it is to ask, where routes say who asks which.
        """
        self._rules = rules
        self._settles = settles
        self._epochs = epochs
        self._admission = admission or Admission(rules, epochs)
        self._headroom = headroom or Headroom(rules.guard_ms, rules.shortest_budget_ms)
        self._table = Table(_COLUMNS, lists=("keys", "values", "headers", "errors"))
        self._hosted = Hosted(models, epochs.routes, self._table, lane_rules, pool=pool)
        self._answering = Answering(rules, epochs.routes, self._table, codecs)
        self._skip: dict[int, I64] = {}
        self._owned = Owned()
        self._sending = Sending(self._table, self._owned, settles=settles, most_bytes=rules.bounds.open_bytes)
        self._lag: dict[int, int] = {}
        self._later: list[tuple[Desk, I64]] = []
        """Requests for second opinions of the present turn."""
        self._largest_bytes = 1
        """No body was larger: a queue that is far below its bound need not be added up."""
        self._soonest_ms = NEVER_MS
        """No later than the first deadline that somebody waits for; exact unless it is stale."""
        self._soonest_is_stale = False

    def is_called_for(self, answers: Answers) -> bool:
        """A model's call for the very requests of this block is under way."""
        running = (desk.running for desk in self._hosted.desks.values())
        return any(batch is not None and batch.asked.offset is answers.offsets for batch in running)

    def _host(self, models: Mapping[str, ModelRules], now_ms: int, effects: list[Effect]) -> None:
        """Other models than before. What is queued for one that has gone is answered at once."""
        for desk in self._hosted.change(models, self._answering.forget):
            self._emit_all(self._answering.let_go(desk, now_ms), now_ms, effects)

    # -- protocol ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        self._headroom.heard(event)
        match event:
            case RequestsFetched():
                self._take(event.requests, now_ms, effects)
            case BatchesFinished():
                self._finish(event, now_ms, effects)
            case Produced():
                self._sending.acknowledge(event.token, effects)
            case ProduceFailed():
                self._sending.send_again(event, effects)
            case StatesFetched() | ContextsFetched() | StatesKnownUntil():
                self._epochs.take(event)
            case ModelsHosted():
                self._host(event.models, now_ms, effects)
            case Assigned():
                self._assign(event)
            case Revoked():
                self._revoke(event)
            case Tick() | Drain():
                pass
            case _:
                raise TypeError(f"a worker stage takes no {type(event).__name__}")
        self._decide(now_ms, effects)
        self._headroom.emitted(effects, now_ms)
        return effects

    def _decide(self, now_ms: int, effects: list[Effect]) -> None:
        self._expire(now_ms, effects)
        for desk in in_turn(self._hosted.desks.values(), now_ms):
            self._cut(desk, now_ms, effects)
        for desk in self._hosted.desks.values():
            if desk.circuit.is_open and len(desk):
                self._emit_all(self._answering.turn_away(desk, now_ms), now_ms, effects)
        # Others may have decoded what one waits to fill a batch with: then there are more rows than it saw.
        waiting = [desk for desk in self._hosted.desks.values() if desk.go_at_ms is not None]
        for desk in in_turn(waiting, now_ms) if waiting else ():
            self._cut(desk, now_ms, effects)
        self._ask_later(now_ms, effects)
        self._sending.drop_done()

    def next_deadline_ms(self) -> int | None:
        soonest = self._soonest()
        for desk in self._hosted.desks.values():
            if desk.go_at_ms is not None and desk.go_at_ms < soonest:
                soonest = desk.go_at_ms
        return None if soonest == NEVER_MS else soonest

    def _soonest(self) -> int:
        if self._soonest_is_stale:
            table = self._table
            waiting = table["waiting"] > 0
            self._soonest_ms = int(table["deadline_ms"][waiting].min()) if some(waiting) else NEVER_MS
            self._soonest_is_stale = False
        return self._soonest_ms

    def commit_metadata(self, partition: int) -> str:
        return ""

    @property
    def takes_more(self) -> bool:
        """While one model has room: one that hangs or is slow must not starve the others."""
        bounds = self._rules.bounds
        return self._table.held_bytes < bounds.open_bytes and any(
            self._is_far_below(desk, bounds.queue_requests, bounds.queue_bytes)
            or desk.has_room(bounds.queue_requests, bounds.queue_bytes)
            for desk in self._hosted.desks.values()
        )

    def _is_far_below(self, desk: Desk, most_requests: int, most_bytes: int) -> bool:
        return len(desk) < min(most_requests, most_bytes // self._largest_bytes)

    def _over(self, desk: Desk) -> I64:
        """Take what is too much out of a queue: it grows beyond the bound of reading only where others have room."""
        most_requests, most_bytes = self._rules.bounds.most_queued_requests, self._rules.bounds.most_queued_bytes
        if self._is_far_below(desk, most_requests, most_bytes):
            return NOBODY
        return desk.pop_over(most_requests, most_bytes)

    def fills(self) -> Mapping[str, Fill]:
        bounds, desks = self._rules.bounds, self._hosted.desks.values()
        queued = [Fill(len(desk), bounds.most_queued_requests) for desk in desks]
        n_bytes = [Fill(int(desk.queued_bytes()[-1]) if len(desk) else 0, bounds.most_queued_bytes) for desk in desks]
        return {
            "queue_requests": fullest(queued),
            "queue_bytes": fullest(n_bytes),
            "open_bytes": Fill(self._table.held_bytes, bounds.open_bytes),
            "guard_ms": self._headroom.fill(),
            **self._answering.fills(),
            **self._epochs.fills(),
        }

    @property
    def idle(self) -> bool:
        return not len(self._table)

    # -- input ---------------------------------------------------------------------------------------------------

    def _assign(self, event: Assigned) -> None:
        self._epochs.own(event.partitions)
        for partition, resume in event.partitions.items():
            self._owned.begin(partition, self._table.end)
            if resume.answered is not None:
                self._skip[partition] = resume.answered

    def _revoke(self, event: Revoked) -> None:
        self._epochs.disown(event.partitions)
        table = self._table
        for partition in event.partitions:
            self._owned.end(partition)
            self._skip.pop(partition, None)
            self._lag.pop(partition, None)
        self._sending.forget_lost()
        gone = indices(np.isin(table["partition"], event.partitions))
        table["done"][gone] = True
        table["waiting"][gone] = 0
        self._soonest_is_stale = True
        for desk in self._hosted.desks.values():
            desk.remove(gone + table.base)

    def _take(self, requests: Requests, now_ms: int, effects: list[Effect]) -> None:
        owned = self._owned.has(requests.partition)
        if not every(owned):
            requests = take_requests(requests, indices(owned))
        self._lag |= {partition: lag for partition, lag in requests.lag.items() if partition in self._owned}
        n = len(requests)
        if not n:
            return
        admitted = self._admission.admit(requests)
        self._hosted.follow()
        choice = admitted.choice
        live = (admitted.route >= 0) & (admitted.deadline_ms > now_ms)
        if admitted.errors:
            live[list(admitted.errors)] = False
        if self._skip:
            self._skip_answered(requests, live)
        waiting = np.zeros(n, np.int64)
        for route in distinct(admitted.route[live]):
            rows = live & (admitted.route == route)
            for bit, _ in (*self._hosted.of_route[route], *self._hosted.lacking.get(route, ())):
                waiting += rows & has_bit(choice.chosen, bit)
        kept = indices(waiting > 0)
        if len(kept) < n and self._settles:
            effects += settles(requests.partition[waiting == 0], requests.offsets[waiting == 0])
        if not len(kept):
            return
        all_kept = len(kept) == n
        rows_kept = range(n) if all_kept else kept.tolist()
        values = requests.values if all_kept else [requests.values[i] for i in rows_kept]
        n_bytes = admitted.n_bytes[kept]
        self._largest_bytes = max(self._largest_bytes, int(n_bytes.max()))
        handles = self._table.append(
            len(kept),
            {
                "partition": requests.partition[kept],
                "offset": requests.offsets[kept],
                "append_ms": requests.append_ms[kept],
                # A client's clock (CreateTime) may run ahead: nobody waits longer than the app allows.
                "deadline_ms": np.minimum(admitted.deadline_ms[kept], now_ms + self._rules.max_deadline_ms),
                "arrived_ms": now_ms,
                "route": admitted.route[kept],
                "priority": admitted.priority[kept],
                "chosen": choice.chosen[kept],
                "probability": choice.probability[kept],
                "epoch": choice.epoch[kept],
                "stale": choice.stale[kept] | admitted.forced[kept],
                "group": -1,
                "n_bytes": n_bytes,
                "ids": None,
                "waiting": waiting[kept],
                "may_second": self._may_second(admitted, requests.append_ms)[kept] if self._hosted.seconds else False,
            },
            {
                "keys": requests.keys if all_kept else [requests.keys[i] for i in rows_kept],
                "values": values,
                "headers": requests.headers if all_kept else [requests.headers[i] for i in rows_kept],
                "errors": [None] * len(kept),
            },
        )
        self._soonest_ms = min(self._soonest_ms, int(self._table["deadline_ms"][-len(kept) :].min()))
        self._queue(handles, now_ms, effects)

    def _may_second(self, admitted: Admitted, append_ms: I64) -> Flags:
        """`[n]`: who has not named its model, nor left that one out, and no switch keeps it from it."""
        found = ~admitted.forced
        for index, (route, _) in self._hosted.seconds.items():
            assert route.second is not None
            mine = admitted.route == index
            asked = (admitted.without & np.uint64(route.second_mask)) == 0
            found[mine] &= asked[mine] & self._epochs.may_ask(index, route.second, append_ms[mine])
        return found

    def _skip_answered(self, requests: Requests, live: Flags) -> None:
        """Requests that have their terminal record from before this ownership are not run again."""
        for partition in distinct(requests.partition):
            skip = self._skip.get(partition)
            if skip is None:
                continue
            mine = requests.partition == partition
            offsets = requests.offsets[mine]
            if not len(skip) or offsets[0] > skip[-1]:
                del self._skip[partition]
            else:
                live[mine] &= ~np.isin(offsets, skip)

    def _queue(self, handles: I64, now_ms: int, effects: list[Effect]) -> None:
        table = self._table
        at = table.at(handles)
        routes, chosen = table["route"][at], table["chosen"][at]
        for route in distinct(routes):
            on_route = routes == route
            for bit, model in self._hosted.lacking.get(route, ()):
                lacked = handles[on_route & has_bit(chosen, bit)]
                if len(lacked):
                    self._emit_all(self._answering.not_hosted(model, lacked, now_ms), now_ms, effects)
            asked = self._asked(route, at, on_route, now_ms)
            for bit, desk in self._hosted.of_route[route]:
                wanted = on_route & has_bit(chosen, bit)
                if not some(wanted):
                    continue
                if asked is not None:
                    left_out = handles[wanted & ~has_bit(asked, bit)]
                    wanted &= has_bit(asked, bit)
                    self._emit_all(self._answering.shed(desk, left_out, "thinned", now_ms, effects), now_ms, effects)
                    if not some(wanted):
                        continue
                mine = handles if every(wanted) else handles[wanted]
                desk.add(mine, now_ms)
                over = self._over(desk)
                if len(over):
                    self._emit_all(self._answering.shed(desk, over, "full", now_ms, effects), now_ms, effects)
                    mine = mine[desk.queues(mine)]
                if desk.running is not None and desk.rules.cache_bytes:
                    self._emit_all(self._answering.look_up(desk, mine, now_ms, effects), now_ms, effects)

    def _asked(self, route: int, at: I64, on_route: Flags, now_ms: int) -> U64 | None:
        """`[n]`: which hosted models these requests go to while fewer are asked; None: all that are chosen."""
        thinning = self._hosted.thinning.get(route)
        if thinning is None:
            return None
        thinning.arrived(int(np.count_nonzero(on_route)), now_ms)
        if thinning.kept == thinning.members:
            return None
        table, hosted = self._table, self._hosted.of_route[route]
        weights = self._epochs.weights_of_all(route, int(table["epoch"][at[on_route]].max()))
        heaviest = sorted(hosted, key=lambda entry: -weights[entry[0]])[: thinning.kept]
        kept = np.uint64(sum(1 << bit for bit, _ in heaviest))
        chosen = table["chosen"][at]
        # Whoever chose none of those goes to all that it chose: a request is never dropped for its choice.
        asked: U64 = np.where(chosen & kept != 0, chosen & kept, chosen)
        return asked

    # -- model calls ---------------------------------------------------------------------------------------------

    def _cut(self, desk: Desk, now_ms: int, effects: list[Effect]) -> None:
        backlog = sum(self._lag.values())
        answered = self._answering.cut(desk, now_ms, self._headroom.guard_of_calls_ms, backlog, effects)
        self._emit_all(answered, now_ms, effects)

    def _finish(self, event: BatchesFinished, now_ms: int, effects: list[Effect]) -> None:
        answered: list[Answered] = []
        for batch in event.batches:
            desk = self._answering.running(batch.batch)
            if desk is not None and desk.running is not None:
                self._headroom.noticed(desk.running.started_ms, batch.duration_ms, now_ms)
                answered += self._answering.finish(desk, batch, now_ms, effects)
        self._emit_all(answered, now_ms, effects)

    def _expire(self, now_ms: int, effects: list[Effect]) -> None:
        """Deadlines that have come: shed what is queued, give up what is running."""
        if now_ms < self._soonest_ms:
            return
        self._soonest_is_stale = True
        table = self._table
        due = indices((table["waiting"] > 0) & (table["deadline_ms"] <= now_ms))
        if not len(due):
            return
        effects.append(Count(what="abandoned", label="deadline", n=len(due)))
        for desk in self._hosted.desks.values():
            self._emit_all(self._answering.shed_due(desk, now_ms, effects), now_ms, effects)
        abandoned = due[table["waiting"][due] > 0]
        if len(abandoned):
            table["waiting"][abandoned] = 0
            self._note_lost(abandoned, now_ms)
            self._sending.settle(abandoned, effects)

    # -- answers -------------------------------------------------------------------------------------------------

    def _emit_all(self, answered: Iterable[Answered], now_ms: int, effects: list[Effect]) -> None:
        """Send blocks, those of the same requests in one step."""
        for _, group in groupby(answered, key=lambda block: (id(block[0]), block[1].route_index)):
            blocks = list(group)
            asks_again = blocks[0][1].route_index in self._hosted.seconds
            for together in [[block] for block in blocks] if asks_again else [blocks]:
                self._emit(together[0][0], [answers for _, answers in together], now_ms, effects)

    def _emit(self, handles: I64, blocks: list[Answers], now_ms: int, effects: list[Effect]) -> None:
        """Send blocks of different models; their requests wait for the acknowledgements. Those already given up (late)
        do not wait."""
        ours = self._owned.began(blocks[0].partition, handles)
        if not every(ours):
            rows = indices(ours)
            if not len(rows):
                return
            handles, blocks = handles[rows], [take_answers(block, rows) for block in blocks]
        route, table = blocks[0].route_index, self._table
        if route in self._hosted.seconds:
            blocks = [self._with_second(handles, block, now_ms, effects) for block in blocks]
        at = table.at(handles[handles >= table.base])
        counted = at[table["waiting"][at] > 0]
        table["waiting"][counted] -= len(blocks)
        self._soonest_is_stale = True
        if route in self._hosted.thinning:
            self._weigh(blocks, handles, counted, now_ms)
        self._sending.send(counted, blocks, effects)

    def _with_second(self, handles: I64, answers: Answers, now_ms: int, effects: list[Effect]) -> Answers:
        """Ask for a second opinion where an answer is not sure enough and, alone, one would come in time.

        The answer bears that model among its chosen: so an aggregator waits for it, and no longer than the deadline.
        """
        index = answers.route_index
        route, desk = self._hosted.seconds[index]
        table = self._table
        wanted = unsure(answers, route, index, self._epochs) & (handles >= table.base)
        rows = indices(wanted)
        at = table.at(handles[rows])
        due_ms = desk.doomed_until_ms(now_ms, self._rules.guard_ms)
        in_time = (table["waiting"][at] > 0) & (table["deadline_ms"][at] > due_ms) & table["may_second"][at]
        if desk.circuit.is_open or not some(in_time):
            return answers
        rows, at = rows[in_time], at[in_time]
        mask = np.uint64(route.second_mask)
        table["chosen"][at] |= mask
        self._answering.chosen_anew()
        table["waiting"][at] += 1
        chosen = answers.choice.chosen.copy()
        chosen[rows] |= mask
        effects.append(Count(what="second_opinion", label="asked", model=desk.rules.model, n=len(rows)))
        self._later.append((desk, at + table.base))
        return replace(answers, choice=replace(answers.choice, chosen=chosen))

    def _ask_later(self, now_ms: int, effects: list[Effect]) -> None:
        """Queue what second opinions were wanted for, once the answers that want them are on their way."""
        while self._later:
            desk, handles = self._later.pop()
            handles = handles[handles >= self._table.base]
            handles = handles[self._table["waiting"][self._table.at(handles)] > 0]
            if not len(handles):
                continue
            desk.add(handles, now_ms)
            over = self._over(desk)
            if len(over):
                self._emit_all(self._answering.shed(desk, over, "full", now_ms, effects), now_ms, effects)
            if desk.running is None:
                for idle in in_turn([desk], now_ms):
                    self._cut(idle, now_ms, effects)
            elif desk.rules.cache_bytes:
                waiting = handles[desk.queues(handles)]
                self._emit_all(self._answering.look_up(desk, waiting, now_ms, effects), now_ms, effects)

    def _weigh(self, blocks: list[Answers], handles: I64, counted: I64, now_ms: int) -> None:
        """Tell the route's thinning which requests are over, and which of them nobody answered."""
        table = self._table
        present = (np.array([answers.missing for answers in blocks]) == PRESENT) & (handles >= table.base)
        table["heard"][table.at(handles[present.any(axis=0)])] = True
        good = int(np.count_nonzero(present))
        over = counted[table["waiting"][counted] == 0]
        lost = int(np.count_nonzero(~table["heard"][over])) if every(blocks[-1].missing == SHED) else 0
        self._hosted.thinning[blocks[0].route_index].ended(good, len(over), lost, now_ms)

    def _note_lost(self, at: I64, now_ms: int) -> None:
        """Requests whose deadline came before all their models had answered."""
        table = self._table
        for route in distinct(table["route"][at]) if self._hosted.thinning else ():
            thinning = self._hosted.thinning.get(route)
            if thinning is not None:
                mine = at[table["route"][at] == route]
                thinning.ended(0, len(mine), int(np.count_nonzero(~table["heard"][mine])), now_ms)
