from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from benchmarks import job


def test_requests_carry_the_rows_exactly() -> None:
    rows = job.request_rows(50, seed=1)
    ids, inputs = job.decode_rows(job.encode_requests(rows))
    assert ids == [f"{index:08d}" for index in range(50)]
    np.testing.assert_array_equal(inputs, rows)


def test_requests_are_as_long_as_those_of_the_published_baseline() -> None:
    lengths = [len(value) for value in job.encode_requests(job.request_rows(200, seed=1))]
    assert 200 <= np.mean(lengths) <= 260


def test_equal_rows_are_refused() -> None:
    rows = job.request_rows(5, seed=1)
    rows[4] = rows[0]
    with pytest.raises(ValueError, match="same row"):
        job.encode_requests(rows)


@pytest.mark.slow
def test_models_differ_and_survive_their_file(tmp_path: Path) -> None:
    files = job.train_models(tmp_path, 3)
    models = job.load_models(files)
    inputs = job.request_rows(400, seed=2)
    labels = [job.predict_labels([model], inputs) for model in models]
    assert set(labels[0].tolist()) == {0, 1}
    assert all((labels[0] != other).any() for other in labels[1:])


def test_several_models_answer_with_the_highest_mean_probability(tmp_path: Path) -> None:
    models = job.load_models(job.train_models(tmp_path, 3))
    inputs = job.request_rows(100, seed=3)
    mean = np.mean([model.predict_proba(inputs)[:, 1] for model in models], axis=0)
    np.testing.assert_array_equal(job.predict_labels(models, inputs), (mean > 0.5).astype(int))


def test_an_answer_is_an_oip_response() -> None:
    body = orjson.loads(job.encode_answer("7", 1))
    assert body["id"] == "7"
    assert body["outputs"] == [{"name": "label", "shape": [1], "datatype": "INT64", "data": [1]}]
