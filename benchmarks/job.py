"""The work that every peer does: models, requests and the labels that are right.

One request is one row of 20 features as Open Inference Protocol v2 JSON (about 230 bytes); the model is a
StandardScaler followed by a LogisticRegression, stored as `.skops`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

FEATURES = 20
ROUTE = "tabular"
REQUEST_HEADERS: list[tuple[str, str | bytes | None]] = [("mlserver-model", ROUTE.encode())]
_ROWS_PER_MODEL = 2_000


def request_rows(count: int, seed: int) -> NDArray[np.float64]:
    """`[count, 20]`: four decimals, since then JSON carries them unchanged."""
    return np.random.default_rng(seed).standard_normal((count, FEATURES)).round(4)


def request_key(index: int) -> bytes:
    return b"%08d" % index


def encode_requests(rows: NDArray[np.float64]) -> list[bytes]:
    """The values of the requests topic; the id of row i is `request_key(i)`.

    Raises ValueError where two rows are equal: a cache could then answer without the model.
    """
    parts = [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows]
    if len(set(parts)) != len(parts):
        raise ValueError("two requests of a benchmark have the same row; change the seed")
    return [
        b'{"id":"%08d","inputs":[{"name":"x","shape":[1,20],"datatype":"FP64","data":%b}]}' % (index, part)
        for index, part in enumerate(parts)
    ]


def train_models(folder: Path, count: int) -> list[Path]:
    """Fit `count` models, each on rows of its own, and write them to `folder` as `tabular-NN.skops`."""
    # Imported here: the echo loop and the tests of the arithmetic need no scikit-learn.
    from sklearn.datasets import make_classification  # noqa: PLC0415  (not needed by those who copy)
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  (not needed by those who copy)
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415  (not needed by those who copy)
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415  (not needed by those who copy)
    from skops.io import dump  # noqa: PLC0415  (not needed by those who copy)

    inputs, labels = make_classification(
        n_samples=_ROWS_PER_MODEL * count, n_features=FEATURES, n_informative=12, flip_y=0.1, random_state=7
    )
    files = []
    for index in range(count):
        own = slice(index * _ROWS_PER_MODEL, (index + 1) * _ROWS_PER_MODEL)
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(inputs[own], labels[own])
        files.append(folder / f"tabular-{index:02d}.skops")
        dump(model, files[-1])
    return files


def load_models(files: list[Path]) -> list[Any]:
    from skops.io import load  # noqa: PLC0415  (not needed by those who copy)

    return [load(file) for file in files]


def predict_labels(models: list[Any], inputs: NDArray[np.float64]) -> NDArray[np.int64]:
    """One model: its own `predict`. Several: the class with the highest mean probability.

    The peers call this too, so they and the check agree on what is asked for.
    """
    if len(models) == 1:
        return np.asarray(models[0].predict(inputs), dtype=np.int64)
    mean = sum(model.predict_proba(inputs) for model in models)
    return np.asarray(models[0].classes_[np.argmax(mean, axis=1)], dtype=np.int64)


def decode_rows(values: list[bytes]) -> tuple[list[str], NDArray[np.float64]]:
    """Ids and `[n, 20]` of request values, decoded one by one."""
    bodies = [orjson.loads(value) for value in values]
    return [body["id"] for body in bodies], np.array([body["inputs"][0]["data"] for body in bodies])


def encode_answer(request_id: str, label: int) -> bytes:
    """What a peer that we write ourselves answers: an OIP v2 response with one INT64 output."""
    return orjson.dumps(
        {"id": request_id, "outputs": [{"name": "label", "shape": [1], "datatype": "INT64", "data": [label]}]}
    )
