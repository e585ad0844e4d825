"""Sub-results kept between batches: the same bits, a bound in bytes, and no room for what never comes again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier

from streamserve.plan import Plan
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.materialised import SubResults, feature_keys, shared_keys
from streamserve.plan.sharing import Group
from tests.effort import examples
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, batches, fitted

pytestmark = pytest.mark.filterwarnings("ignore")
MIB = 1 << 20


def planned(vectoriser: str, model: Any, labels: Any = LABELS) -> Plan:
    return laid_out(import_fitted(fitted(clone(VECTORISERS[vectoriser]), model, labels)).graph)


def plans(vectoriser: str) -> list[Plan]:
    return [
        planned(vectoriser, LogisticRegression()),
        planned(vectoriser, SGDClassifier(random_state=0), list("abcabcab")),
        planned(vectoriser, RandomForestClassifier(3, random_state=0)),
        planned(vectoriser, RandomForestClassifier(4, random_state=1)),
    ]


@cache
def plans_twice(vectoriser: str) -> tuple[list[Plan], list[Plan]]:
    """Made where a test asks for them: every process of tests imports this module."""
    return plans(vectoriser), plans(vectoriser)


def materialised(some: list[Plan], most_bytes: int = MIB) -> SubResults:
    cache, shared = SubResults(most_bytes, looks_per_row=1), shared_keys([plan.graph for plan in some])
    for plan in some:
        plan.layout.materialise(cache, shared)
    return cache


@pytest.mark.parametrize("vectoriser", ["word", "char_wb", "pattern", "two_steps", "union"])
@given(calls=st.lists(st.tuples(st.integers(0, 3), batches), max_size=8), most_bytes=st.sampled_from([0, 60_000, MIB]))
@settings(max_examples=examples(20))
def test_the_same_bits_whatever_is_kept(vectoriser: str, calls: list[tuple[int, list[str]]], most_bytes: int) -> None:
    plain, kept = plans_twice(vectoriser)
    cache = materialised(kept, most_bytes)
    for i, rows in [*calls, *calls]:
        expected, found = plain[i].run(rows, plain[i].outputs), kept[i].run(rows, plain[i].outputs)
        for output, values in expected.values.items():
            assert found.values[output].tolist() == values.tolist()
            assert found.values[output].shape == values.shape
    figures = cache.figures()
    assert figures.bytes <= figures.most_bytes
    assert figures.rows == figures.admitted - figures.evicted


def test_what_one_plan_made_another_uses() -> None:
    first, second = planned("word", LogisticRegression()), planned("word", LogisticRegression(C=9))
    cache = materialised([first, second])
    for _ in range(2):  # seen for the second time, it is kept
        first.predict(DOCUMENTS)
    assert cache.figures().hits == 0
    second.predict(DOCUMENTS[:5])
    assert cache.figures().hits == 5
    assert cache.figures().admitted == len(DOCUMENTS)


def test_only_features_that_several_plans_have_are_kept() -> None:
    alone, shared = planned("char", LogisticRegression()), planned("word", LogisticRegression())
    again = planned("word", LogisticRegression(C=9))
    keys = shared_keys([alone.graph, shared.graph, again.graph])
    assert keys == set(feature_keys(shared.graph).values())
    assert not keys & set(feature_keys(alone.graph).values())
    # another way to lower the text gives other features
    assert (
        shared_keys([planned("char_wb", LogisticRegression()).graph, planned("char_wb_accents", None).graph]) == set()
    )


def test_a_group_uses_it_too() -> None:
    some = {"a": planned("union", LogisticRegression()), "b": planned("union", LogisticRegression(C=9))}
    alone = {name: plan.predict_proba(DOCUMENTS).tolist() for name, plan in some.items()}
    group = Group(some)
    cache, shared = SubResults(MIB, looks_per_row=1), shared_keys([plan.graph for plan in some.values()])
    for layout in (group.layout, *(plan.layout for plan in some.values())):
        layout.materialise(cache, shared)
    for _ in range(3):
        found = group.run(DOCUMENTS, {name: ("predict_proba",) for name in some})
        assert {name: answers.values["predict_proba"].tolist() for name, answers in found.items()} == alone
    assert cache.figures().hits == 3 * len(DOCUMENTS)
    assert group.run(DOCUMENTS, {"a": ("predict_proba",)})["a"].values["predict_proba"].tolist() == alone["a"]
    assert cache.figures().hits == 6 * len(DOCUMENTS)


def row(words: int) -> tuple[Any, Any]:
    return np.arange(words, dtype=np.int32), np.ones(words)


def test_what_comes_once_is_not_kept() -> None:
    cache = SubResults(MIB, looks_per_row=1)
    for i in range(500):
        assert cache.look("s", [f"text {i}"]) is None
    assert cache.figures().rows == 0
    assert cache.figures().misses == 500
    assert cache.look("s", ["text 499"]) == ({}, [0])
    assert cache.look("other stage", ["text 498"]) is None


def test_few_looks_lead_to_a_row_whatever_the_size_of_a_batch() -> None:
    for size in (1, 16, 700):
        cache, made = SubResults(MIB, looks_per_row=100), 0
        for start in range(0, 2 * 7_000, size):
            looked = cache.look("s", [f"text {(start + i) % 7_000}" for i in range(size)])
            made += 0 if looked is None else len(looked[1])
        assert 60 <= made <= 80
        assert cache.figures().misses >= 14_000


def test_a_row_that_is_asked_for_outlives_those_that_are_not() -> None:
    cache = SubResults(100_000)
    cache.put("s", "hot", *row(50))
    for i in range(500):
        looked = cache.look("s", ["hot"])
        assert looked is not None
        assert list(looked[0]) == [0]
        cache.put("s", f"cold {i}", *row(50))
    figures = cache.figures()
    assert figures.evicted > 200
    assert figures.bytes <= 100_000


def test_a_row_that_is_too_large_is_not_kept() -> None:
    cache = SubResults(100_000)
    cache.put("s", "large", *row(1_000))
    assert cache.figures().rows == 0


def test_it_rests_while_nothing_comes_again_and_then_looks_again() -> None:
    cache = SubResults(MIB)
    fresh = iter(range(10**9))
    while not cache.rests(0):
        cache.look("s", [f"{next(fresh)}" for _ in range(64)])
    assert cache.figures().misses < 5_000
    while cache.rests(64):
        pass
    assert 10_000 < cache.figures().skipped < 30_000
    assert cache.look("s", ["never before"]) is None


def test_threads_share_it() -> None:
    some = plans("union")
    expected = [plan.predict(DOCUMENTS).tolist() for plan in some]
    cache = materialised(some, 20_000)
    barrier = threading.Barrier(4)

    def work(i: int) -> list[bool]:
        barrier.wait()
        return [some[i].predict(DOCUMENTS[k % 4 :]).tolist() == expected[i][k % 4 :] for k in range(40)]

    with ThreadPoolExecutor(4) as pool:
        assert all(all(same) for same in pool.map(work, range(4)))
    assert cache.figures().bytes <= 20_000
