"""The table of learnt states: which is in force when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.bounds import Bounds
from streamserve.core.epochs import EpochTable, outcome_partition
from streamserve.core.messages import INITIAL_EPOCH
from streamserve.core.records import StateRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.base import Policy, pick, salt_of
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.static import Static

MODELS = ("a@1", "b@1", "c@1")
DELAY_MS = 250


def table_of(policy: Policy, **bounds: int) -> EpochTable:
    learns = policy.name != "static"
    route = Route(name="r", models=MODELS, policy=policy, combine="vote", deadline_ms=100, learns=learns)
    return EpochTable(AppRules(routes=(route,), epoch_delay_ms=DELAY_MS, bounds=Bounds(**bounds)))


def state(
    epoch: int, append_ms: int, loss: float = 0.0, previous: int = -1, included: int = 0, **other: str
) -> StateRecord:
    fields = {"route": "r", "context": "", "policy": "exp3", **other}
    data = {"losses": {"a@1": loss, "b@1": 0.0, "c@1": 0.0}, "events": 1}
    return StateRecord(
        data=data,
        includes={0: included},
        partition=0,
        epoch=epoch,
        append_ms=append_ms,
        previous=previous,
        **fields,
    )


def epochs_at(table: EpochTable, *append_ms: int) -> list[int]:
    times = np.array(append_ms, np.int64)
    return table.choose(0, np.full(len(times), 0), np.arange(len(times), dtype=np.int64), times).epoch.tolist()


def test_a_state_holds_from_its_append_time_plus_the_delay() -> None:
    table = table_of(Exp3())
    table.apply([state(4, 1_000), state(9, 2_000)])
    assert epochs_at(table, 1_249, 1_250, 2_249, 2_250) == [INITIAL_EPOCH, 4, 4, 9]


def test_a_state_that_is_too_old_leaves_it_to_the_initial_one_until_the_next() -> None:
    route = Route(
        name="r", models=MODELS, policy=Exp3(), combine="vote", deadline_ms=100, learns=True, max_state_age_ms=5_000
    )
    table = EpochTable(AppRules(routes=(route,), epoch_delay_ms=DELAY_MS))
    table.apply([state(4, 1_000), state(5, 2_000), state(9, 20_000)])
    moments = [1_000, 1_250, 2_250, 7_000, 7_001, 20_249, 20_250, 25_000, 25_001]
    decided = epochs_at(table, *moments)
    assert decided == [INITIAL_EPOCH, 4, 5, 5, INITIAL_EPOCH, INITIAL_EPOCH, 9, 9, INITIAL_EPOCH]
    ages = table.ages_ms(0, np.array(decided), np.array(moments))
    assert ages.tolist() == [-1, 250, 250, 5_000, 5_001, 18_249, 250, 5_000, 5_001]


def test_how_old_the_state_was_that_chose() -> None:
    table = table_of(Exp3())
    table.apply([state(4, 1_000), state(9, 2_000)])
    moments = np.array([1_100, 1_300, 90_000])
    ages = table.ages_ms(0, np.array([INITIAL_EPOCH, 4, 9]), moments)
    assert ages.tolist() == [-1, 300, 88_000]


def test_of_states_with_one_time_the_highest_offset_wins() -> None:
    table = table_of(Exp3())
    table.apply([state(5, 1_000), state(4, 1_000), state(6, 1_000)])
    assert epochs_at(table, 1_250) == [6]


def test_a_later_record_with_an_earlier_time_takes_over_at_once() -> None:
    """Brokers' clocks differ a little: after a change of leader append times may step back."""
    table = table_of(Exp3())
    table.apply([state(4, 1_000), state(5, 900)])
    assert epochs_at(table, 1_149, 1_150, 1_250) == [INITIAL_EPOCH, 5, 5]


@given(
    written=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=12),
    requests=st.lists(st.integers(0, 400), min_size=1, max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_the_choice_is_the_rule_of_the_design_in_any_order_of_arrival(written, requests, order) -> None:
    records = [
        state(epoch, ms, loss=float(epoch), previous=epoch - 1, included=included)
        for epoch, (ms, included) in enumerate(written)
    ]
    in_time = [r for r in records if all(r.included >= before.included for before in records[: r.epoch])]
    shuffled = list(records)
    order.shuffle(shuffled)
    table = table_of(Exp3())
    for record in shuffled:
        table.apply([record, record])
    expected = [
        max((r.epoch for r in in_time if r.append_ms + DELAY_MS <= request), default=INITIAL_EPOCH)
        for request in requests
    ]
    choice = table.choose(
        0, np.full(len(requests), 2), np.arange(len(requests), dtype=np.int64), np.array(requests, np.int64)
    )
    assert choice.epoch.tolist() == expected
    for place, epoch in enumerate(expected):
        policy = Exp3()
        value = policy.initial(MODELS) if epoch < 0 else policy.load(records[epoch].data, MODELS)
        distribution = policy.distribution(value, MODELS)
        masks, logged = pick(distribution, np.array([2]), np.array([place], np.int64), salt_of("r", "exp3"))
        assert (choice.chosen[place], choice.probability[place]) == (masks[0], logged[0])
        assert np.array_equal(table.weights_of_all(0, epoch), distribution.weights)


def test_beyond_what_is_known_a_choice_is_stale_and_made_on_the_newest_state() -> None:
    table = table_of(Exp3())
    table.apply([state(4, 1_000)])
    offsets, times = np.arange(2, dtype=np.int64), np.array([1_500, 9_000], np.int64)
    assert table.choose(0, np.zeros_like(offsets), offsets, times).stale.tolist() == [True, True]
    table.known_until(1_300)
    choice = table.choose(0, np.zeros_like(offsets), offsets, times)
    assert (choice.stale.tolist(), choice.epoch.tolist()) == ([False, True], [4, 4])
    table.known_until(500)  # knowing does not go back
    assert table.choose(0, np.zeros_like(offsets), offsets, times).stale.tolist() == [False, True]


def test_a_static_route_is_never_stale() -> None:
    choice = table_of(Static()).choose(
        0, np.full(3, 0), np.arange(3, dtype=np.int64), np.array([1, 2, 1 << 50], np.int64)
    )
    assert choice.stale.tolist() == [False] * 3
    assert choice.epoch.tolist() == [INITIAL_EPOCH] * 3


def test_no_requests_no_choices() -> None:
    choice = table_of(Hedge()).choose(0, np.full(0, 0), np.empty(0, np.int64), np.empty(0, np.int64))
    assert len(choice.chosen) == len(choice.stale) == 0


@pytest.mark.parametrize("other", [{"policy": "hedge"}, {"context": "user"}, {"route": "unknown"}])
def test_states_of_others_are_ignored(other: dict[str, str]) -> None:
    table = table_of(Exp3())
    table.apply([state(4, 1_000, **other)])
    assert epochs_at(table, 5_000) == [INITIAL_EPOCH]


def test_an_unknown_epoch_has_the_weights_of_the_nearest_older_one() -> None:
    table = table_of(Exp3())
    table.apply([state(4, 1_000, loss=10.0), state(8, 2_000, loss=20.0, previous=4)])
    four, eight = table.weights_of_all(0, 4), table.weights_of_all(0, 8)
    assert four[0] > eight[0]
    assert np.array_equal(table.weights_of_all(0, 6), four)
    assert np.array_equal(table.weights_of_all(0, 99), eight)
    assert table.weights_of_all(0, INITIAL_EPOCH)[0] == pytest.approx(1 / 3)
    assert table.weights_of_all(0, 2)[0] == pytest.approx(1 / 3)


def test_before_a_snapshot_history_is_unknown_and_the_choice_stale() -> None:
    table = table_of(Exp3())
    table.apply([state(40, 1_000, previous=39)])
    table.known_until(5_000)
    choice = table.choose(0, np.full(2, 0), np.arange(2, dtype=np.int64), np.array([1_000, 1_300], np.int64))
    assert (choice.epoch.tolist(), choice.stale.tolist()) == ([40, 40], [True, False])
    assert np.array_equal(table.weights_of_all(0, 12), table.weights_of_all(0, 40))


def test_only_the_newest_states_are_kept_and_older_requests_are_decided_by_the_oldest_of_them() -> None:
    table = table_of(Exp3(), learnt_states=53)
    for first in range(0, 100, 10):
        table.apply([state(epoch, epoch * 100, previous=epoch - 1) for epoch in range(first, first + 10)])
        assert table.fills()["learnt_states"].used <= 53
    table.known_until(20_000)
    assert table.fills()["learnt_states"] == (53, 53)
    assert epochs_at(table, 5_000, 5_049, 5_050, 6_000, 1 << 49) == [47, 47, 48, 57, 99]
    older = table.choose(0, np.full(1, 0), np.zeros(1, np.int64), np.array([4_000], np.int64))
    assert (older.epoch.tolist(), older.stale.tolist()) == ([47], [True])
    table.apply([state(12, 1_200, previous=11)])  # of before all that: comes too late to be kept
    assert epochs_at(table, 1_500) == [47]


@pytest.mark.parametrize("between", [0, 99])
def test_a_state_that_reached_the_log_late_takes_over_from_none(between: int) -> None:
    """Its writer was shut out, or gave it up: what was learnt since counts, however many states ago that was."""
    table = table_of(Exp3(), learnt_states=53)
    table.apply([state(4, 1_000, included=10)])
    later = [state(5 + n, 2_000 + n, included=20 + n, previous=4 + n) for n in range(between + 1)]
    for record in later:
        table.apply([record])
    late = state(200, 3_000, included=19, previous=4)
    table.apply([late])
    assert epochs_at(table, 9_000) == [later[-1].epoch]
    table.apply([state(201 + n, 4_000 + n, included=19, previous=4) for n in range(99)])
    assert epochs_at(table, 9_000) == [later[-1].epoch]
    table.apply([state(400, 5_000, included=later[-1].included + 1, previous=later[-1].epoch)])
    assert epochs_at(table, 9_000) == [400]


def test_shared_states_spread_over_partitions_by_a_stable_hash() -> None:
    assert outcome_partition("digits", "", 4) == outcome_partition("digits", "", 4)
    counts = np.bincount([outcome_partition("digits", str(context), 4) for context in range(4_000)], minlength=4)
    assert counts.min() > 800
