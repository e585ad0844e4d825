"""Placements: everybody has a place, sharers are together, memory is never above that of dealing out in turn."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.plan.placement import SLACK, place
from tests.effort import examples

MB = 1_000_000
arrays = st.dictionaries(st.sampled_from([f"a{i}" for i in range(12)]), st.just(0), max_size=5)


@given(models=st.lists(arrays, max_size=40), pools=st.integers(1, 6), sizes=st.integers(1, 100))
@settings(max_examples=examples(100))
def test_laws_of_a_placement(models: list[dict[str, int]], pools: int, sizes: int) -> None:
    named = {f"m{i}": {name: sizes + 7 * int(name[1:]) for name in held} for i, held in enumerate(models)}
    found = place(named, pools)
    assert sorted(model for members in found.pools for model in members) == sorted(named)
    assert len(found.pools) == pools
    most = max(-(-len(named) // pools), int((1 + SLACK) * len(named) / pools))
    assert all(len(members) <= most for members in found.pools)
    assert found.bytes <= found.dealt_bytes <= found.unshared_bytes
    for members, size in zip(found.pools, found.pool_bytes, strict=True):
        distinct = {name: value for model in members for name, value in named[model].items()}
        assert size == sum(distinct.values())


def test_no_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one pool"):
        place({}, 0)


def sentiment(models: int, families: int, draw: random.Random) -> dict[str, dict[str, int]]:
    """As PRETZEL's Figure 3: a dictionary of 59 MB and one of 0.5 MB in common, weights of 15 MB of one's own."""
    found = {}
    for i in range(models):
        family = draw.randrange(families)
        found[f"m{i}"] = {f"words{family}": 59 * MB, f"characters{family % 6}": MB // 2, f"weights{i}": 15 * MB}
    return found


@pytest.mark.parametrize(("models", "families", "pools"), [(5_000, 40, 20), (3_000, 7, 8), (2_000, 200, 16)])
def test_thousands_of_models(models: int, families: int, pools: int) -> None:
    named = sentiment(models, families, random.Random(4))
    found = place(named, pools)
    homes = {family: set[int]() for family in range(families)}
    for pool, members in enumerate(found.pools):
        for model in members:
            homes[int(next(name for name in named[model] if name.startswith("words"))[5:])].add(pool)
    # a dictionary is in as few pools as can hold its users, and those that begin in what another left over
    assert sum(map(len, homes.values())) <= families + pools
    assert found.bytes - 15 * MB * models <= (families + pools) * 59 * MB + 6 * pools * MB
    assert found.bytes < found.dealt_bytes
    assert found.unshared_bytes == pytest.approx(74.5 * MB * models)


def test_models_that_share_nothing_are_dealt_out_evenly() -> None:
    found = place({f"m{i}": {f"a{i}": 10} for i in range(30)}, 3)
    assert [len(members) for members in found.pools] == [10, 10, 10]
    assert found.bytes == found.dealt_bytes == found.unshared_bytes == 300
