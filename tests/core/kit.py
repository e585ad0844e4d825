"""Builders for stage tests: events in, effects out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamserve.core.codec import Decoded, Rows
from streamserve.core.desk import ModelRules
from streamserve.core.effects import Effect, EmitAnswers, EmitDeadLetters, EmitPredictions, RunBatch, Settle
from streamserve.core.epochs import EpochTable
from streamserve.core.events import Assigned, BatchesFinished, BatchFinished, Produced, RequestsFetched, Resume
from streamserve.core.messages import Headers, Outputs, Requests
from streamserve.core.reasons import Reason
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.static import Static

START_MS = 1_000_000


class CommaCodec:
    """`id:1,2;3,4` is a request of two rows of two numbers; anything else is not readable."""

    name = "comma"

    def decode(self, values: Sequence[bytes | None], headers: Sequence[Headers]) -> Decoded:
        groups: dict[int, list[list[float]]] = {}
        place, ids, errors = [], [], {}
        for i, value in enumerate(values):
            try:
                if value is None:
                    raise ValueError("empty")
                name, _, body = value.decode().partition(":")
                rows = [[float(x) for x in row.split(",")] for row in body.split(";")]
                width = len(rows[0])
                group = groups.setdefault(width, [])
                place.append((width, len(group), len(rows)))
                group += rows
                ids.append(name or None)
            except ValueError as error:
                errors[i] = (Reason.NOT_JSON, str(error))
                place.append((0, 0, 0))
                ids.append(None)
        order = list(groups)
        return Decoded(
            groups=tuple(Rows(array=np.array(groups[width])) for width in order),
            group=np.array([order.index(w) if w else -1 for w, _, _ in place], np.int64),
            first_row=np.array([first for _, first, _ in place], np.int64),
            n_rows=np.array([n for _, _, n in place], np.int64),
            ids=ids,
            errors=errors,
        )


CODECS = {"comma": CommaCodec()}


def route(models: Sequence[str] = ("a@1",), **changes: Any) -> Route:
    settings: dict[str, Any] = {
        "name": "r",
        "models": tuple(models),
        "policy": Static(),
        "combine": "vote",
        "deadline_ms": 100,
        "input": "comma",
    }
    return Route(**(settings | changes))


def app(*routes: Route, **changes: Any) -> AppRules:
    return AppRules(routes=routes or (route(),), **changes)


def model_rules(rules: AppRules, **changes: Any) -> dict[str, ModelRules]:
    return {model: ModelRules(model=model, **changes) for r in rules.routes for model in r.models}


def requests(
    values: Sequence[bytes | None],
    *,
    partition: int = 0,
    first: int = 0,
    append_ms: int = START_MS,
    headers: Headers = (),
) -> RequestsFetched:
    n = len(values)
    return RequestsFetched(
        requests=Requests(
            partition=np.full(n, partition),
            offsets=np.arange(first, first + n),
            append_ms=np.full(n, append_ms),
            keys=[None] * n,
            values=list(values),
            headers=[headers] * n,
        )
    )


def assigned(*partitions: int, **resume: Any) -> Assigned:
    return Assigned(partitions={p: Resume(**({"position": 0} | resume)) for p in partitions or (0,)})


def epochs(rules: AppRules) -> EpochTable:
    return EpochTable(rules)


def finished(effect: RunBatch, labels: Any = None, **changes: Any) -> BatchFinished:
    """A call that went well; labels default to the first number of each row."""
    if labels is None:
        labels = effect.inputs[:, 0].astype(np.int64)
    outputs = Outputs(labels=np.asarray(labels), **changes)
    return BatchFinished(batch=effect.batch, outputs=outputs, duration_ms=1.0)


def of(effects: Sequence[Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def settled(effects: Sequence[Effect]) -> list[int]:
    return sorted(int(o) for effect in of(effects, Settle) for o in effect.offsets)


class World:
    """A stage with a perfect broker: acknowledges at once, runs models when told, keeps what came out."""

    def __init__(self, stage: Any, run: Callable[[RunBatch], BatchFinished | None] = finished) -> None:
        self.stage = stage
        self.run = run
        self.now_ms = START_MS
        self.records: dict[tuple[int, int], tuple[Any, int]] = {}
        self.letters: list[Any] = []
        self.settled: list[tuple[int, int]] = []
        self.batches: list[RunBatch] = []
        self.other: list[Effect] = []
        self._log = 0

    def feed(self, event: Any) -> None:
        if isinstance(event, BatchFinished):
            event = BatchesFinished(batches=(event,))
        todo = list(self.stage.handle(event, self.now_ms))
        while todo:
            replies = [reply for effect in todo for reply in self._perform(effect)]
            todo = [effect for reply in replies for effect in self.stage.handle(reply, self.now_ms)]

    def _perform(self, effect: Effect) -> list[Any]:
        match effect:
            case RunBatch():
                self.batches.append(effect)
                reply = self.run(effect)
                return [] if reply is None else [BatchesFinished(batches=(reply,))]
            case EmitPredictions():
                block = effect.predictions
                places = list(zip(block.partition.tolist(), block.offsets.tolist(), strict=True))
                for i, key in enumerate(places):
                    assert key not in self.records, f"second terminal record for {key}"
                    self.records[key] = (block, i)
                self._log += len(block)
                first = {partition: self._log - len(block) for partition, _ in places}
                return [Produced(token=effect.token, offsets=first)]
            case EmitDeadLetters():
                self.letters.append(effect.letters)
                return [Produced(token=effect.token)]
            case EmitAnswers():
                self.other.append(effect)
                return [Produced(token=effect.token)]
            case Settle():
                for offset in effect.offsets.tolist():
                    assert (effect.partition, offset) not in self.settled, f"settled twice: {offset}"
                    self.settled.append((effect.partition, offset))
            case _:
                self.other.append(effect)
        return []

    def at(self, ms: int) -> World:
        """Let time pass, waking the stage at each of its deadlines."""
        from streamserve.core.events import Tick

        until = START_MS + ms
        while (deadline := self.stage.next_deadline_ms()) is not None and deadline <= until:
            assert deadline > self.now_ms or deadline == self.now_ms
            self.now_ms = deadline
            self.feed(Tick())
        self.now_ms = until
        return self

    def outcome(self, offset: int, partition: int = 0) -> tuple[str, str]:
        block, i = self.records[partition, offset]
        from streamserve.core.reasons import Outcome

        return str(Outcome(int(block.outcome[i]))), str(Reason(int(block.reason[i])))

    def labels(self, offset: int, partition: int = 0) -> list[Any]:
        block, i = self.records[partition, offset]
        return block.labels[block.row_starts[i] : block.row_starts[i + 1]].tolist()
