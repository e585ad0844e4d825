"""The parts of the learning benchmark, on streams so short or so plain that the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import published_rules
from benchmarks.figures import Figure
from benchmarks.learning_keyed import EACH, errors_of, stream
from benchmarks.learning_quality import ranked
from benchmarks.learning_speed import draws, speed
from benchmarks.play import play
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.registry import POLICIES

MODELS = ("a@1", "b@1", "c@1")


def test_a_figure_is_held_or_missed_by_its_mean() -> None:
    assert Figure(section="s", what="w", values=(1.0, 3.0), limit=2.0).held is True
    assert Figure(section="s", what="w", values=(1.0, 3.1), limit=2.0).held is False
    assert Figure(section="s", what="w", values=(1.0,), limit=2.0, at_least=True).held is False
    assert Figure(section="s", what="w", values=(1.0,)).held is None


def test_hedge_is_played_with_all_models_and_turns_to_the_right_one() -> None:
    losses = np.tile([0.0, 1.0, 1.0], (200, 1))
    played = play(Hedge(), MODELS, losses, 1)
    assert played.evaluations == 3.0
    assert played.weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert played.weights[-1, 0] > 0.99
    assert set(played.served[20:].tolist()) == {0}


def test_learning_waits_for_late_labels_and_for_publication() -> None:
    losses = np.tile([0.0, 1.0, 1.0], (200, 1))
    for played in (
        play(Hedge(), MODELS, losses, 1, delay=100),
        play(Hedge(), MODELS, losses, 1, published_every=100),
    ):
        assert played.weights[99].tolist() == pytest.approx([1 / 3] * 3)
        assert played.weights[150, 0] > 0.99


def test_answers_that_are_missing_teach_nothing() -> None:
    losses = np.tile([0.0, 1.0, 1.0], (300, 1))
    nobody = np.zeros(losses.shape, np.bool_)
    assert play(Hedge(), MODELS, losses, 1, answers=nobody).weights[-1].tolist() == pytest.approx([1 / 3] * 3)


def test_one_model_policies_ask_as_many_as_they_say() -> None:
    losses = np.tile([0.0, 1.0, 1.0], (2_000, 1))
    assert play(Exp3(), MODELS, losses, 1).evaluations == 1.0
    asked = play(Leader(shadow=0.1), MODELS, losses, 1).evaluations
    assert 1.15 < asked < 1.25


def test_the_published_rules_settle_on_the_best_model_and_leave_it_when_it_fails() -> None:
    found = published_rules.trials(3, 5)
    for rule in (published_rules.exp3, published_rules.exp4):
        errors, shares = rule(found, 1)
        assert errors[:, 4_000:5_000].mean() < 0.14
        assert errors[:, 5_000:5_200].mean() > 0.2
        assert errors[:, 9_000:10_000].mean() < 0.25
        assert np.allclose(shares.sum(axis=1), 1.0)


def test_the_errors_of_the_synthetic_stream_are_those_of_the_experiment() -> None:
    found = published_rules.trials(5, 3, fails=False)
    assert np.allclose(found.losses.mean(axis=(0, 1)), published_rules.ERRORS, atol=0.01)
    assert published_rules.majority_error(found) >= 0.10


@pytest.mark.slow
def test_speed_and_draws_name_every_policy() -> None:
    named = {figure.what.partition(":")[0] for figure in speed(1)}
    assert named == set(POLICIES)
    assert all(figure.held for figure in draws(1, n=20_000))


def test_each_key_of_the_keyed_stream_has_a_turn_for_each_of_its_requests() -> None:
    run = stream(1)
    for key in (0, 7):
        assert run.turns[run.keys == key].tolist() == list(range(EACH))
    assert set(run.expected.min(axis=1).tolist()) == {0.12}


def test_a_key_without_feedback_is_decided_as_all_are_and_later_as_its_own() -> None:
    run = stream(2)
    alone, by_key = errors_of(run, "no contexts"), errors_of(run, "keys")
    assert by_key[run.turns == 0].tolist() == pytest.approx(alone[run.turns == 0].tolist())
    assert by_key[run.turns >= EACH // 2].mean() < alone.mean() - 0.03


def test_right_answers_above_wrong_ones_are_counted_with_ties_as_halves() -> None:
    assert ranked(np.array([0.9, 0.8, 0.1]), np.array([1.0, 1.0, 0.0])) == 1.0
    assert ranked(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == 0.5
    assert ranked(np.array([0.1, 0.9]), np.array([1.0, 0.0])) == 0.0
