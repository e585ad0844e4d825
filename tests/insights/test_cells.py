from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from streamserve.insights.cells import RELATIVE_ERROR, Cell, Row, added, quantile_ms, value_of

OUTCOMES = ("ok", "partial", "default", "expired", "error")


def cell(seed: int) -> Cell:
    chance, made = random.Random(seed), Cell()
    for _ in range(chance.randrange(20)):
        made.predicted(chance.choice(OUTCOMES), answered=chance.random() < 0.5, agreement=chance.random())
        made.told(chance.randrange(100_000), chance.random())
        if chance.random() < 0.1:
            made.alarmed(chance.randrange(1_000))
    return made


@given(seeds=st.lists(st.integers(0, 1 << 32), max_size=6), order=st.randoms())
def test_cells_add_up_to_the_same_in_any_order(seeds: list[int], order: random.Random) -> None:
    cells = [cell(seed) for seed in seeds]
    total = added(cells)
    order.shuffle(cells)
    assert added(cells) == total
    assert total.predictions == sum(one.predictions for one in cells)
    assert sum(total.delays.values()) == total.feedback


@given(delays=st.lists(st.integers(1, 10**10), min_size=1, max_size=300), q=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_a_hundredth(delays: list[int], q: float) -> None:
    made = Cell()
    for delay in delays:
        made.told(delay, None)
    exact = sorted(delays)[int(q * (len(delays) - 1))]
    found = quantile_ms(made.delays, q)
    assert found is not None
    assert abs(found - exact) <= RELATIVE_ERROR * exact * (1 + 1e-9)


def test_nothing_has_no_quantile_and_no_mean() -> None:
    value = value_of(Row("main", "", "", 0), Cell(), 60_000, final=False)
    assert (value.delay_p50_ms, value.accuracy, value.agreement, value.join_rate, value.drift_ms) == (None,) * 5


def test_a_row_says_what_was_counted() -> None:
    made = Cell()
    for label, wrong in (("ok", 0.0), ("ok", 0.0), ("ok", 1.0), ("expired", None)):
        made.predicted(label, answered=wrong is not None, agreement=None if wrong is None else 1.0)
        if wrong is not None:
            made.told(200, wrong)
    made.alarmed(77)
    value = value_of(Row("main", "a@1", "eu", 60_000), made, 60_000, final=True)
    assert (value.from_ms, value.until_ms, value.final) == (60_000, 120_000, True)
    assert (value.predictions, value.answered, value.outcomes) == (4, 3, {"expired": 1, "ok": 3})
    assert (value.feedback, value.join_rate, value.judged, value.accuracy) == (3, 0.75, 3, 1.0 - 1 / 3)
    assert (value.agreement, value.drift_alarms, value.drift_ms) == (1.0, 1, 77)


def test_what_gets_feedback_twice_has_a_join_rate_of_at_most_one() -> None:
    made = Cell()
    made.predicted("ok", answered=True, agreement=1.0)
    made.told(1, None)
    made.told(2, None)
    assert value_of(Row("main", "", "", 0), made, 1, final=False).join_rate == 1.0
