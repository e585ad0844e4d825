"""The two models of the app that is served where no config is named: fast, and right in a way that can be checked."""

from __future__ import annotations

from typing import Any

import numpy as np


def tens(batch: Any) -> Any:
    """How many whole tens are in the first number of each row."""
    return batch[:, 0].astype(np.int64) // 10


def units(batch: Any) -> Any:
    """The same, so that both always agree."""
    return batch[:, 0].astype(np.int64) // 10
