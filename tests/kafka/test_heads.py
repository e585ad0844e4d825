"""A worker takes up heads that were published: the newest, those of its plan, those that its store has."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from streamserve.core.effects import Count
from streamserve.core.head_order import Publication, ReadTo
from streamserve.core.messages import Outputs
from streamserve.kafka.codecs.heads import decode_head, encode_head
from streamserve.kafka.heads import LiveHeads
from streamserve.kafka.ports import At, Chunk
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.learning import HeadLearner
from streamserve.plan.packing import keep
from streamserve.plan.store import Store
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.plan import PlanRuntime
from streamserve.runtimes.sharing import PlanLane, share
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = np.array(DOCUMENTS, dtype=object)
PLAN = laid_out(import_fitted(fitted(clone(VECTORISERS["union"]), LogisticRegression(), LABELS)).graph)


class Worker:
    """A process with two models of one plan; the head of the first learns."""

    def __init__(self, store: Path) -> None:
        self.learning = PlanRuntime(
            PLAN, ModelSpec(name="learning", version="1", source="a.plan", head_rate=1.0, head_store=str(store))
        )
        self.fixed = PlanRuntime(PLAN, ModelSpec(name="fixed", version="1", source="a.plan"))
        runtimes = {"learning@1": self.learning, "fixed@1": self.fixed}
        share(runtimes)
        self.counted: list[Count] = []
        self.heads = LiveHeads(runtimes, self.counted.append)

    def hear(self, *said: Publication) -> None:
        n = len(said)
        values: list[bytes | None] = [encode_head(one).value for one in said]
        chunk = Chunk(
            at=At("models", 0), offsets=np.arange(n), append_ms=np.full(n, 5), keys=[None] * n,
            values=values, headers=[()] * n, next_offset=n, lag=0,
        )  # fmt: skip
        self.heads.take(chunk)
        asyncio.run(self.heads.look())

    def together(self) -> dict[str, Outputs]:
        """What both say in one pass."""
        lane = self.learning.lane
        assert isinstance(lane, PlanLane)
        names = ["learning@1", "fixed@1"]
        found = {}
        for ended in lane.predict_all([(name, ROWS) for name in names]):
            for place, outputs in ended:
                assert isinstance(outputs, Outputs)
                found[names[place]] = outputs
        return found

    def counts(self) -> list[tuple[str, str, int]]:
        return [(one.what, one.label, one.n) for one in self.counted]


def published(store: Path, rows: int, passes: int = 40) -> Publication:
    learner = HeadLearner(PLAN, rate=1.0)
    for _ in range(passes):
        learner.learn(DOCUMENTS, [1 - label for label in LABELS])
    plan = keep(learner.plan(), Store(store), name="a head")["signature"]
    read = {0: ReadTo(offset=rows, ms=7)}
    return Publication(
        model="learning@1", base=PLAN.digest, rate=1.0, rows=rows, read=read, plan=plan, store=str(store)
    )


def test_a_record_is_what_was_published(tmp_path: Path) -> None:
    said = published(tmp_path, 3)
    assert decode_head(encode_head(said).value, "here") == said


def test_a_head_serves_from_the_next_call_on_and_others_answer_as_before(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    before = worker.together()
    assert (before["learning@1"].head, before["fixed@1"].head) == (0, -1)
    assert before["learning@1"].labels.tolist() == LABELS
    worker.hear(published(tmp_path, 8))
    after = worker.together()
    assert (after["learning@1"].head, after["fixed@1"].head) == (8, -1)
    assert after["learning@1"].labels.tolist() == [1 - label for label in LABELS]
    assert after["fixed@1"].labels.tolist() == LABELS
    alone = worker.learning.predict(ROWS)
    assert alone.head == 8
    assert alone.probabilities is not None
    assert after["learning@1"].probabilities is not None
    assert alone.probabilities.tolist() == after["learning@1"].probabilities.tolist()
    assert worker.counts() == [("models", "head_taken", 1)]


def test_what_is_not_further_is_not_taken(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.hear(published(tmp_path, 8), published(tmp_path, 5, passes=1))
    worker.hear(published(tmp_path, 7, passes=2))
    assert worker.learning.head == 8
    assert worker.counts() == [("models", "head_taken", 1)]


def test_a_head_that_its_store_lacks_or_that_is_of_another_plan_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(tmp_path / "here")
    worker.hear(published(tmp_path / "elsewhere", 8))
    assert "has no plan" in caplog.text
    assert "workers must read the store that `streamserve learn-head` writes" in caplog.text
    worker.hear(replace(published(tmp_path / "here", 9), base="another"))
    assert "it was learnt from plan another" in caplog.text
    asyncio.run(worker.heads.look())  # it is said once
    assert worker.counts() == [("models", "head_not_taken", 1)] * 2
    assert worker.together()["learning@1"].labels.tolist() == LABELS
    worker.hear(published(tmp_path / "here", 10))
    assert worker.learning.head == 10
