"""Rows and their stores: views stay valid, numbers never change, odd shapes leave nothing behind."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.effects import RunBatch
from streamserve.core.events import BatchFinished
from streamserve.core.messages import Outputs
from streamserve.core.rows import RowStore, ranges, span_ms, starts_of
from streamserve.core.stages.fused import FusedStage
from streamserve.core.table import Table
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, finished, model_rules, requests, route
from tests.effort import examples


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 3)), min_size=1, max_size=12))
def test_rows_keep_their_numbers_and_views_their_values(steps: list[tuple[int, int]]) -> None:
    live: list[tuple[int, int]] = []
    views = []
    store = RowStore(np.zeros((1, 2)), lambda: live[0][0] if live else store.end)
    for n, done in steps:
        del live[:done]
        first = store.append(np.stack([np.arange(store.end, store.end + n)] * 2, axis=1).astype(float))
        live.append((first, n))
        for start, length in live:
            view = store.take(np.arange(start, start + length), np.ones(length, np.int64))
            views.append((view, start, length))
        whole = store.take(np.array([s for s, _ in live]), np.array([k for _, k in live]))
        assert whole[:, 0].tolist() == [x for s, k in live for x in range(s, s + k)]
        for view, start, length in views:
            assert view[:, 1].tolist() == list(range(start, start + length))


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 900)), max_size=12))
def test_a_table_is_a_queue_of_rows(steps: list[tuple[int, int]]) -> None:
    table = Table({"x": np.int64, "y": (np.int64, 2)}, lists=("z",))
    kept: list[int] = []
    count = 0
    for n, gone in steps:
        new = list(range(count, count + n))
        handles = table.append(n, {"x": np.array(new), "y": np.array(new)[:, None]}, {"z": new})
        assert handles.tolist() == new
        kept, count = kept + new, count + n
        leaving = min(gone, len(kept))
        table.drop_front(leaving)
        kept = kept[leaving:]
        assert table["x"].tolist() == table.lists["z"] == kept
        assert table["y"][:, 1].tolist() == kept
        assert table.end == count


def test_ranges_and_spans() -> None:
    assert ranges(np.array([5, 1]), np.array([2, 3])).tolist() == [5, 6, 1, 2, 3]
    assert ranges(np.array([5, 1]), np.array([0, 1])).tolist() == [1]
    assert starts_of(np.array([2, 0, 1])).tolist() == [0, 2, 2, 3]
    assert span_ms(np.array([-1, 50, 10]), 1 << 40).tolist()[0] == (1 << 31) - 1
    assert span_ms(np.array([50, 10]), 20).tolist() == [0, 10]


def world(run=finished, **changes) -> World:
    rules = app(route(deadline_ms=10_000))
    w = World(FusedStage(rules, model_rules(rules, **changes), CODECS, epochs(rules)), run)
    w.feed(assigned(0, 1))
    return w


def test_requests_of_ever_new_widths_leave_no_stores_behind() -> None:
    w = world()
    for width in range(1, 120):
        w.feed(requests([b":" + b",".join([b"1"] * width)], first=width))
    assert len(w.records) == 119
    assert len(w.stage._worker._answering._inputs._stores) <= 17


def test_batches_under_way_keep_their_rows_while_the_store_grows() -> None:
    held: list[RunBatch] = []
    w = world(held.append, max_batch=64)
    for i in range(30):
        w.feed(requests([b":%d,%d" % (j, j) for j in range(i * 100, i * 100 + 100)], first=i * 100))
    assert held[0].inputs[:, 0].tolist() == list(range(len(held[0].inputs)))
    while len(w.records) < 3_000:
        w.feed(finished(held[-1]))
    assert all(w.labels(i) == [i] for i in range(3_000))


def test_a_request_of_many_rows_is_sized_by_its_rows() -> None:
    w = world(max_batch=512)
    w.feed(requests([b":" + b";".join(b"%d,0" % i for i in range(40))]))
    assert sorted(len(batch.inputs) for batch in w.batches) in ([16, 24], [40])
    w.feed(requests([b":" + b";".join(b"%d,0" % i for i in range(40))], first=1))
    assert len(w.batches[-1].inputs) == 40
    assert w.labels(1) == list(range(40))


def test_a_batch_is_made_of_those_behind_values_that_cannot_be_used() -> None:
    rules = app()
    stage = FusedStage(rules, model_rules(rules, batching="fixed", batch_size=2), CODECS, epochs(rules))
    w = World(stage)
    w.feed(assigned(0))
    w.feed(requests([b"junk", b"junk", b":7,1", b"junk", b":8,1"]))
    assert [w.outcome(offset)[0] for offset in range(5)] == ["error", "error", "ok", "error", "ok"]
    assert (w.labels(2), w.labels(4)) == ([7], [8])


def test_parts_that_cannot_be_joined_are_a_missing_answer() -> None:
    def fickle(effect: RunBatch) -> BatchFinished:
        labels = np.zeros(len(effect.inputs)) if effect.batch % 2 else np.zeros((len(effect.inputs), 2))
        return BatchFinished(batch=effect.batch, outputs=Outputs(labels=labels), duration_ms=1.0)

    w = world(fickle, batching="fixed", batch_size=4)
    w.feed(requests([b":" + b";".join(b"%d,0" % i for i in range(11)), b":1,1"]))
    assert w.outcome(0) == ("error", "all_members_failed")
    assert w.outcome(1)[0] == "ok"
    assert not w.stage._worker._hosted.desks["a@1"].parts


def test_a_clock_that_runs_ahead_holds_nobody_for_ever() -> None:
    w = world(lambda _: None)
    w.feed(requests([b":1,1"], append_ms=START_MS + (1 << 40)))
    w.at(60_001)
    assert len(w.records) == 1
    assert w.stage.idle
