"""Times of stages: one call in so many, every stage of it, in buckets."""

from __future__ import annotations

import numpy as np
import pytest

from streamserve.plan.compile import laid_out
from streamserve.plan.graph import Builder, InputForm
from streamserve.plan.stage_times import BOUNDS_S, StageTimes


def test_buckets_are_those_of_a_histogram() -> None:
    times = StageTimes()
    times.add([("score", 0.9e-6), ("score", 1e-6), ("score", 3e-6), ("choose", 9.0)])
    choose, score = times.figures()
    assert (choose.operator, score.operator) == ("choose", "score")
    assert score.counts[:3] == (2, 0, 1)
    assert len(score.counts) == len(BOUNDS_S) + 1
    assert choose.counts[-1] == 1
    assert score.sum_s == pytest.approx(4.9e-6)


def test_one_call_in_so_many_is_timed_and_answers_the_same() -> None:
    builder = Builder(InputForm(kind="columns", columns=2))
    halved = builder.add("divide", [builder.source], params={"narrow": False}, constants={"by": np.array([2.0, 4.0])})
    plan = laid_out(builder.graph({"predict": halved}))
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    expected = plan.predict(rows).tolist()
    plan.layout.times = StageTimes(every=4)
    for _ in range(12):
        assert plan.predict(rows).tolist() == expected
    assert {stage.operator: sum(stage.counts) for stage in plan.layout.times.figures()} == {"divide": 3, "source": 3}
