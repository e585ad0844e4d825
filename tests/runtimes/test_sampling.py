"""A model's own sample row: whatever foreign code does becomes a `ModelError`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamserve.core.messages import Outputs
from streamserve.errors import ModelError
from streamserve.runtimes.sampling import sample_of


class Plain:
    """A runtime without a sample."""

    def predict(self, batch: np.ndarray) -> Outputs:
        return Outputs(labels=batch[:, 0])

    def close(self) -> None:
        """Nothing."""


class Sampling(Plain):
    def __init__(self, row: Any) -> None:
        self.row = row

    def sample(self) -> Any:
        if isinstance(self.row, BaseException):
            raise self.row
        return self.row


class Property(Plain):
    @property
    def sample(self) -> Any:
        raise ValueError("not now")


@pytest.mark.parametrize(
    ("row", "shape", "dtype"),
    [
        (np.zeros((1, 3)), (1, 3), "float64"),
        ([[1, 2]], (1, 2), "int64"),
        (np.zeros((5, 3)), (1, 3), "float64"),  # of several rows the first
        (["a text"], (1,), "object"),
        (np.array(["a", "b"]), (1,), "object"),
        ([1.5], (1,), "float64"),
    ],
)
def test_it_is_one_row(row: Any, shape: tuple[int, ...], dtype: str) -> None:
    sample = sample_of("m@1", Sampling(row))
    assert sample is not None
    assert (sample.shape, sample.dtype.name) == (shape, dtype)


@pytest.mark.parametrize("runtime", [Plain(), Sampling(None)])
def test_there_may_be_none(runtime: Plain) -> None:
    assert sample_of("m@1", runtime) is None


@pytest.mark.parametrize("row", [7, [], [1, 2, 3], ValueError("bad"), SystemExit(3), KeyError("x"), [[1, 2], [3]]])
def test_what_is_no_row_is_told_in_words(row: Any) -> None:
    with pytest.raises(ModelError, match=r"^model m@1: its sample "):
        sample_of("m@1", Sampling(row))


def test_a_property_that_raises_is_told_in_words() -> None:
    with pytest.raises(ModelError, match="model m@1: its sample row cannot be had: ValueError: not now"):
        sample_of("m@1", Property())
