"""Plans of a pool that share a lane: one call for all that is asked in a turn, each with the answers it gives alone."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from streamserve.core.events import BatchFinished
from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelError
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes.base import ModelSpec, Runtime
from streamserve.runtimes.plan import PlanRuntime
from streamserve.runtimes.sharing import PlanLane, share
from tests.plan.tables import NUMBERS, TWO
from tests.plan.texts import DOCUMENTS, LABELS

pytestmark = pytest.mark.filterwarnings("ignore")


DOCUMENTS_AS_ROWS = np.array(DOCUMENTS, dtype=object)


def runtime(model: Any, name: str) -> PlanRuntime:
    return PlanRuntime(model, ModelSpec(name=name, version="1", source=name))


def _odd(values: Any) -> Any:
    return values


@pytest.fixture(scope="module")
def runtimes() -> dict[str, Runtime]:
    found: dict[str, Runtime] = {}
    for i in range(3):
        fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(NUMBERS[i * 9 :], TWO[i * 9 :])
        found[f"m{i}"] = runtime(fitted, f"m{i}")
    found["box"] = runtime(make_pipeline(FunctionTransformer(_odd), LogisticRegression()).fit(NUMBERS, TWO), "box")
    found["text"] = runtime(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(DOCUMENTS, LABELS), "text")
    share(found)
    return found


def lane_of(one: Runtime) -> PlanLane:
    assert isinstance(one, PlanRuntime)
    assert isinstance(one.lane, PlanLane)
    return one.lane


def equal(found: object, expected: Outputs) -> None:
    assert isinstance(found, Outputs)
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.probabilities is not None
    assert expected.probabilities is not None
    assert np.abs(found.probabilities - expected.probabilities).max() <= 1e-12
    assert found.row_errors == expected.row_errors


def predicted(lane: PlanLane, batches: list[tuple[str, AnyArray]]) -> list[Outputs | Exception]:
    """What each batch gets, in order."""
    found = dict(one for ended in lane.predict_all(batches) for one in ended)
    return [found[i] for i in range(len(batches))]


def test_white_boxes_share_a_lane_and_black_boxes_do_not(runtimes: dict[str, Runtime]) -> None:
    assert len({lane_of(runtimes[name]) for name in ("m0", "m1", "m2", "text")}) == 1
    assert getattr(runtimes["box"], "lane", 0) is None


def test_a_plan_with_a_thread_of_its_own_has_a_lane_of_its_own() -> None:
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(NUMBERS, TWO)
    found: dict[str, Runtime] = {name: runtime(fitted, name) for name in ("a", "b", "c")}
    share(found, own_thread=["b"])
    lanes = {name: lane_of(one) for name, one in found.items()}
    assert lanes["a"] is lanes["c"]
    assert lanes["a"].name != lanes["b"].name
    rows = NUMBERS[:4]
    for name, lane in lanes.items():
        equal(predicted(lane, [(name, rows)])[0], found[name].predict(rows))


def test_what_has_a_thread_anyway_cannot_be_given_one() -> None:
    box = runtime(make_pipeline(FunctionTransformer(_odd), LogisticRegression()).fit(NUMBERS, TWO), "box")
    with pytest.raises(ModelError, match=r"model box: .*thread of its own\. Leave out `own_thread`"):
        share({"box": box}, own_thread=["box"])


def test_batches_that_begin_alike_run_together_and_others_alone(runtimes: dict[str, Runtime]) -> None:
    rows: list[AnyArray] = [NUMBERS[:7], NUMBERS[:9].copy(), NUMBERS[3:6], NUMBERS[:2].astype(np.float32)]
    asked = [("m0", rows[0]), ("m1", rows[1]), ("m2", rows[2]), ("m0", rows[3]), ("m1", rows[0])]
    found = predicted(lane_of(runtimes["m0"]), asked)
    for (model, batch), outputs in zip(asked, found, strict=True):
        equal(outputs, runtimes[model].predict(batch))
    passes = [[place for place, _ in ended] for ended in lane_of(runtimes["m0"]).predict_all(asked)]
    assert sorted(map(sorted, passes)) == [[0, 1], [2], [3], [4]]


def test_batches_run_in_the_order_in_which_they_were_given(runtimes: dict[str, Runtime]) -> None:
    asked = [("text", DOCUMENTS_AS_ROWS[:1]), ("m0", NUMBERS[:2]), ("m1", NUMBERS[5:9]), ("m2", NUMBERS[:2])]
    passes = [{place for place, _ in ended} for ended in lane_of(runtimes["m0"]).predict_all(asked)]
    assert passes == [{0}, {1, 3}, {2}]


def test_a_lane_may_be_asked_from_two_threads_at_once(runtimes: dict[str, Runtime]) -> None:
    lane = lane_of(runtimes["m0"])
    asked = [("text", DOCUMENTS_AS_ROWS), ("m0", NUMBERS[:7]), ("m1", NUMBERS[:9])] * 20
    expected = {model: runtimes[model].predict(rows) for model, rows in asked}
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda _: predicted(lane, asked), range(8)):
            for (model, _), outputs in zip(asked, found, strict=True):
                equal(outputs, expected[model])


def test_a_batch_of_another_form_fails_alone(runtimes: dict[str, Runtime]) -> None:
    found = predicted(lane_of(runtimes["m0"]), [("m0", NUMBERS[:, :3]), ("m1", NUMBERS[:4]), ("m2", NUMBERS[:, :3])])
    assert [isinstance(outputs, Exception) for outputs in found] == [True, False, True]


def test_a_refused_row_is_refused_by_those_that_refuse_it(runtimes: dict[str, Runtime]) -> None:
    rows = NUMBERS[:4].copy()
    rows[2, 1] = np.nan
    found = predicted(lane_of(runtimes["m0"]), [("m0", rows), ("m1", rows)])
    for model, outputs in zip(("m0", "m1"), found, strict=True):
        equal(outputs, runtimes[model].predict(rows))


def test_the_runner_runs_what_a_turn_submits_in_one_call(runtimes: dict[str, Runtime]) -> None:
    calls: list[int] = []

    class Counting:
        """A lane that says how many batches each call has."""

        name = "counting"

        def __init__(self, lane: PlanLane) -> None:
            self._lane = lane

        def predict_all(self, batches: Any) -> Any:
            calls.append(len(batches))
            return self._lane.predict_all(batches)

    class Member:
        def __init__(self, one: Runtime, lane: Counting) -> None:
            self.lane, self._one = lane, one

        def predict(self, batch: AnyArray) -> Outputs:
            return self._one.predict(batch)

        def close(self) -> None:
            pass

    async def run() -> dict[int, BatchFinished]:
        done: dict[int, BatchFinished] = {}
        ended = asyncio.Event()

        def finished(event: BatchFinished) -> None:
            done[event.batch] = event
            if len(done) == 4:
                ended.set()

        lane = Counting(lane_of(runtimes["m0"]))
        members: dict[str, Runtime] = {f"m{i}": Member(runtimes[f"m{i}"], lane) for i in range(3)}
        runner = ModelRunner({**members, "box": runtimes["box"]}, finished)
        for i in range(3):
            runner.submit(i, f"m{i}", NUMBERS[:5])
        runner.submit(3, "box", NUMBERS[:5])
        await ended.wait()
        runner.close()
        return done

    done = asyncio.run(run())
    assert calls == [3]
    for i in range(3):
        outputs = done[i].outputs
        assert outputs is not None
        equal(outputs, runtimes[f"m{i}"].predict(NUMBERS[:5]))
    assert done[3].outputs is not None
