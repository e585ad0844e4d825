"""The kill switch: by append time, the same for every role; and choices without the models that it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.admission import Admission
from streamserve.core.epochs import EpochTable
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.reasons import Reason
from streamserve.core.selection.ab import AB
from streamserve.core.selection.base import Distribution, Policy
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.masking import masked
from streamserve.core.selection.static import Static
from streamserve.core.switches import Switches, SwitchRecord
from tests.core.kit import START_MS, app, requests, route

MODELS = ("a@1", "a@2", "b@1")
DELAY_MS = 250


def switch(model: str, append_ms: int, offset: int, *, disabled: bool = True) -> SwitchRecord:
    return SwitchRecord(model=model, disabled=disabled, append_ms=append_ms, offset=offset)


def allowed(records: list[SwitchRecord], *append_ms: int) -> list[int]:
    switches = Switches(DELAY_MS)
    switches.apply(records)
    found = switches.allowed(MODELS, np.array(append_ms))
    return [7] * len(append_ms) if found is None else found.tolist()


def test_a_switch_holds_from_a_delay_after_it_until_the_next_one() -> None:
    records = [switch("b@1", 1_000, 0), switch("b@1", 2_000, 1, disabled=False)]
    for order in (records, records[::-1]):
        assert allowed(order, 1_249, 1_250, 2_249, 2_250) == [7, 3, 3, 7]


def test_a_name_means_every_version_and_a_route_keeps_one_model() -> None:
    assert allowed([switch("a", 0, 0)], 1_000) == [4]
    assert allowed([switch("a", 0, 0), switch("b@1", 100, 0)], 250, 350) == [4, 7]
    assert allowed([switch("other", 0, 0)], 1_000) == [7]


def test_of_a_switch_that_is_thrown_all_the_time_the_newest_are_remembered() -> None:
    switches = Switches(DELAY_MS)
    records = [switch("b@1", 1_000 * n, n, disabled=n % 2 == 0) for n in range(1_000)]
    switches.apply(records)
    assert len(switches._by_name["b@1"]) == Switches.MOST_REMEMBERED
    found = switches.allowed(MODELS, np.array([998_250, 999_249, 999_250]))
    assert found is not None and found.tolist() == [3, 3, 7]


CHOICES = st.lists(st.tuples(st.integers(1, 31), st.integers(1, 1_000)), min_size=1, max_size=8)


@given(CHOICES, st.integers(1, 31))
def test_what_is_left_sums_to_one_and_names_nobody_who_is_left_out(choices: list[tuple[int, int]], mask: int) -> None:
    parts = [part for _, part in choices]
    probabilities = [PROBABILITY_ONE * part // sum(parts) for part in parts]
    probabilities[0] += PROBABILITY_ONE - sum(probabilities)
    found = Distribution(
        masks=np.array([chosen for chosen, _ in choices], np.uint64),
        probabilities=np.array(probabilities),
        weights=np.full(5, 0.2),
    )
    left = masked(found, mask)
    assert left.probabilities.sum() == PROBABILITY_ONE
    assert (left.probabilities > 0).all()
    assert all(0 < chosen == chosen & mask for chosen in left.masks.tolist())
    assert len(set(left.masks.tolist())) == len(left.masks)


def chosen(policy: Policy, *append_ms: int) -> list[int]:
    rules = app(route(MODELS, policy=policy, learns=policy.initial(MODELS) is not None))
    table = EpochTable(rules)
    table.known_until(START_MS)
    table.switch([switch("b@1", 1_000, 0)])
    n = len(append_ms)
    choice = table.choose(0, np.zeros(n, np.int64), np.arange(n), np.array(append_ms))
    return choice.chosen.tolist()


@pytest.mark.parametrize("policy", [Hedge(), Static()])
def test_an_ensemble_goes_on_without_a_model_that_is_switched_off(policy: Policy) -> None:
    assert chosen(policy, 1_000, 1_249, 1_250, 9_000) == [7, 7, 3, 3]


def test_a_split_never_draws_it_and_keeps_the_proportions_of_the_others() -> None:
    policy = AB(shares={"a@1": 1.0, "a@2": 3.0, "b@1": 4.0})
    drawn = np.array(chosen(policy, *[5_000] * 4_000))
    assert set(drawn.tolist()) == {1, 2}
    assert (drawn == 2).mean() == pytest.approx(0.75, abs=0.03)


def test_a_request_may_leave_models_out_and_what_is_switched_off_stays_off() -> None:
    rules = app(route(MODELS, policy=Static()))
    table = EpochTable(rules)
    table.switch([switch("b@1", 1_000, 0)])
    without = np.array([0, 1, 2, 3, 1], np.uint64)
    times = np.array([5_000, 5_000, 5_000, 5_000, 1_100])
    choice = table.choose(0, np.zeros(5, np.int64), np.arange(5), times, without=without)
    assert choice.chosen.tolist() == [3, 2, 1, 4, 6]  # who leaves out all that is on gets what it asked for


@pytest.mark.parametrize(
    ("text", "chosen", "words"),
    [
        (b"b", 3, ""),
        (b"a@1, b@1", 2, ""),
        (b" a ,", 4, ""),
        (b"", 7, ""),
        (b"c", 0, "ss-without names 'c'; the route has a@1, a@2, b@1"),
        (b"a,b", 0, "ss-without leaves no model to ask"),
        (b"a\xff", 0, "header ss-without is b'a\\xff': not UTF-8"),
    ],
)
def test_the_header_names_models_by_id_or_name(text: bytes, chosen: int, words: str) -> None:
    rules = app(route(MODELS, policy=Static()))
    admission = Admission(rules, EpochTable(rules))
    admitted = admission.admit(requests([b"x:1,1"], headers=(("ss-without", text),)).requests)
    if words:
        reason, said = admitted.errors[0]
        assert (reason, words in said) == (Reason.BAD_HEADER, True)
    else:
        assert admitted.choice.chosen.tolist() == [chosen]
        assert not admitted.errors
