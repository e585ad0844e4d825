from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.bounds import Bounds
from streamserve.core.cache import CachedRows, ResultCache, input_key
from streamserve.core.effects import RunBatch
from streamserve.core.events import BatchFinished, ProduceFailed, Revoked
from streamserve.core.stages.fused import FusedStage
from tests.core.kit import CODECS, START_MS, World, app, assigned, epochs, finished, model_rules, requests, route
from tests.effort import examples


def rows(label: int, n: int = 1) -> CachedRows:
    return CachedRows(labels=np.full(n, label), probabilities=None, classes=None)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), st.booleans())), st.integers(500, 4_000))
def test_the_budget_is_kept_and_what_is_found_is_what_was_put(steps: list[tuple[int, int, bool]], budget: int) -> None:
    cache, put = ResultCache(budget), {}
    for name, n, looks in steps:
        key = ("m@1", "<f8", (n,), bytes([name]) * n)
        if looks:
            found = cache.get(key)
            assert found is None or found.labels.tolist() == put[key].labels.tolist()
        else:
            put[key] = rows(name, n)
            cache.put(key, put[key])
        assert 0 <= cache.used_bytes <= budget
    assert len(cache) == 0 or cache.used_bytes > 0


def test_the_least_recently_used_goes_first() -> None:
    one = 400 + 8 + 1
    cache = ResultCache(2 * one)
    for name in b"ab":
        cache.put(("", bytes([name])), rows(name))
    assert cache.get(("", b"a")) is not None
    cache.put(("", b"c"), rows(3))
    assert cache.get(("", b"b")) is None
    assert cache.get(("", b"a")) is not None


def test_keys_are_exact() -> None:
    forms = [
        np.array([1]),
        np.array([1.0]),
        np.array([True]),
        np.array([[1]]),
        np.array([1, 1]),
        np.array([-0.0]),
        np.array([0.0]),
        np.array(["1"], object),
        np.array([1], object),
        np.array([1.0], object),
        np.array([True], object),
        np.array(["int:1"], object),
        np.array([None], object),
    ]
    keys = [input_key(model, form) for form in forms for model in ("m@1", "m@2")]
    assert len(set(keys)) == len(keys)


def test_equal_hashes_of_different_bytes_do_not_meet() -> None:
    class SameHash(bytes):
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return bytes(self) == other

    cache = ResultCache(10_000)
    cache.put(("m@1", SameHash(b"one")), rows(1))
    cache.put(("m@1", SameHash(b"two")), rows(2))
    first, second = cache.get(("m@1", SameHash(b"one"))), cache.get(("m@1", SameHash(b"two")))
    assert first is not None
    assert second is not None
    assert (first.labels.tolist(), second.labels.tolist()) == ([1], [2])


def test_the_budget_is_near_the_memory_that_texts_take() -> None:
    text = np.array(["näh" * 10] * 50, object)
    cache = ResultCache(1 << 20)
    cache.put(input_key("m@1", text), rows(1))
    assert cache.used_bytes >= 50 * 60


# -- in the stage ----------------------------------------------------------------------------------------------------


def world(run, models=("a@1",), bounds=Bounds(), **changes) -> World:  # noqa: B008  (frozen)
    rules = app(route(models, **changes), route(models, name="s"), guard_ms=10, bounds=bounds)
    w = World(FusedStage(rules, model_rules(rules, cache_bytes=10_000), CODECS, epochs(rules)), run)
    w.feed(assigned(0, 1))
    return w


ASK = (("ss-route", b"r"),)


def test_versions_share_nothing() -> None:
    w = world(lambda e: finished(e, [int(e.model[-1])] * len(e.inputs)), ("m@1", "m@2"), decide_early=False)
    for first in (0, 1):
        w.feed(requests([b":5,5"], first=first, headers=ASK))
    assert [b.model for b in w.batches] == ["m@1", "m@2"]
    block, _ = w.records[0, 1]
    assert [member.labels.tolist() for member in block.members] == [[2]]


def test_hits_of_one_batch_are_one_record_and_keep_their_rows() -> None:
    w = world(finished)
    w.feed(requests([b":%d,0;%d,1" % (i, i) for i in range(5)], headers=ASK))
    w.feed(requests([b":%d,0;%d,1" % (i, i) for i in (3, 1, 9, 4)], first=5, headers=ASK))
    assert [w.labels(i) for i in range(5, 9)] == [[3, 3], [1, 1], [9, 9], [4, 4]]
    assert len({id(w.records[0, i][0]) for i in (5, 6, 8)}) == 1


def test_what_is_known_does_not_wait_for_the_call_that_is_under_way() -> None:
    held: list[RunBatch] = []
    w = world(held.append)
    w.feed(requests([b":1,1"], headers=ASK))
    w.feed(finished(held[0]))
    w.feed(requests([b":2,2"], first=1, headers=ASK))  # keeps the model busy
    w.feed(requests([b":1,1", b":3,3", b"junk", b":2,2"], first=2, headers=ASK))
    assert w.labels(2) == [1]
    assert w.outcome(4)[0] == "error"
    assert (0, 3) not in w.records
    w.feed(finished(held[1]))
    assert w.labels(1) == w.labels(5) == [2]  # the repeat followed the call that was under way
    assert held[2].inputs.tolist() == [[3.0, 3.0]]


def test_followers_outlive_a_leader_that_is_revoked() -> None:
    held: list[RunBatch] = []
    w = world(held.append)
    w.feed(requests([b":9,9"], headers=ASK))  # keeps the model busy: the next two share a batch
    w.feed(requests([b":1,1"], first=1, headers=ASK))
    w.feed(requests([b":1,1"], partition=1, headers=ASK))
    w.feed(finished(held[0]))
    w.feed(Revoked(partitions=(0,)))
    assert len(held[1].inputs) == 1
    w.feed(finished(held[1]))
    assert w.labels(0, partition=1) == [1]


def test_followers_outlive_a_leader_whose_deadline_passed_while_its_call_was_taken_apart() -> None:
    held: list[RunBatch] = []
    w = world(held.append)
    w.feed(requests([b":9,9"], headers=ASK))
    w.feed(requests([b":1,1", b":2,2"], first=1, headers=(*ASK, ("ss-deadline-ms", b"50"))))
    w.feed(requests([b":1,1"], first=3, headers=ASK))
    w.feed(finished(held[0]))
    w.at(60)
    w.feed(BatchFinished(batch=held[1].batch, outputs=None, error="no", duration_ms=1.0))
    assert held[2].inputs.tolist() == [[1.0, 1.0]]  # 2,2 is nobody's any more
    w.feed(finished(held[2]))
    assert w.labels(3) == [1]
    assert w.outcome(1)[0] == "expired"


def test_no_more_follow_a_call_than_the_bound_allows_the_others_stay_queued() -> None:
    """A call that hangs, and the same input again and again: who follows is in no queue, whose bound would count it."""
    w = world(lambda _: None, bounds=Bounds(queue_requests=5))
    for first in range(0, 20, 2):
        w.feed(requests([b":1,1"] * 2, first=first, headers=ASK))
    fills = w.stage.fills()
    assert fills["coalesced_requests"].used <= 5 + 1  # one repeat in the call's own batch
    assert fills["queue_requests"].used == 20 - 1 - fills["coalesced_requests"].used
    assert not w.stage.takes_more


def test_a_failed_call_is_not_remembered() -> None:
    w = world(lambda e: BatchFinished(batch=e.batch, outputs=None, error="no", duration_ms=1.0))
    w.feed(requests([b":1,1", b":1,1"], headers=ASK))
    assert w.outcome(0)[0] == w.outcome(1)[0] == "error"
    w.run = finished
    w.feed(requests([b":1,1"], first=2, headers=ASK))
    assert w.labels(2) == [1]


def test_a_refused_token_of_nobody_changes_nothing() -> None:
    w = world(finished)
    assert w.stage.handle(ProduceFailed(token=99, error="x"), START_MS) == []
