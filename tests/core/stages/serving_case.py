"""A tiny simulated log around a worker, aggregator or fused stage, for the laws.

Requests stand in a log and are fetched in pieces of any size; a partition may be given up at any moment and taken
again from the last commit. Each row holds (behaviour, number): the number is the request's own, the behaviour says what
a model does with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from streamserve.core.bounds import Bounds
from streamserve.core.desk import ModelRules
from streamserve.core.effects import Effect, EmitAnswers, EmitDeadLetters, EmitPredictions, RunBatch, Settle
from streamserve.core.epochs import EpochTable
from streamserve.core.events import (
    AnswersFetched,
    Assigned,
    BatchFinished,
    Event,
    Produced,
    ProduceFailed,
    RequestsFetched,
    Resume,
    Revoked,
)
from streamserve.core.messages import Answers, Choice, Headers, Outputs, Requests
from streamserve.core.reasons import UNUSABLE, Missing, Outcome, Reason
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.ab import AB
from streamserve.core.selection.confident import ConfidenceRules, Confident
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.second import WithSecond
from streamserve.core.selection.static import Static
from streamserve.core.slicing import joined_requests
from streamserve.core.takeover import parse_metadata
from streamserve.testing.laws import START_MS, Input, StageLaws
from tests.core.kit import CODECS

MODELS = ("a@1", "b@1", "c@1")
GUARD_MS = 10
PLAIN, RAISES, NOT_FINITE, WRONG_COUNT, HANGS, ROW_ERROR = 0, 13, 14, 15, 16, 17
SHARE = 1000
_HEADERS: dict[str, Headers] = {
    "r": (("ss-route", b"r"),),
    "s": (("ss-route", b"s"), ("ce_id", b"me"), ("traceparent", None)),
    "t": (("ss-route", b"t"), ("ss-priority", b"-2")),
    "one": (("mlserver-model", b"b"),),
    "short": (("ss-route", b"r"), ("ss-deadline-ms", b"30"), ("ss-priority", b"3")),
    "bad": (("ss-route", b"nowhere"),),
    "worse": (("ss-route", b"\xff"), ("ss-deadline-ms", None)),
    "budget": (("ss-route", b"r"), ("ss-deadline-ms", b"1e9")),
    "rank": (("ss-route", b"r"), ("ss-priority", b"top")),
}
_BAD = ("bad", "worse", "budget", "rank")
_KEYS = (None, b"one", b"other")


TIGHT = Bounds(queue_requests=1, fetched_records=1, queue_bytes=40, fetched_bytes=10, learnt_states=1)
"""Bounds that even a short history meets."""
HARD = ("queue_requests", "queue_bytes", "cache_bytes", "learnt_states")
"""Those that hold whatever arrives; others stop reading, and what was fetched by then still comes."""


def rules(bounds: Bounds = Bounds()) -> AppRules:  # noqa: B008  (frozen)
    common: dict[str, Any] = {"deadline_ms": 100, "input": "comma"}
    return AppRules(
        routes=(
            Route(name="r", models=MODELS, policy=Static(), combine="vote", default=-1, has_default=True, **common),
            Route(name="s", models=MODELS[:2], policy=Exp3(), combine="mean_probability", learns=True, **common),
            Route(name="t", models=MODELS, policy=Static(), combine="best", decide_early=False, **common),
        ),
        guard_ms=GUARD_MS,
        bounds=bounds,
    )


def rules_with_second() -> AppRules:
    """Two of the routes ask one model first, and another one where it is not sure."""
    found = rules()
    first, other, third = found.routes
    rule = ConfidenceRules(of="probability")
    asked = Confident(policy=WithSecond(policy=AB(), second="c@1"), rules=rule, combine="vote")
    exp3 = Confident(policy=WithSecond(policy=Exp3(), second="b@1"), rules=rule, combine="vote")
    common: dict[str, Any] = {"learns": True, "confidence_threshold": 0.8}
    return replace(
        found,
        routes=(
            replace(first, policy=asked, second="c@1", **common),
            replace(other, policy=exp3, second="b@1", combine="vote", **common),
            third,
        ),
    )


def model_rules(**changes: Any) -> dict[str, ModelRules]:
    return {model: ModelRules(model=model, max_batch=8, **changes) for model in MODELS}


def label_of(model: str, number: int) -> int:
    """Two of the three models agree on every row."""
    return number % 5 + (model == "c@1")


@dataclass
class Partition:
    """What the log holds of one partition, and what the driver knows of it."""

    values: list[tuple[bytes | None, Headers, int, int, int]] = field(default_factory=list)
    """value, headers, append_ms, deadline_ms, rows (0: unusable)"""
    offsets: list[int] = field(default_factory=list)
    read: int = 0
    predictions: list[int] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    answers_read: int = 0
    committed: tuple[int, str] = (0, "")
    open: set[int] = field(default_factory=set)
    owned: bool = False

    @property
    def position(self) -> int:
        return min(self.open) if self.open else self.offsets[self.read] if self.read < len(self.offsets) else self.end

    @property
    def end(self) -> int:
        return self.offsets[-1] + 1 if self.offsets else 0


def places(columns: Any) -> list[Input]:
    return list(zip(columns.partition.tolist(), columns.offsets.tolist(), strict=True))


class ServingLaws(StageLaws):
    """Laws 1-4 and 6 come with the driver; here is law 5 of what answers requests."""

    app: ClassVar[AppRules] = rules()
    takes_answers: ClassVar[bool] = False
    row_ms: ClassVar[float] = 0.5
    """What a model says that a row took; beside 2 ms a call."""
    gives_probabilities: ClassVar[bool] = False
    behaviours: ClassVar[tuple[int, ...]] = (PLAIN,) * 12 + (RAISES, NOT_FINITE, WRONG_COUNT, HANGS, ROW_ERROR)

    def __init__(self) -> None:
        self.log = {0: Partition(), 1: Partition()}
        self.deadlines: dict[Input, int] = {}
        self.sent_ms: dict[int, int] = {}
        self.spilt: set[tuple[int, int]] = set()  # (token, partition) whose records landed before the owner knew
        self.may_repeat: set[Input] = set()
        self.buried: set[Input] = set()
        """Whose dead letter was acknowledged."""
        super().__init__()

    def epochs(self) -> EpochTable:
        return EpochTable(self.app)

    # -- what arrives --------------------------------------------------------------------------------------------

    def first_events(self) -> list[Event]:
        return [self.take(0), self.take(1)]

    def take(self, number: int) -> Assigned:
        """Begin, or begin again, at the last commit."""
        p = self.log[number]
        position, words = p.committed
        answers_from, predictions_from = parse_metadata(words)
        answered = sorted({o for o in p.predictions[predictions_from:] if o >= position})
        p.owned, p.open = True, set()
        p.read = sum(o < position for o in p.offsets)
        p.answers_read = answers_from
        resume = Resume(
            position=position,
            metadata=words,
            answered=np.array(answered, np.int64),
            answers_from=answers_from if self.takes_answers else 0,
            answers_end=len(p.answers) if self.takes_answers else 0,
        )
        return Assigned(partitions={number: resume})

    def seeds(self) -> st.SearchStrategy[Any]:
        number = st.integers(0, 1)
        request = st.tuples(
            st.lists(st.sampled_from(self.behaviours), min_size=1, max_size=12) | st.sampled_from(["empty", "junk"]),
            st.sampled_from(["r", "r", "s", "s", "t", "one", "short", "bad", "worse", "budget"]),
            st.sampled_from([0, 0, 0, 20, 95, 500, -5]),
            st.sampled_from([1, 1, 1, 3]),
        )
        seeds = [
            st.tuples(st.just("append"), number, st.lists(request, min_size=1, max_size=8)),
            st.tuples(st.just("requests"), number, st.lists(request, min_size=1, max_size=8), st.integers(0, 9)),
            st.tuples(st.just("requests"), number, st.lists(request, min_size=1, max_size=8), st.integers(0, 9)),
            st.tuples(st.just("fetch"), number, st.integers(1, 6)),
            st.tuples(st.just("fetch both"), st.integers(1, 6), st.integers(1, 6)),
            st.tuples(st.just("commit"), number),
            st.tuples(st.just("move"), number, st.booleans(), st.integers(0, 255)),
        ]
        if self.takes_answers:
            answer = st.tuples(st.integers(0, 11), st.sampled_from([0, 0, 0, 0, 1, 3, 4]), st.booleans())
            seeds += [
                st.tuples(st.just("answers"), number, st.sampled_from(MODELS), st.sampled_from("rst"), st.lists(answer))
            ] * 3
            seeds.append(
                st.tuples(st.just("answers of both"), st.sampled_from(MODELS), st.sampled_from("rst"), st.lists(answer))
            )
        return st.one_of(seeds)

    def event_of(self, seed: Any) -> Event | None:
        match seed:
            case ("requests", number, found, n):
                self.append(number, found)
                return self.fetch(number, n)
            case ("append", number, found):
                self.append(number, found)
                return None
            case ("fetch", number, n):
                return self.fetch(number, n)
            case ("fetch both", *sizes):
                found = [self.fetch(number, n) for number, n in enumerate(sizes)]
                parts = [event.requests for event in found if isinstance(event, RequestsFetched)]
                return RequestsFetched(requests=joined_requests(parts)) if parts else None
            case ("commit", number):
                self.commit(number)
                return None
            case ("move", number, committed, coins):
                return self.move(number, committed, coins)
            case ("answers", number, model, route, found):
                return self.answer(number, model, route, found)
            case ("answers of both", model, route, found):
                events = [self.answer(number, model, route, found) for number in self.log]
                fetched = [event for event in events if isinstance(event, AnswersFetched)]
                positions = {number: at for event in fetched for number, at in event.positions.items()}
                return AnswersFetched(blocks=tuple(b for event in fetched for b in event.blocks), positions=positions)
        raise ValueError(seed)

    def append(self, number: int, found: list[Any]) -> None:
        p = self.log[number]
        for body, name, age, gap in found:
            offset = p.end + gap - 1
            rows = 0 if isinstance(body, str) else len(body)
            value = {"empty": None, "junk": b"\xffjunk"}.get(body) if isinstance(body, str) else None
            if rows:
                ids = b"" if len(body) % 2 else b"id"
                value = (
                    ids + b":" + b";".join(b"%d,%d" % (b, self.number(number, offset, i)) for i, b in enumerate(body))
                )
            append_ms = self.now_ms - age
            deadline_ms = append_ms + {"short": 30}.get(name, 0 if name in _BAD else 100)
            p.values.append((value, _HEADERS[name], append_ms, deadline_ms, 0 if name in _BAD else rows))
            p.offsets.append(offset)
            self.deadlines[number, offset] = deadline_ms

    def number(self, partition: int, offset: int, row: int) -> int:
        return (partition * SHARE + offset) * 20 + row

    def fetch(self, number: int, n: int) -> Event | None:
        p = self.log[number]
        part = slice(p.read, p.read + n)
        offsets = p.offsets[part]
        if not p.owned or not offsets:
            return None
        p.read += len(offsets)
        p.open |= set(offsets)
        found = p.values[part]
        return RequestsFetched(
            requests=Requests(
                partition=np.full(len(found), number),
                offsets=np.array(offsets),
                append_ms=np.array([v[2] for v in found]),
                keys=[_KEYS[offset % 3] for offset in offsets],
                values=[v[0] for v in found],
                headers=[v[1] for v in found],
            )
        )

    def commit(self, number: int) -> None:
        p = self.log[number]
        if p.owned:
            words = self.stage.commit_metadata(number)
            self.require(len(words.encode()) <= 4096, "commit metadata is above 4,096 bytes")
            self.require(p.position >= p.committed[0], "a commit went back")
            p.committed = (p.position, words)

    def move(self, number: int, committed: bool, coins: int) -> Event:
        p = self.log[number]
        if not p.owned:
            return self.take(number)
        if committed:
            self.commit(number)
        for token, effect in self.unacknowledged.items():
            if any(partition == number for partition, _ in self.carries(effect)):
                if isinstance(effect, EmitPredictions) and coins >> token % 8 & 1:
                    p.predictions += [o for at, o in places(effect.predictions) if at == number]
                self.spilt.add((token, number))  # landed or lost; its acknowledgement, still to come, says nothing
        p.owned, p.open = False, set()
        return Revoked(partitions=(number,))

    def answer(self, number: int, model: str, route: str, found: list[Any]) -> Event | None:
        p = self.log[number]
        picked = {}
        for index, missing, newer in found:
            if index < len(p.offsets) and p.values[index][4]:
                picked[p.offsets[index]] = (p.values[index][4], missing, newer)
        if not picked or not p.owned:
            return None
        p.answers.append(self.block(number, model, route, picked, len(p.answers)))
        return self.fetch_answers(number)

    def block(self, number: int, model: str, route: str, picked: dict[int, Any], at: int) -> Answers:
        n = len(picked)
        offsets, rows = sorted(picked), []
        for offset in offsets:
            count, missing, _ = picked[offset]
            rows.append([] if missing else [label_of(model, self.number(number, offset, i)) for i in range(count)])
        labels = np.array([label for row in rows for label in row], np.int64)
        return Answers(
            partition=np.full(n, number),
            route=route,
            model=model,
            offsets=np.array(offsets),
            row_starts=np.concatenate(([0], np.cumsum([len(row) for row in rows]))),
            labels=labels if len(labels) else None,
            probabilities=None,
            classes=None,
            missing=np.array([picked[o][1] for o in offsets], np.uint8),
            ids=[None] * n,
            choice=Choice(
                chosen=np.full(n, 7 if route != "s" else 3, np.uint64),
                probability=np.full(n, 1 << 32),
                epoch=np.array([5 if picked[o][2] else -1 for o in offsets]),
                stale=np.zeros(n, np.bool_),
            ),
            queue_ms=np.zeros(n, np.int32),
            inference_ms=np.zeros(n, np.int32),
            log_offset=np.full(n, at),
        )

    def fetch_answers(self, number: int) -> Event:
        p = self.log[number]
        blocks = tuple(p.answers[p.answers_read :])
        p.answers_read = len(p.answers)
        return AnswersFetched(blocks=blocks, positions={number: len(p.answers)})

    # -- what comes back -----------------------------------------------------------------------------------------

    def opens(self, event: Event) -> Iterable[Input]:
        if isinstance(event, RequestsFetched):
            return places(event.requests)
        return ()

    def reply(self, effect: Effect) -> Event | None:
        if not isinstance(effect, RunBatch):
            return None
        behaviour = effect.inputs[:, 0]
        labels = np.array([label_of(effect.model, int(x)) for x in effect.inputs[:, 1]], np.float64)
        if (behaviour == HANGS).any() and effect.model != "a@1":
            return None
        if (behaviour == RAISES).any():
            return BatchFinished(batch=effect.batch, outputs=None, error="no", duration_ms=1.0)
        if (behaviour == WRONG_COUNT).any():
            labels = labels[:-1]
        if (behaviour == NOT_FINITE).any():
            labels = np.where(behaviour[: len(labels)] == NOT_FINITE, np.nan, labels)
        refused = {int(i): "refused" for i in np.flatnonzero(behaviour == ROW_ERROR)}
        sure = np.where(effect.inputs[: len(labels), 1] % 3 == 0, 0.6, 0.99)
        probabilities = np.stack((sure, 1.0 - sure), axis=1) if self.gives_probabilities else None
        outputs = Outputs(labels=labels, probabilities=probabilities, row_errors=refused)
        return BatchFinished(batch=effect.batch, outputs=outputs, duration_ms=2.0 + self.row_ms * len(labels))

    def _note(self, effect: Effect) -> None:
        token = getattr(effect, "token", None)
        if token is not None:
            self.sent_ms[token] = self.now_ms
        super()._note(effect)

    def carries(self, effect: Effect) -> Iterable[Input]:
        token = getattr(effect, "token", None)
        return [item for item in self._items(effect) if (token, item[0]) not in self.spilt]

    def _items(self, effect: Effect) -> list[Input]:
        match effect:
            case EmitPredictions():
                return places(effect.predictions)
            case EmitDeadLetters():
                return [(effect.letters.partition, o) for o in effect.letters.offsets.tolist()]
            case EmitAnswers() if effect.token >= 0:
                sent_ms = self.sent_ms[effect.token]
                items = places(effect.answers)
                return [item for item in items if self.deadlines[item] > sent_ms]  # later ones nobody waits for
        return []

    def acknowledgement(self, token: int, effect: Effect) -> Event:
        first: dict[int, int] = {}
        if isinstance(effect, EmitDeadLetters):
            self.buried.update(self._items(effect))
        if isinstance(effect, EmitPredictions):
            for number, offset in places(effect.predictions):
                if (token, number) not in self.spilt:
                    first.setdefault(number, len(self.log[number].predictions))
                    self.log[number].predictions.append(offset)
        return Produced(token=token, offsets=first)

    def failure(self, token: int, effect: Effect) -> Event:
        self._lands_all_the_same(token, effect)
        return ProduceFailed(token=token, error="not taken", **self._lands_for_certain(token, effect))

    def _lands_all_the_same(self, token: int, effect: Effect) -> None:
        """In some partitions, while the owner hears that it failed."""
        if isinstance(effect, EmitPredictions):
            for number, offset in places(effect.predictions):
                if (token + number) % 3 == 0 and (token, number) not in self.spilt:
                    self.log[number].predictions.append(offset)
                    self.may_repeat.add((number, offset))

    def _lands_for_certain(self, token: int, effect: Effect) -> dict[str, dict[int, int]]:
        """In some partitions, whole or in part, and the owner hears of that, too: none of it may be sent again."""
        written: dict[int, int] = {}
        first: dict[int, int] = {}
        for number, n in Counter(self._numbers(effect)).items():
            if (token + number) % 3 == 1 and (token, number) not in self.spilt:
                written[number] = n if token % 2 or isinstance(effect, EmitAnswers) else (n + 1) // 2
        if isinstance(effect, EmitPredictions):
            for number, n in written.items():
                p = self.log[number]
                first[number] = len(p.predictions)
                p.predictions += [offset for at, offset in places(effect.predictions) if at == number][:n]
        if isinstance(effect, EmitDeadLetters):
            self.buried.update(self._items(effect)[: sum(written.values())])
        return {"written": written, "offsets": first}

    @staticmethod
    def _numbers(effect: Effect) -> list[int]:
        match effect:
            case EmitPredictions():
                return list(effect.predictions.partition.tolist())
            case EmitAnswers():
                return list(effect.answers.partition.tolist())
            case EmitDeadLetters():
                return [effect.letters.partition] * len(effect.letters.offsets)
        return []

    def _settle(self, effect: Settle) -> None:
        super()._settle(effect)
        self.log[effect.partition].open -= set(effect.offsets.tolist())

    # -- promises ------------------------------------------------------------------------------------------------

    def check(self, event: Event, effects: list[Effect]) -> None:
        for bound, fill in self.stage.fills().items():
            assert bound not in HARD or fill.used <= fill.limit, f"{bound}: {fill}"
        for effect in effects:
            match effect:
                case RunBatch():
                    self._check_call(effect)
                case EmitPredictions() if not isinstance(event, ProduceFailed):
                    self._check_records(effect)
                case EmitAnswers() if isinstance(event, ProduceFailed):
                    again = set(self._numbers(effect)) & event.written.keys()
                    assert not again, f"answers of {again} are in the log, and are sent again"

    def _check_call(self, effect: RunBatch) -> None:
        assert 1 <= len(effect.inputs) <= 8, "a batch above its cap"
        for number in effect.inputs[:, 1].astype(int).tolist():
            partition, offset = divmod(number // 20, SHARE)
            assert self.deadlines[partition, offset] - GUARD_MS > self.now_ms, (
                "a call for a request that cannot make it"
            )

    def _check_records(self, effect: EmitPredictions) -> None:
        block = effect.predictions
        for i, (number, offset) in enumerate(places(block)):
            p = self.log[number]
            assert p.owned, "a record of a partition that is not ours"
            deadline_ms, outcome = self.deadlines[number, offset], Outcome(int(block.outcome[i]))
            if outcome is Outcome.ERROR and Reason(int(block.reason[i])) in UNUSABLE:
                assert (number, offset) in self.buried, "a terminal record before its dead letter is safe"
            late, rows = self.now_ms > deadline_ms, p.values[p.offsets.index(offset)][4]
            expired = outcome in (Outcome.EXPIRED, Outcome.ERROR)
            assert not late or expired or block.late[i], f"{outcome} after its deadline, not marked late"
            assert late or not block.late[i], "marked late, and in time"
            assert not (late and outcome is Outcome.DEFAULT), "a default after the deadline"
            said = (
                block.labels[block.row_starts[i] : block.row_starts[i + 1]].tolist() if block.labels is not None else []
            )
            if outcome in (Outcome.OK, Outcome.PARTIAL):
                numbers = [self.number(number, offset, row) for row in range(rows)]
                assert len(said) == rows, "rows are missing"
                assert all(label - n % 5 in (0, 1) for label, n in zip(said, numbers, strict=True)), "rows are mixed up"
            if outcome is Outcome.OK and block.missing.shape[1] and not block.missing[i].any():
                assert block.answered[i] == block.choice.chosen[i]
            if outcome is Outcome.PARTIAL:
                assert any(code != Missing.PRESENT for code in block.missing[i].tolist()), "partial, and nobody missing"

    def teardown(self) -> None:
        if not self._broken:
            self._read_all()
        super().teardown()

    def _read_all(self) -> None:
        for number, p in self.log.items():
            if not p.owned:
                self.give(self.take(number))
            while (event := self.fetch(number, 3)) is not None:
                self.give(event)
            if self.takes_answers:
                self.give(self.fetch_answers(number))

    def check_end(self) -> None:
        for number, p in self.log.items():
            self.check_answered(number, p)

    def check_answered(self, number: int, p: Partition) -> None:
        counts = Counter(p.predictions)
        for offset in p.offsets:
            n = counts[offset]
            assert n == 1 or (n > 1 and (number, offset) in self.may_repeat), (
                f"{n} terminal records for {number}-{offset}"
            )


__all__ = ["CODECS", "MODELS", "START_MS", "ServingLaws", "label_of", "model_rules", "rules"]
