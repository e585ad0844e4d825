"""What labels and rewards say about each model."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.core.losses import Unusable, losses_of
from streamserve.core.records import Decision, FeedbackRecord

NOTHING = object()


def decision_of(
    members: dict[str, Any], chosen: tuple[str, ...] | None = None, outcome: str = "ok", rows: int = 1
) -> Decision:
    return Decision(
        id="0-0", route="r", outcome=outcome, epoch=-1, probability=1.0, off_epoch=False,
        chosen=tuple(members) if chosen is None else chosen, label=None, members=members, rows=rows,
    )  # fmt: skip


def feedback_of(label: Any = NOTHING, reward: float | None = None, model: str | None = None) -> FeedbackRecord:
    has_label = label is not NOTHING
    return FeedbackRecord(
        partition=0, offset=0, append_ms=0, ref=(0, 0), id=None, label=label if has_label else None,
        has_label=has_label, reward=reward, model=model,
    )  # fmt: skip


def losses(members: dict[str, Any], label: Any, combine: str = "vote", rows: int = 1) -> Any:
    return losses_of(combine, decision_of(members, rows=rows), members, feedback_of(label))


@pytest.mark.parametrize("label", [7, [7], 7.0])
def test_classes_are_right_or_wrong(label: Any) -> None:
    assert losses({"a@1": [7], "b@1": [3]}, label) == {"a@1": 0.0, "b@1": 1.0}


def test_many_rows_give_their_mean() -> None:
    members = {"a@1": ["x", "y", "z", "z"], "b@1": ["y", "y", "y", "y"]}
    assert losses(members, ["x", "y", "x", "x"], rows=4) == {"a@1": 0.5, "b@1": 0.75}


def test_one_label_holds_for_every_row() -> None:
    assert losses({"a@1": [1, 2]}, 2, rows=2) == {"a@1": 0.5}


def test_a_member_with_another_number_of_rows_is_left_out() -> None:
    assert losses({"a@1": [1, 2], "b@1": [1]}, [1, 1], rows=2) == {"a@1": 0.5}


@pytest.mark.parametrize("outcome", ["expired", "error", "default"])
def test_where_nobody_answered_a_label_informs_nobody(outcome: str) -> None:
    decision = decision_of({}, chosen=("a@1",), outcome=outcome, rows=0)
    assert losses_of("vote", decision, {}, feedback_of(7)) == {}
    assert losses_of("vote", decision, {}, feedback_of([7, 8])) == {}


def test_vectors_are_compared_whole() -> None:
    members = {"a@1": [[1, 0]], "b@1": [[0, 0]]}
    for label in ([1, 0], [[1, 0]]):
        assert losses(members, label) == {"a@1": 0.0, "b@1": 1.0}


def test_numbers_are_compared_by_symmetric_relative_error() -> None:
    members = {"exact@1": [10.0], "near@1": [8], "far@1": [-10.0], "zero@1": [0.0]}
    assert losses(members, 10, "mean") == {
        "exact@1": 0.0, "near@1": pytest.approx(2 / 18), "far@1": 1.0, "zero@1": 1.0,
    }  # fmt: skip
    assert losses({"zero@1": [0.0]}, 0, "mean") == {"zero@1": 0.0}
    assert losses({"a@1": [[1.0, 2.0]]}, [1.0, 4.0], "mean") == {"a@1": pytest.approx(2 / 8)}
    assert losses({"a@1": [[1.0, 2.0]]}, [1.0], "mean", rows=1) == {"a@1": 1.0}


NUMBERS = st.floats() | st.integers()


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4))
def test_a_loss_is_never_outside_0_to_1(pairs: list[tuple[Any, Any]]) -> None:
    labels, answers = [list(side) for side in zip(*pairs, strict=True)]
    for combine in ("mean", "vote"):
        got = losses({"a@1": answers}, labels, combine, rows=len(pairs))
        if not isinstance(got, Unusable):
            assert 0.0 <= got["a@1"] <= 1.0


@pytest.mark.parametrize(
    ("members", "label", "combine", "reason"),
    [
        ({"a@1": [1, 2, 3]}, [1, 2], "vote", "label_rows"),
        ({"a@1": [1]}, [1, 2], "vote", "label_rows"),
        ({"a@1": [[1, 2]]}, 1, "vote", "label_rows"),
        ({"a@1": [5]}, "5", "vote", "label_kind"),
        ({"a@1": ["cat"]}, 5, "vote", "label_kind"),
        ({"a@1": [5]}, None, "vote", "label_kind"),
        ({"a@1": [5]}, {"class": 5}, "vote", "label_kind"),
        ({"a@1": [5]}, "5", "mean", "label_not_number"),
        ({"a@1": [5]}, math.nan, "mean", "label_not_number"),
        ({"a@1": [5]}, 10**400, "mean", "label_not_number"),
    ],
)
def test_a_label_that_does_not_fit_is_refused(members: dict[str, Any], label: Any, combine: str, reason: str) -> None:
    got = losses(members, label, combine, rows=len(members["a@1"]))
    assert isinstance(got, Unusable)
    assert got.reason == reason


def test_a_label_for_a_request_that_nobody_answered_teaches_nobody() -> None:
    decision = decision_of({}, chosen=("a@1",), outcome="expired")
    assert losses_of("vote", decision, {}, feedback_of(3)) == {}


def test_a_reward_informs_the_only_model_chosen() -> None:
    decision = decision_of({"a@1": [1]})
    assert losses_of("vote", decision, decision.members, feedback_of(reward=0.75)) == {"a@1": 0.25}


def test_a_reward_of_an_ensemble_informs_only_the_model_that_it_names() -> None:
    decision = decision_of({"a@1": [1], "b@1": [2]})
    assert losses_of("vote", decision, decision.members, feedback_of(reward=1.0)) == {}
    assert losses_of("vote", decision, decision.members, feedback_of(reward=1.0, model="b")) == {"b@1": 0.0}


def test_a_reward_for_a_default_says_nothing_about_models() -> None:
    decision = decision_of({"a@1": [1]}, outcome="default")
    assert losses_of("vote", decision, decision.members, feedback_of(reward=0.0)) == {}


@pytest.mark.parametrize("reward", [math.nan, math.inf, -0.1, 1.0001])
def test_a_reward_out_of_range_is_refused(reward: float) -> None:
    decision = decision_of({"a@1": [1]})
    got = losses_of("vote", decision, decision.members, feedback_of(reward=reward))
    assert isinstance(got, Unusable)
    assert got.reason == "bad_reward"


def test_a_label_for_one_model_informs_that_one() -> None:
    decision = decision_of({"a@1": [1], "b@1": [2]})
    assert losses_of("vote", decision, decision.members, feedback_of(1, model="b@1")) == {"b@1": 1.0}
    got = losses_of("vote", decision, decision.members, feedback_of(1, model="z"))
    assert isinstance(got, Unusable)
    assert got.reason == "unknown_model"


def test_feedback_without_label_and_reward_is_refused() -> None:
    got = losses_of("vote", decision_of({}), {}, feedback_of())
    assert isinstance(got, Unusable)
    assert got.reason == "no_label_no_reward"
