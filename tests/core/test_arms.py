"""Join rates by model: counted from the log, compared, and an alarm where they differ."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from streamserve.core.arms import ALARM_BELOW, COMPARED_EVERY, Arms, arm_of, chance_of_equal


def raw(model: str, route: str = "main") -> bytes:
    return (
        f'{{"model_name":"{route}","id":"x","outputs":[],"parameters":{{"outcome":"ok","chosen":"{model}"}}}}'.encode()
    )


def told(arms: Arms) -> dict[tuple[str, str], int]:
    return {(count.what, count.label): count.n for count in arms.effects()}


def run(rates: dict[str, float], n: int, seed: int = 3) -> dict[tuple[str, str], int]:
    arms, chance, models = Arms(), np.random.default_rng(seed), list(rates)
    for _ in range(n):
        model = models[int(chance.integers(len(models)))]
        arms.predicted(raw(model))
        if chance.random() < rates[model]:
            arms.joined("main", (model,), 40)
    return told(arms)


def test_rates_and_delays_are_counted_by_model() -> None:
    arms = Arms()
    for model in ("a@1", "a@1", "b@1"):
        arms.predicted(raw(model))
    arms.joined("main", ("a@1",), 250)
    arms.joined("main", ("a@1", "b@1"), 250)
    assert told(arms) == {
        ("arm_predictions", "main/a@1"): 2,
        ("arm_predictions", "main/b@1"): 1,
        ("arm_joined", "main/a@1"): 1,
        ("arm_delay_ms", "main/a@1"): 250,
    }
    assert told(arms) == {}


@pytest.mark.parametrize("rates", [{"a@1": 0.5, "b@1": 0.9}, {"a@1": 0.2, "b@1": 0.2, "c@1": 0.35}])
def test_models_that_are_reported_differently_raise_an_alarm(rates: dict[str, float]) -> None:
    assert run(rates, COMPARED_EVERY)["join_rates_differ", "main"] == 1


@pytest.mark.parametrize("rates", [{"a@1": 0.5, "b@1": 0.5}, {"a@1": 0.01, "b@1": 0.01, "c@1": 0.01}, {"a@1": 0.3}])
def test_models_that_are_reported_alike_raise_none(rates: dict[str, float]) -> None:
    alarms = sum(("join_rates_differ", "main") in run(rates, COMPARED_EVERY, seed) for seed in range(8))
    assert alarms == 0


@pytest.mark.parametrize("hits", [(300, 340), (300, 400, 350), (10, 12, 9, 30), (500, 501, 499, 502, 498)])
def test_the_chance_is_that_of_the_textbook(hits: tuple[int, ...]) -> None:
    predicted = {f"m{k}": 1_000 for k in range(len(hits))}
    joined = {f"m{k}": hit for k, hit in enumerate(hits)}
    expected = chi2_contingency([hits, [1_000 - hit for hit in hits]], correction=False).pvalue
    found = chance_of_equal(predicted, joined)
    assert found == pytest.approx(expected, abs=0.01)
    assert (found < ALARM_BELOW) == (expected < ALARM_BELOW)


@pytest.mark.parametrize("value", [b"", b"{}", raw("a@1,b@1"), raw(""), b'{"model_name":"r","id":"x"}', b"\xff" * 20])
def test_what_was_given_to_none_or_several_counts_for_nobody(value: bytes) -> None:
    assert arm_of(value) is None
    arms = Arms()
    arms.predicted(value)
    assert told(arms) == {}
