"""The join stage: feedback meets its prediction; what comes out teaches, evaluates and retrains.

Its own promises:

* every feedback record ends as exactly one of: an outcome for each level of its context, a record forwarded to another
  partition, a dead letter, or a counted duplicate; it is settled when the broker has acknowledged that;
* feedback is never called an orphan before its wait is over (the predictions partition may lag behind): not until
  predictions appended `wait_ms` after it have been seen, or none has come for `wait_ms`;
* feedback with a ref is forwarded at most once, feedback without one at most once to each other partition;
* a forwarded record that comes twice (sent again after a crash) is joined once.

A partition's fetches of feedback may start below `Resume.position`: what lies below is only remembered, so that a
duplicate of it is known. `commit_metadata` names that place and from where predictions are to be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from streamserve.core.arms import Arms
from streamserve.core.bounds import Fill, fullest
from streamserve.core.effects import (
    Count,
    Effect,
)
from streamserve.core.epochs import home_of
from streamserve.core.events import (
    Assigned,
    ContextsFetched,
    Drain,
    Event,
    FeedbackFetched,
    PredictionsFetched,
    Produced,
    ProduceFailed,
    RawAnswersFetched,
    Revoked,
    StatesFetched,
    StatesKnownUntil,
    Tick,
)
from streamserve.core.losses import Unusable, losses_of
from streamserve.core.records import (
    Decision,
    FeedbackForward,
    FeedbackRecord,
    Label,
    OutcomeRecord,
    PredictionRecord,
)
from streamserve.core.route_versions import Routes
from streamserve.core.routes import AppRules, Route
from streamserve.core.stages.join_partition import Partition
from streamserve.core.stages.join_send import Rejected, Sender
from streamserve.core.stages.join_window import DecodeAnswers, LateAnswers, MemoryPredictions, StoreFactory
from streamserve.core.values import unchanging

DecodePrediction = Callable[[bytes], Decision | None]


@unchanging()
class JoinOptions:
    partitions: int
    """Of every topic of the app."""
    window_ms: int = 600_000
    """Feedback appended longer after its prediction is `late`."""
    window_bytes: int = 256 << 20
    """Predictions remembered, a partition (in the default store)."""
    answers_bytes: int = 64 << 20
    """Answers remembered for members that a prediction lacks, a partition."""
    wait_ms: int = 10_000
    """For a prediction that has not been seen yet."""
    max_waiting: int = 10_000
    """Waiting feedback records of a partition above which its fetching is paused."""
    max_unacknowledged: int = 50_000
    """Feedback whose outcome, dead letter or forwarding is not in the log; with so many no more is read."""
    max_remembered: int = 100_000
    """Forwarded records of a partition of which a second copy is known; above it the oldest are forgotten."""
    retry_ms: int = 200
    """Before something that the broker did not take is sent again; doubled each time, up to 5 s."""
    give_up_ms: int = 600_000
    """After this, feedback whose outcome the broker never took becomes a dead letter."""


class JoinStage:
    """Stage of the join. `decode_prediction` and `decode_answers` read raw records; None where one cannot be read."""

    def __init__(
        self,
        rules: AppRules,
        options: JoinOptions,
        decode_prediction: DecodePrediction,
        decode_answers: DecodeAnswers,
        store: StoreFactory | None = None,
    ) -> None:
        self._routes = Routes(rules.routes, delay_ms=rules.routes_delay_ms, keep_ms=rules.keep_ms)
        self._options = options
        self._decode = decode_prediction
        self._decode_answers = decode_answers
        self._store = store or (lambda partition: MemoryPredictions(options.window_bytes))
        self._partitions: dict[int, Partition] = {}
        self._sender = Sender(options.retry_ms, options.give_up_ms)
        self._counts: dict[str, int] = {}
        self._arms = Arms()
        self._draining = False

    # -- protocol ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Assigned():
                self._assign(event)
            case Revoked():
                self._revoke(event)
            case PredictionsFetched():
                self._remember(event, now_ms)
            case FeedbackFetched():
                self._take(event, now_ms)
            case RawAnswersFetched():
                self._keep_answers(event)
            case Produced():
                self._close(self._sender.acknowledged(event.token))
            case ProduceFailed():
                self._close(self._sender.failed(event, now_ms))
            case Drain():
                self._drain()
            case StatesFetched():
                self._routes.apply(event.routes)
            case Tick() | ContextsFetched() | StatesKnownUntil():
                pass
            case _:
                raise TypeError(f"a join stage takes no {type(event).__name__}")
        return self._effects(now_ms)

    def next_deadline_ms(self) -> int | None:
        wait_ms = self._options.wait_ms
        moments = [partition.first_due_ms(wait_ms) for partition in self._partitions.values() if partition.waiting]
        retry_ms = self._sender.next_retry_ms
        if retry_ms is not None:
            moments.append(retry_ms)
        return min(moments, default=None)

    def commit_metadata(self, partition: int) -> str:
        """JSON: `rebuild_from` (of feedback), `predictions_from`, `answers_from`: from where a new owner reads."""
        owned = self._partitions.get(partition)
        return "" if owned is None else owned.metadata()

    @property
    def takes_more(self) -> bool:
        """What was decided is to get into the log first: acknowledgements need nothing that is still to be read."""
        return len(self._sender) < self._options.max_unacknowledged

    def fills(self) -> Mapping[str, Fill]:
        options, partitions = self._options, self._partitions.values()
        return {
            "window_bytes": fullest([p.store.fill for p in partitions]),
            "window_answers_bytes": fullest([p.answers.fill for p in partitions]),
            "waiting_feedback": fullest([Fill(len(p.waiting), options.max_waiting) for p in partitions]),
            "remembered_feedback": fullest([Fill(p.remembered, options.max_remembered) for p in partitions]),
            "unacknowledged_feedback": Fill(len(self._sender), options.max_unacknowledged),
        }

    @property
    def idle(self) -> bool:
        return self._sender.empty and not any(partition.waiting for partition in self._partitions.values())

    # -- input ---------------------------------------------------------------------------------------------------

    def _assign(self, event: Assigned) -> None:
        for number, resume in event.partitions.items():
            self._sender.drop(number)
            answers = LateAnswers(number, self._options.answers_bytes, self._decode_answers)
            self._partitions[number] = Partition(
                number, resume, self._store(number), answers, self._options.max_remembered
            )

    def _revoke(self, event: Revoked) -> None:
        for number in event.partitions:
            self._partitions.pop(number, None)
            self._sender.drop(number)

    def _drain(self) -> None:
        """What waits stays unsettled, to be read again by the next owner; what was sent is waited for."""
        self._draining = True
        for partition in self._partitions.values():
            partition.abandon_waiting()

    def _keep_answers(self, event: RawAnswersFetched) -> None:
        partition = self._partitions.get(event.partition)
        if partition is not None:
            partition.keep_answers(event)

    def _remember(self, event: PredictionsFetched, now_ms: int) -> None:
        partition = self._partitions.get(event.partition)
        if partition is None:
            return
        for prediction in event.predictions.records:
            self._arms.predicted(prediction.raw)
        for record in partition.remember(event, now_ms):
            self._try_join(partition, record, now_ms)
        for record in partition.overtaken(self._options.wait_ms):
            self._give_up(partition, record)
        partition.expire(self._options.window_ms)

    def _take(self, event: FeedbackFetched, now_ms: int) -> None:
        partition = self._partitions.get(event.feedback.partition)
        if partition is None or self._draining:
            return
        for record in partition.new_records(event.feedback):
            self._place(partition, record, now_ms)
        partition.expire(self._options.window_ms)

    # -- placing one record --------------------------------------------------------------------------------------

    def _place(self, partition: Partition, record: FeedbackRecord, now_ms: int) -> None:
        if record.origin is not None and not partition.first_time(record):
            self._count("duplicate")
            self._sender.settle(partition.number, [record.offset])
            partition.close([record.offset])
        elif record.ref is None and record.id is None:
            why = Unusable(reason="no_ref_no_id", detail="feedback names its prediction neither by ref nor by id")
            self._reject(partition, record, "invalid", why)
        elif record.ref is not None and record.ref[0] != partition.number:
            self._send_to_ref(partition, record, record.ref[0])
        elif not self._try_join(partition, record, now_ms):
            partition.wait(record, now_ms)

    def _send_to_ref(self, partition: Partition, record: FeedbackRecord, number: int) -> None:
        if record.origin is None and 0 <= number < self._options.partitions:
            self._forward(partition, record, number)
        else:
            detail = f"its ref names partition {number}, which does not exist or did not get it when it was forwarded"
            self._reject(partition, record, "orphan", Unusable(reason="orphan", detail=detail))

    def _give_up(self, partition: Partition, record: FeedbackRecord) -> None:
        """Its prediction is not in this partition's window."""
        partition.stop_waiting(record)
        if record.ref is not None:
            late = record.ref[1] < partition.store.forgotten_below
            status = "late" if late else "orphan"
            detail = "its prediction has left the window" if late else "no prediction has this ref"
            self._reject(partition, record, status, Unusable(reason=status, detail=detail))
            return
        following = (partition.number + 1) % self._options.partitions
        started = partition.number if record.origin is None else record.origin[0]
        if following != started:
            self._forward(partition, record, following)
        else:
            self._reject(partition, record, "orphan", Unusable(reason="orphan", detail="no prediction has this id"))

    def _forward(self, partition: Partition, record: FeedbackRecord, number: int) -> None:
        origin = record.origin or (partition.number, record.offset)
        forward = FeedbackForward(to_partition=number, record=replace(record, origin=origin))
        self._sender.forward(partition.number, record, forward)
        self._count("forwarded")

    def _try_join(self, partition: Partition, record: FeedbackRecord, now_ms: int) -> bool:
        """False where its prediction is not known (yet)."""
        stored = partition.find(record)
        if stored is None:
            return False
        partition.stop_waiting(record)
        joined = self._join(partition, record, stored)
        if isinstance(joined, Unusable):
            self._reject(partition, record, "late" if joined.reason == "late" else "invalid", joined)
        else:
            self._sender.outcomes(partition.number, record, joined)
            for outcome in joined[:1]:  # they differ in whose state they teach
                self._arms.joined(outcome.route, outcome.decision.chosen, record.landed_ms - stored.append_ms)
            self._count("matched")
        return True

    def _join(
        self, partition: Partition, record: FeedbackRecord, stored: PredictionRecord
    ) -> list[OutcomeRecord] | Unusable:
        """One outcome a level of its context; the most special one is the primary."""
        if record.landed_ms - stored.append_ms > self._options.window_ms:
            return Unusable(reason="late", detail=f"more than {self._options.window_ms} ms after its prediction")
        decision = self._decode(stored.raw)
        if decision is None:
            return Unusable(reason="prediction_unreadable", detail="its prediction cannot be read")
        route = self._route_of(decision.route, stored.append_ms)
        if route is None:
            detail = f"its prediction is of route {decision.route!r}, which is unknown here"
            return Unusable(reason="unknown_route", detail=detail)
        members = _with_late(decision, partition, stored.request_offset)
        losses = losses_of(route.combine, decision, members, record)
        if isinstance(losses, Unusable):
            return losses
        levels = route.levels(decision.context)
        primary = OutcomeRecord(
            to_partition=self._home(route, levels[-1], partition),
            route=route.name,
            context=levels[-1],
            ref=(partition.number, stored.request_offset),
            decision=replace(decision, members=members),
            feedback=record.origin or (partition.number, record.offset),
            feedback_ms=record.landed_ms,
            label=record.label,
            has_label=record.has_label,
            reward=record.reward,
            losses=losses,
            open_offset=partition.lowest_open,
            prediction_ms=stored.append_ms,
        )
        above = [
            replace(
                primary,
                to_partition=self._home(route, level, partition),
                context=level,
                primary=False,
            )
            for level in levels[:-1]
        ]
        return [*above, primary]

    def _route_of(self, name: str, prediction_ms: int) -> Route | None:
        """As it was when it was predicted; a version near to that where it was not there then."""
        index = self._routes.at(prediction_ms).names.get(name)
        if index is None:
            index = next(reversed(self._routes.named(name)), None)
        return None if index is None else self._routes[index]

    def _home(self, route: Route, context: str, partition: Partition) -> int:
        return home_of(route.name, context, partition.number, self._options.partitions)

    def _reject(self, partition: Partition, record: FeedbackRecord, status: str, why: Unusable) -> None:
        self._sender.reject(partition.number, Rejected(record=record, reason=why.reason, detail=why.detail))
        self._count(status)

    # -- output --------------------------------------------------------------------------------------------------

    def _effects(self, now_ms: int) -> list[Effect]:
        for partition in self._partitions.values():
            for record in partition.overdue(now_ms, self._options.wait_ms):
                self._give_up(partition, record)
        effects = self._sender.effects(now_ms)
        for partition in self._partitions.values():
            effects += partition.pausing(self._options.max_waiting)
        effects += [Count(what="feedback", label=status, n=n) for status, n in self._counts.items()]
        self._counts = {}
        return effects + self._arms.effects()

    def _close(self, closed: tuple[int, list[int]] | None) -> None:
        if closed is not None and closed[0] in self._partitions:
            self._partitions[closed[0]].close(closed[1])

    def _count(self, status: str) -> None:
        self._counts[status] = self._counts.get(status, 0) + 1


def _with_late(decision: Decision, partition: Partition, request_offset: int) -> Mapping[str, Label]:
    """The prediction's members, and what others that were chosen said after it."""
    lacking = [model for model in decision.chosen if model not in decision.members]
    late = {model: partition.answers.rows(model, request_offset) for model in lacking}
    return {**decision.members, **{model: rows for model, rows in late.items() if rows is not None}}
