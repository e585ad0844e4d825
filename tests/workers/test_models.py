"""The example models: as good and as different as the demo needs them, and short."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import workers
from streamserve.datasets import split
from streamserve.runtimes import ModelSpec, load
from workers.train import MODELS
from workers.trained import trained

#: Share of the 1,500 unseen images that a model may get wrong: from, to.
ERRORS = {
    "digits_linear": (0.09, 0.14),
    "digits_forest": (0.05, 0.09),
    "digits_neighbours": (0.04, 0.07),
    "digits_mlp": (0.05, 0.10),
    "digits_kernel": (0.03, 0.06),
    "digits_cnn": (0.01, 0.06),
}
NAMES = [pytest.param(name, marks=pytest.mark.torch) if name == "digits_cnn" else name for name in MODELS]


def skip_without_torch(name: str) -> None:
    if name == "digits_cnn" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_answers_digits_with_probabilities(name: str) -> None:
    skip_without_torch(name)
    data = split()
    runtime = load(ModelSpec(name=name, version="1", source=f"workers.{name}:model", options=MODELS[name]))
    outputs = runtime.predict(data.test_images.astype(float))
    assert outputs.labels.dtype == np.int64
    assert outputs.probabilities.shape == (1500, 10)
    assert outputs.classes is None or outputs.classes.tolist() == list(range(10))
    np.testing.assert_allclose(outputs.probabilities.sum(axis=1), 1.0, atol=1e-5)
    low, high = ERRORS[name]
    assert low <= (outputs.labels != data.test_labels).mean() <= high


def test_programs_are_short() -> None:
    folder = Path(workers.__file__).parent
    programs = sorted(folder.glob("digits_*.py"))
    assert [each.stem for each in programs] == sorted(MODELS)
    assert all(len(each.read_text().splitlines()) <= 25 for each in programs)


def test_a_model_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STREAMSERVE_CACHE", str(tmp_path))
    caplog.set_level("INFO")
    first = trained("test_bayes", GaussianNB(var_smoothing=0.1))
    again = trained("test_bayes", GaussianNB(var_smoothing=0.1))
    assert caplog.messages == ["training test_bayes"]
    assert (first.theta_ == again.theta_).all()
    trained("test_bayes", GaussianNB(var_smoothing=0.2))
    assert len(caplog.messages) == 2
    assert sorted(each.suffix for each in (tmp_path / "models").iterdir()) == [".skops", ".skops"]
