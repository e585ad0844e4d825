"""What the core costs by itself: bytes in to bytes out, no broker and no model. `python -m benchmarks.core`

Prints microseconds a request for the fused form with one model, and for an aggregator with five members.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable

import numpy as np
import orjson

from streamserve.core.desk import ModelRules
from streamserve.core.effects import Effect, EmitAnswers, EmitDeadLetters, EmitPredictions, RunBatch, Settle
from streamserve.core.epochs import EpochTable
from streamserve.core.events import (
    AnswersFetched,
    Assigned,
    BatchesFinished,
    BatchFinished,
    Event,
    Produced,
    RequestsFetched,
    Resume,
)
from streamserve.core.ledger import Ledger
from streamserve.core.messages import Outputs, Requests
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.static import Static
from streamserve.core.stage import Stage
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.worker import WorkerStage
from streamserve.kafka.codecs.answers import decode_answers, encode_answers
from streamserve.kafka.codecs.inputs import input_codec
from streamserve.kafka.codecs.predictions import encode_predictions

PARTITIONS = 4
FETCH = 500


def values(n: int, features: int = 20) -> list[bytes]:
    """OIP requests with distinct rows."""
    rows = np.random.default_rng(1).normal(size=(n, features))
    form = {"name": "x", "shape": [1, features], "datatype": "FP64"}
    return [orjson.dumps({"id": f"r{i}", "inputs": [{**form, "data": row}]}) for i, row in enumerate(rows.tolist())]


def rules(models: int, combine: str = "vote") -> AppRules:
    names = tuple(f"m{i}@1" for i in range(models))
    policy = Static() if models == 1 else Hedge(eta=0.3, half_life_events=350)
    return AppRules(routes=(Route(name="job", models=names, policy=policy, combine=combine, deadline_ms=60_000),))


def unlike_answers(rows: int) -> Callable[[int], Outputs]:
    """Two classes; models agree on many rows and not on all, as real ones do."""
    generator = np.random.default_rng(7)
    sure, classes = generator.random(rows), np.array([0, 1])

    def answer(n: int) -> Outputs:
        second = np.clip(sure[:n] + generator.normal(0, 0.1, n), 0.01, 0.99)
        both = np.stack([1 - second, second], axis=1)
        return Outputs(labels=both.argmax(axis=1), probabilities=both, classes=classes)

    return answer


def one_answer(n: int) -> Outputs:
    return Outputs(labels=np.zeros(n, np.int64))


class Drive:
    """Feeds fetches and answers every effect at once, as a perfect broker and a free model would."""

    def __init__(
        self, stage: Stage, now_ms: int, answer: Callable[[int], Outputs] = one_answer, *, together: bool = False
    ) -> None:
        """`together`: calls that began in one turn end in one, as those of plans do; else each in a turn of its own."""
        self.stage = stage
        self.together = together
        self.answer = answer
        self.now_ms = now_ms
        self.ledgers = {p: Ledger(0) for p in range(PARTITIONS)}
        self.bytes_out = 0
        self.records_out = 0
        self.labels: dict[int, np.ndarray] = {}

    def open(self, requests: Requests) -> None:
        """As the shell's loop does with each fetch."""
        for partition in np.unique(requests.partition).tolist():
            self.ledgers[partition].opened(requests.offsets[requests.partition == partition])

    def feed(self, event: Event) -> list[Effect]:
        """One event and everything that follows from it; answers that leave the process are returned."""
        out: list[Effect] = []
        todo = self.stage.handle(event, self.now_ms)
        while todo:
            events = self._turn([reply for effect in todo if (reply := self._perform(effect, out)) is not None])
            todo = [effect for reply in events for effect in self.stage.handle(reply, self.now_ms)]
        return out

    def _turn(self, events: list[Event]) -> list[Event]:
        if not self.together:
            return events
        ended = tuple(batch for event in events if isinstance(event, BatchesFinished) for batch in event.batches)
        rest: list[Event] = [event for event in events if not isinstance(event, BatchesFinished)]
        if ended:
            rest.append(BatchesFinished(batches=ended))
        return rest

    def _perform(self, effect: Effect, out: list[Effect]) -> Event | None:
        match effect:
            case RunBatch():
                ended = BatchFinished(batch=effect.batch, outputs=self.answer(len(effect.inputs)), duration_ms=1.0)
                return BatchesFinished(batches=(ended,))
            case EmitPredictions():
                records = encode_predictions(effect.predictions)
                self.records_out += len(records.values)
                self.bytes_out += sum(map(len, records.values))
                return Produced(token=effect.token)
            case EmitDeadLetters():
                return Produced(token=effect.token)
            case EmitAnswers():
                out.append(effect)
                return Produced(token=effect.token)
            case Settle():
                self.ledgers[effect.partition].settle(effect.offsets)
        return None


def fetches(data: list[bytes], now_ms: int, rows: int = FETCH) -> list[Requests]:
    headers = (("mlserver-model", b"job"),)
    position = [0] * PARTITIONS
    out = []
    for k, start in enumerate(range(0, len(data), rows)):
        chunk = data[start : start + rows]
        p, n = k % PARTITIONS, len(chunk)
        out.append(
            Requests(
                partition=np.full(n, p),
                offsets=np.arange(position[p], position[p] + n),
                append_ms=np.full(n, now_ms),
                keys=[b"k%d" % i for i in range(n)],
                values=list(chunk),
                headers=[tuple(list(headers)) for _ in range(n)],
            )
        )
        position[p] += n
    return out


def assigned() -> Assigned:
    return Assigned(partitions={p: Resume(position=0) for p in range(PARTITIONS)})


def fused_us(
    n: int, models: int = 1, rows: int = FETCH, *, probabilities: bool = False, together: bool = False
) -> float:
    """Microseconds a request: decode, choose, batch, combine, encode the terminal record, ledger."""
    now = 1_000_000
    app = rules(models, "mean_probability" if probabilities else "vote")
    hosted = {name: ModelRules(model=name) for name in app.routes[0].models}
    codecs = {"oip": input_codec("oip")}
    answer = unlike_answers(n) if probabilities else one_answer
    drive = Drive(FusedStage(app, hosted, codecs, EpochTable(app)), now, answer, together=together)
    drive.feed(assigned())
    chunks = fetches(values(n), now, rows)
    seconds = timed(lambda: _run(drive, chunks))
    assert drive.records_out == n, (drive.records_out, n)
    return seconds / n * 1e6


def shed_us(n: int) -> float:
    """Microseconds for a request that a worker gives up: taken in, answered `shed`, acknowledged, settled."""
    now = 1_000_000
    app = rules(1)
    stage = WorkerStage(app, {"m0@1": ModelRules(model="m0@1")}, {"oip": input_codec("oip")}, EpochTable(app))
    drive = Drive(stage, now)
    drive.feed(assigned())
    for rows in range(1, 30):  # so slow that nobody can make it
        stage._hosted.desks["m0@1"].batcher.observe(rows, 2.0 * app.routes[0].deadline_ms, False)
    chunks = fetches(values(n), now)
    seconds = timed(lambda: _run(drive, chunks))
    assert stage.idle
    return seconds / n * 1e6


def _run(drive: Drive, chunks: list[Requests]) -> None:
    for chunk in chunks:
        drive.open(chunk)
        drive.feed(RequestsFetched(requests=chunk))


def aggregator_us(n: int, members: int) -> float:
    """Microseconds a request: five encoded blocks of answers a fetch decoded, combined, terminal records encoded."""
    now = 1_000_000
    app = rules(members)
    chunks = fetches(values(n), now)
    blocks = [_answers(app, chunk, now) for chunk in chunks]
    drive = Drive(AggregatorStage(app, EpochTable(app), {"oip": input_codec("oip")}), now)
    drive.feed(assigned())

    def run() -> None:
        for chunk, members_bytes in zip(chunks, blocks, strict=True):
            drive.open(chunk)
            drive.feed(RequestsFetched(requests=chunk))
            number = int(chunk.partition[0])
            for block in members_bytes:
                answers = decode_answers(block, number)
                drive.feed(AnswersFetched(blocks=(answers,), positions={number: 0}))

    seconds = timed(run)
    assert drive.records_out == n, (drive.records_out, n)
    return seconds / n * 1e6


def _answers(app: AppRules, chunk: Requests, now: int) -> list[bytes]:
    hosted = {name: ModelRules(model=name) for name in app.routes[0].models}
    drive = Drive(WorkerStage(app, hosted, {"oip": input_codec("oip")}, EpochTable(app)), now)
    drive.feed(assigned())
    out = drive.feed(RequestsFetched(requests=chunk))
    return [block for effect in out if isinstance(effect, EmitAnswers) for block in encode_answers(effect.answers)]


def timed(run: Callable[[], None]) -> float:
    gc.collect()
    gc.freeze()
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    gc.unfreeze()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--profile", type=int, metavar="MODELS", help="print where the time goes in the fused form")
    args = parser.parse_args()
    if args.profile:
        _profile(args.requests, args.profile)
        return
    for name, measure in (
        ("fused, one model", lambda: fused_us(args.requests)),
        ("fused, five models", lambda: fused_us(args.requests, 5)),
        ("fused, sixteen models", lambda: fused_us(args.requests, 16)),
        ("sixteen, ending in one turn", lambda: fused_us(args.requests, 16, together=True)),
        ("sixteen with probabilities", lambda: fused_us(args.requests, 16, probabilities=True)),
        ("the same, in one turn", lambda: fused_us(args.requests, 16, probabilities=True, together=True)),
        ("fused, one request a fetch", lambda: fused_us(args.requests // 10, 1, 1)),
        ("worker, shed", lambda: shed_us(args.requests)),
        ("aggregator, five members", lambda: aggregator_us(args.requests, 5)),
    ):
        runs = sorted(measure() for _ in range(3))
        print(f"{name:28} {runs[1]:6.2f} us a request   (runs: {', '.join(f'{run:.2f}' for run in runs)})")


def _profile(n: int, models: int) -> None:
    import cProfile  # noqa: PLC0415  (only with --profile)
    import pstats  # noqa: PLC0415  (only with --profile)

    profile = cProfile.Profile()
    profile.enable()
    fused_us(n, models, together=True)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
