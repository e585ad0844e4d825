"""Admission is a function of the request: not of its neighbours, of what came before, or of how it was fetched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core import admission as module
from streamserve.core.admission import Admission, Admitted
from streamserve.core.epochs import EpochTable
from streamserve.core.messages import Headers, Requests
from streamserve.core.reasons import Reason
from streamserve.core.selection.exp3 import Exp3
from tests.core.kit import app, route
from tests.effort import examples

RULES = app(
    route(("a@1", "b@1"), name="r"),
    route(("b@1", "c@2"), name="s", policy=Exp3(), learns=True, deadline_ms=50),
)
NAMES = ["ss-route", "ss-deadline-ms", "mlserver-model", "ce_id", "traceparent", "content-type", "ss-route\x00", ""]
VALUES = [
    None,
    b"",
    b"r",
    b"s",
    b"nowhere",
    b"a",
    b"c@2",
    b"b",
    b"100",
    b"0",
    b"-1",
    b"1_000",
    b" 7 ",
    b"60001",
    b"9" * 5000,
    "\u0661\u0662".encode(),
    b"\xff\xfe",
    b"x" * 70_000,
]
headers = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES) | st.binary(max_size=6)), max_size=5)


def fetch(found: list[Headers], first: int = 0) -> Requests:
    n = len(found)
    return Requests(
        partition=np.ones(n, np.int64),
        offsets=np.arange(first, first + n),
        append_ms=np.full(n, 1_000),
        keys=[None] * n,
        values=[b""] * n,
        headers=found,
    )


def new() -> Admission:
    return Admission(RULES, EpochTable(RULES))


def row(admitted: Admitted, i: int) -> Any:
    choice = admitted.choice
    return (
        int(admitted.route[i]),
        int(admitted.deadline_ms[i]),
        int(choice.chosen[i]),
        int(choice.probability[i]),
        int(choice.epoch[i]),
        bool(choice.stale[i]),
        bool(admitted.forced[i]),
        admitted.ids[i],
        admitted.traces[i],
        admitted.errors.get(i),
    )


@settings(max_examples=examples(150))
@given(st.lists(headers, min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 3))
def test_any_headers_are_admitted_alike_alone_and_in_company(found: list[list[Any]], piece: int, limit: int) -> None:
    requests = [tuple(pairs) for pairs in found]
    old, module._MEMO_LIMIT = module._MEMO_LIMIT, limit  # eviction at every turn
    try:
        together = new()
        parts = [together.admit(fetch(requests[i : i + piece], i)) for i in range(0, len(requests), piece)]
    finally:
        module._MEMO_LIMIT = old
    for i, one in enumerate(requests):
        assert row(parts[i // piece], i % piece) == row(new().admit(fetch([one], i)), 0)


def test_more_distinct_headers_than_the_memo_holds() -> None:
    shared = new()
    for first in range(0, 9_000, 500):
        found: list[Headers] = [
            (("x-request", b"%d" % i), ("ss-route", b"rs"[i % 2 : i % 2 + 1]), ("ss-deadline-ms", b"%d" % (i % 7_000)))
            for i in range(first, first + 500)
        ]
        admitted = shared.admit(fetch(found, first))
        assert admitted.route.tolist() == [i % 2 for i in range(first, first + 500)]
        budgets = admitted.deadline_ms - 1_000
        assert budgets.tolist() == [i % 7_000 for i in range(first, first + 500)]
        assert set(admitted.errors) == {i - first for i in range(first, first + 500) if i % 7_000 == 0}
    assert sum(len(one._memo) for one in shared._by_period.values()) <= 4096 + 500
    assert sum(len(one._asks) for one in shared._by_period.values()) <= 4096 + 500


def test_large_headers_are_read_as_others_and_not_remembered() -> None:
    """4,096 of a MiB each would be 4 GiB."""
    shared, large = new(), b"x" * 5_000
    admitted = shared.admit(
        fetch([(("x-trace", large), ("ss-route", b"s")), (("ss-route", large),), (("ss-route", b"s"),)])
    )
    assert admitted.route.tolist() == [1, -1, 1]
    assert set(admitted.errors) == {1}
    (one,) = shared._by_period.values()
    assert [*one._memo, *one._asked] == 2 * [(("ss-route", b"s"),)]
    assert admitted.n_bytes.tolist() == [5_016, 5_008, 9]


def test_an_applications_own_headers_are_not_parsed_anew() -> None:
    shared = new()
    shared.admit(fetch([(("x-request", b"%d" % i), ("ss-route", b"r")) for i in range(1_000)]))
    assert [len(one._asks) for one in shared._by_period.values()] == [1]


@pytest.mark.parametrize(
    ("value", "budget"),
    [
        (b"1_000", None),
        ("\u0661\u0662".encode(), None),
        (b"+5", None),
        (b" 7 ", 7),
        (b"60000", 60_000),
        (b"60001", None),
    ],
)
def test_a_budget_is_a_plain_number(value: bytes, budget: int | None) -> None:
    admitted = new().admit(fetch([(("ss-route", b"r"), ("ss-deadline-ms", value))]))
    if budget is None:
        assert admitted.errors[0][0] is Reason.BAD_DEADLINE
    else:
        assert admitted.deadline_ms.tolist() == [1_000 + budget]


def test_the_last_of_equal_headers_counts_and_null_is_no_header() -> None:
    admitted = new().admit(
        fetch([(("ss-route", b"r"), ("ss-route", b"s")), (("ss-route", b"r"), ("ss-deadline-ms", None))])
    )
    assert admitted.route.tolist() == [1, 0]
    assert admitted.deadline_ms.tolist() == [1_050, 1_100]
