"""A fault holds from the moment the control file says so, for the model that it names, until it is lifted."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec, Outputs, Runtime, load
from workers.faulty import shuffled, write_faults

ROWS = np.random.default_rng(0).normal(size=(400, 2))
LABELS = (ROWS[:, 0] > 0).astype(int) + 2 * (ROWS[:, 1] > 0) + 5
model = LogisticRegression().fit(ROWS, LABELS)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_FAULTS", str(tmp_path))
    return tmp_path / "faults.json"


def served(key: str = "forest") -> Runtime:
    options = {"source": f"{__name__}:model", "key": key, "control": "$TEST_FAULTS/faults.json"}
    return load(ModelSpec(name="m", version="1", source="workers.faulty:model()", options=options))


def test_without_a_fault_it_is_the_inner_model(control: Path) -> None:
    runtime = served()
    for _ in range(2):
        outputs = runtime.predict(ROWS)
        assert outputs.labels.tolist() == model.predict(ROWS).tolist()
        np.testing.assert_array_equal(outputs.probabilities, model.predict_proba(ROWS))
        write_faults(control, {"other": {"shuffle": True}})


def test_shuffled_answers_until_it_is_lifted(control: Path) -> None:
    runtime = served()
    right = model.predict(ROWS)
    write_faults(control, {"forest": {"shuffle": True}})
    broken = runtime.predict(ROWS)
    assert 0.6 < (broken.labels != right).mean() < 0.9  # 3 of 4 by chance
    assert set(broken.labels) <= {5, 6, 7, 8}
    np.testing.assert_allclose(broken.probabilities.sum(axis=1), 1.0)
    assert (broken.classes[broken.probabilities.argmax(axis=1)] == broken.labels).all()
    one_by_one = [int(runtime.predict(ROWS[i : i + 1]).labels[0]) for i in range(30)]
    assert one_by_one == broken.labels[:30].tolist()  # whatever the batch
    write_faults(control, {})
    assert runtime.predict(ROWS).labels.tolist() == right.tolist()
    write_faults(control, {"forest": {"shuffle": True}})
    assert runtime.predict(ROWS).labels.tolist() == broken.labels.tolist()
    control.unlink()
    assert runtime.predict(ROWS).labels.tolist() == right.tolist()


def test_a_slow_model_still_answers_rightly(control: Path) -> None:
    runtime = served()
    write_faults(control, {"forest": {"delay_ms": 50}})
    started_s = time.perf_counter()
    outputs = runtime.predict(ROWS)
    assert time.perf_counter() - started_s >= 0.05
    assert outputs.labels.tolist() == model.predict(ROWS).tolist()


def test_two_models_have_their_own_faults(control: Path) -> None:
    write_faults(control, {"forest": {"shuffle": True}})
    assert served("mlp").predict(ROWS).labels.tolist() == model.predict(ROWS).tolist()


def test_its_options_are_needed() -> None:
    spec = ModelSpec(name="m", version="1", source="workers.faulty:model()", options={"key": "forest"})
    with pytest.raises(ModelError, match=r"needs options.source, options.control"):
        load(spec)


def test_without_probabilities_there_is_nothing_to_shuffle() -> None:
    with pytest.raises(ModelError, match="without probabilities cannot be shuffled"):
        shuffled(Outputs(labels=LABELS), ROWS)
