"""Models that are tried on recorded requests."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from streamserve.runtimes import RowError

CALLS: list[int] = []
"""Rows of each call."""


def last_digit(batch: Any) -> Any:
    CALLS.append(len(batch))
    return batch[:, 0].astype(np.int64) % 10


def odd_ones_wrong(batch: Any) -> Any:
    """Right on even numbers only."""
    number = batch[:, 0].astype(np.int64)
    return (number + number % 2) % 10


def refuses_sevens(batch: Any) -> Any:
    number = batch[:, 0].astype(np.int64)
    return [RowError("a seven") if n % 10 == 7 else int(n % 10) for n in number]


def raises_on_sevens(batch: Any) -> Any:
    if (batch[:, 0] % 10 == 7).any():
        raise ValueError("seven")
    return last_digit(batch)


def ends_on_sevens(batch: Any) -> Any:
    if (batch[:, 0] % 10 == 7).any():
        os._exit(3)
    return batch[:, 0].astype(np.int64) % 10


def always_ends(batch: Any) -> Any:
    os._exit(4)


def loud() -> Any:
    print("hear me")
    return last_digit


class Strict:
    """Takes rows of three numbers."""

    def predict(self, batch: Any) -> Any:
        return batch.sum(axis=1)

    def sample(self) -> Any:
        return np.zeros((1, 3))


STRICT = Strict()
