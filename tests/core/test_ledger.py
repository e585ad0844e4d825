from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.ledger import Ledger


def offsets(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_nothing_read_commits_where_reading_begins() -> None:
    assert Ledger(7).committable() == 7


def test_the_lowest_open_offset_holds_the_commit() -> None:
    ledger = Ledger(0)
    ledger.opened(offsets(0, 1, 2, 3))
    ledger.settle(offsets(1, 2))
    assert ledger.committable() == 0
    ledger.settle(offsets(0))
    assert ledger.committable() == 3
    ledger.settle(offsets(3))
    assert ledger.committable() == 4


def test_gaps_are_settled() -> None:
    ledger = Ledger(0)
    ledger.opened(offsets(5, 9), next_offset=12)
    assert ledger.committable() == 5
    ledger.settle(offsets(5))
    assert ledger.committable() == 9
    ledger.settle(offsets(9))
    assert ledger.committable() == 12


def test_a_fetch_without_records_moves_on() -> None:
    ledger = Ledger(3)
    ledger.opened(offsets(), next_offset=8)
    assert ledger.committable() == 8


def test_settling_twice_or_what_was_never_opened_changes_nothing() -> None:
    ledger = Ledger(0)
    ledger.opened(offsets(2, 4, 6))
    ledger.settle(offsets(4, 4, 3, 99, -1))
    ledger.settle(offsets(4))
    assert len(ledger) == 2
    assert ledger.committable() == 2


def test_an_offset_that_was_read_is_refused() -> None:
    ledger = Ledger(0)
    ledger.opened(offsets(4))
    with pytest.raises(ValueError, match="already read"):
        ledger.opened(offsets(4))


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.lists(st.integers(1, 4), max_size=400)),
        st.tuples(st.just("settle"), st.lists(st.integers(0, 3_000), max_size=200)),
        st.tuples(st.just("settle lowest"), st.integers(0, 600)),
    ),
    max_size=30,
)


@given(_STEPS)
def test_it_agrees_with_a_set(steps: list[tuple[str, object]]) -> None:
    ledger, held, next_offset = Ledger(0), set[int](), 0
    for what, value in steps:
        if what == "open":
            gaps: list[int] = value  # type: ignore[assignment]
            new = (next_offset - 1 + np.cumsum(gaps)).astype(np.int64)
            ledger.opened(new)
            held |= set(new.tolist())
            next_offset = int(new[-1]) + 1 if len(new) else next_offset
        else:
            chosen = sorted(held)[:value] if isinstance(value, int) else value  # type: ignore[assignment]
            ledger.settle(np.array(chosen, np.int64))
            held -= set(chosen)  # type: ignore[arg-type]
        assert len(ledger) == len(held)
        assert ledger.committable() == (min(held) if held else next_offset)
