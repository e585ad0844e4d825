"""Values that are frozen by the type checker: their equality and hash are those of frozen dataclasses."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.values import unchanging


@unchanging()
class Place:
    name: str
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPlace:
    name: str
    number: int = 0


@unchanging(eq=False)
class Block:
    rows: list[int] = field(default_factory=list)


_PLACES = st.tuples(st.text(max_size=2), st.integers(0, 3))


@given(_PLACES, _PLACES)
def test_it_compares_and_hashes_as_a_frozen_one(one: tuple[str, int], other: tuple[str, int]) -> None:
    mine = [Place(name=name, number=number) for name, number in (one, other)]
    frozen = [FrozenPlace(name=name, number=number) for name, number in (one, other)]
    assert (mine[0] == mine[1]) == (frozen[0] == frozen[1])
    assert [hash(place) for place in mine] == [hash(place) for place in frozen]


def test_without_eq_it_is_equal_only_to_itself() -> None:
    block = Block()
    assert block == block
    assert block != Block()
    assert len({block, Block()}) == 2


def test_it_has_no_room_for_more_and_is_a_dataclass() -> None:
    place = Place(name="a")
    assert not hasattr(place, "__dict__")
    assert [field.name for field in fields(place)] == ["name", "number"]
    assert replace(place, number=2) == Place(name="a", number=2)
    assert pickle.loads(pickle.dumps(place)) == place
    with pytest.raises(TypeError):
        Place("a")  # type: ignore[misc]
