from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from time import sleep

import numpy as np
import pytest

from streamserve.core.events import BatchFinished
from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelError
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes.base import Ended, Lane


class Model:
    def __init__(self, predict: Callable[[AnyArray], Outputs]) -> None:
        self._predict = predict
        self.closed = False

    def predict(self, batch: AnyArray) -> Outputs:
        return self._predict(batch)

    def close(self) -> None:
        self.closed = True


def echo(batch: AnyArray) -> Outputs:
    return Outputs(labels=batch)


def broken(_batch: AnyArray) -> Outputs:
    raise ZeroDivisionError("by zero")


class Ends:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[BatchFinished] = asyncio.Queue()

    async def next(self) -> BatchFinished:
        return await asyncio.wait_for(self.queue.get(), 5)


async def test_a_call_ends_with_its_outputs_on_the_loops_thread() -> None:
    threads: list[int] = []
    ends: asyncio.Queue[BatchFinished] = asyncio.Queue()

    def finished(event: BatchFinished) -> None:
        threads.append(threading.get_ident())
        ends.put_nowait(event)

    runner = ModelRunner({"m@1": Model(echo)}, finished)
    runner.submit(7, "m@1", np.ones((3, 2)))
    done = await asyncio.wait_for(ends.get(), 5)
    assert (done.batch, done.error) == (7, "")
    assert done.outputs is not None
    assert len(done.outputs.labels) == 3
    assert done.duration_ms >= 0
    assert threads == [threading.get_ident()]
    runner.close()


async def test_whatever_a_model_raises_is_a_failed_batch() -> None:
    ends = Ends()
    runner = ModelRunner({"m@1": Model(broken)}, ends.queue.put_nowait)
    runner.submit(1, "m@1", np.ones((1, 1)))
    done = await ends.next()
    assert done.outputs is None
    assert done.error == "ZeroDivisionError: by zero"
    runner.close()


def leaving(_batch: AnyArray) -> Outputs:
    raise SystemExit(3)


async def test_a_model_that_calls_exit_fails_its_batch_and_lives_on() -> None:
    ends = Ends()
    runner = ModelRunner({"m@1": Model(leaving)}, ends.queue.put_nowait)
    for number in (1, 2):
        runner.submit(number, "m@1", np.ones((1, 1)))
        done = await ends.next()
        assert (done.batch, done.outputs, done.error) == (number, None, "SystemExit: 3")
    with pytest.raises(ModelError, match=r"failed on its sample row: .*SystemExit"):
        await runner.warm({"m@1": np.ones((1, 1))})
    runner.close()


async def test_a_model_that_is_not_there_is_a_failed_batch() -> None:
    ends = Ends()
    runner = ModelRunner({}, ends.queue.put_nowait)
    runner.submit(1, "x@1", np.ones((1, 1)))
    assert "not hosted" in (await ends.next()).error


async def test_a_slow_model_does_not_hold_another() -> None:
    go, ends = threading.Event(), Ends()

    def slow(batch: AnyArray) -> Outputs:
        go.wait(5)
        return Outputs(labels=batch)

    runner = ModelRunner({"slow@1": Model(slow), "fast@1": Model(echo)}, ends.queue.put_nowait)
    runner.submit(1, "slow@1", np.ones((1, 1)))
    runner.submit(2, "fast@1", np.ones((1, 1)))
    assert (await ends.next()).batch == 2
    assert runner.running == 1
    go.set()
    assert (await ends.next()).batch == 1
    runner.close()


async def test_a_model_that_fails_on_its_sample_is_named() -> None:
    runner = ModelRunner({"m@1": Model(broken)}, lambda _event: None)
    with pytest.raises(ModelError, match=r"m@1 failed on its sample row.*streamserve check"):
        await runner.warm({"m@1": np.ones((1, 2))})
    runner.close()


async def test_closing_frees_the_models() -> None:
    model = Model(echo)
    ModelRunner({"m@1": model}, lambda _event: None).close()
    assert model.closed


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def odd(_batch: AnyArray) -> Outputs:
    raise Mute


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (odd, r"Mute \(and its words cannot be read: RuntimeError\)"),
        (lambda _: Outputs(labels=np.zeros(1, [("a", int)])), "ModelError: the model answered labels of dtype"),
        (lambda _: None, "ModelError: the runtime answered NoneType"),
    ],
)
async def test_whatever_a_model_does_its_thread_lives_on(answer: Callable[[AnyArray], Outputs], words: str) -> None:
    answers = iter([answer, echo])

    def predict(batch: AnyArray) -> Outputs:
        return next(answers)(batch)

    ends: asyncio.Queue[BatchFinished] = asyncio.Queue()
    runner = ModelRunner({"m@1": Model(predict)}, ends.put_nowait)
    for batch in (1, 2):
        runner.submit(batch, "m@1", np.ones((1, 2)))
    failed, went_well = [await asyncio.wait_for(ends.get(), 5) for _ in range(2)]
    assert re.match(words, failed.error)
    assert failed.exception
    assert went_well.outputs is not None
    runner.close()


async def test_a_brief_call_ends_while_the_loop_stands_still_for_it() -> None:
    ends = Ends()
    runner = ModelRunner({"m@1": Model(echo)}, ends.queue.put_nowait)
    runner.submit(0, "m@1", np.ones((1, 1)))
    runner.linger()
    assert (await ends.next()).batch == 0  # not known to be brief: nothing to stand still for
    for batch in range(1, 1_000):  # a machine that is busy may need more than a millisecond now and then
        runner.submit(batch, "m@1", np.ones((1, 1)))
        runner.linger()
        ended_meanwhile = not ends.queue.empty()  # without the loop's having turned
        assert (await ends.next()).batch == batch
        if ended_meanwhile:
            break
    else:
        pytest.fail("not one of 999 calls ended while the loop stood still")
    runner.close()


async def test_a_loop_stands_still_for_a_call_that_hangs_only_once() -> None:
    go, ends = threading.Event(), Ends()

    def hangs(batch: AnyArray) -> Outputs:
        go.wait(5)
        return Outputs(labels=batch)

    answers = iter([echo, hangs])

    def predict(batch: AnyArray) -> Outputs:
        return next(answers)(batch)

    runner = ModelRunner({"m@1": Model(predict)}, ends.queue.put_nowait)
    runner.submit(1, "m@1", np.ones((1, 1)))
    assert (await ends.next()).batch == 1
    runner.submit(2, "m@1", np.ones((1, 1)))
    runner.linger()
    assert not runner.awaits_brief_calls
    go.set()
    assert (await ends.next()).batch == 2
    runner.close()


async def test_no_call_that_ends_around_the_lingering_is_forgotten() -> None:
    """Whatever ends just as the loop stops standing still has either been seen by it, or wakes it."""
    ends = Ends()
    models = {f"m{i}@1": Model(echo) for i in range(3)}
    runner = ModelRunner(models, ends.queue.put_nowait)
    for first in range(0, 900, 3):
        for i, model in enumerate(models):
            runner.submit(first + i, model, np.ones((1, 1)))
        runner.linger()
        ended = {(await ends.next()).batch for _ in models}
        assert ended == {first, first + 1, first + 2}
    assert not runner.running
    runner.close()


class Failing:
    """A lane that fails as a whole, whatever it is asked."""

    name = "failing"

    def predict_all(self, batches: Sequence[tuple[str, AnyArray]]) -> Iterator[Ended]:
        raise SystemExit(len(batches))


class Steps:
    """A lane that runs one batch after the other, the last of them only when it is told to."""

    name = "steps"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: list[int] = []

    def predict_all(self, batches: Sequence[tuple[str, AnyArray]]) -> Iterator[Ended]:
        for i, (_, rows) in enumerate(batches):
            self.threads.append(threading.get_ident())
            if i and i == len(batches) - 1:
                self.go.wait(5)
            sleep(0.002)  # longer than it may keep an end to itself
            yield [(i, Outputs(labels=rows))]


class InLane(Model):
    def __init__(self, lane: Lane) -> None:
        super().__init__(echo)
        self.lane = lane


async def test_what_a_lane_has_run_is_told_while_it_runs_the_rest() -> None:
    ends, lane = Ends(), Steps()
    models = {name: InLane(lane) for name in ("a@1", "b@1", "c@1")}
    runner = ModelRunner(models, ends.queue.put_nowait)
    for i, name in enumerate(models):
        runner.submit(i, name, np.ones((1, 1)))
    assert [(await ends.next()).batch for _ in range(2)] == [0, 1]
    assert runner.running == 1
    lane.go.set()
    assert (await ends.next()).batch == 2
    runner.close()


async def test_calls_that_are_the_loops_own_are_made_on_its_thread() -> None:
    ends, lane = Ends(), Steps()
    runner = ModelRunner({"a@1": InLane(lane), "b@1": InLane(lane)}, ends.queue.put_nowait)
    runner.submit(1, "a@1", np.ones((1, 1)), here=True)
    runner.submit(2, "b@1", np.ones((1, 1)))
    assert {(await ends.next()).batch for _ in range(2)} == {1, 2}
    assert len(lane.threads) == 2
    assert lane.threads.count(threading.get_ident()) == 1
    runner.close()


async def test_a_lane_that_fails_as_a_whole_ends_each_of_its_batches() -> None:
    ends, lane = Ends(), Failing()
    runner = ModelRunner({"a@1": InLane(lane), "b@1": InLane(lane)}, ends.queue.put_nowait)
    runner.submit(1, "a@1", np.ones((1, 1)))
    runner.submit(2, "b@1", np.ones((1, 1)))
    done = sorted([await ends.next(), await ends.next()], key=lambda event: event.batch)
    assert [(event.batch, event.outputs, event.error) for event in done] == [
        (1, None, "SystemExit: 2"),
        (2, None, "SystemExit: 2"),
    ]
    runner.close()
