"""A model's own metrics: what it reports during a call travels with that call's `Outputs`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from streamserve.core.messages import Outputs
from streamserve.errors import ModelError

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_reported: ContextVar[dict[str, float] | None] = ContextVar("streamserve_reported_metrics", default=None)


def report_metric(name: str, value: float) -> None:
    """Report a number of this model call, e.g. `report_metric("unknown_words", 3)`; of several, the last counts.

    It becomes `streamserve_model_metric{model=..., name=...}`. Outside of a call by streamserve (a model tried by
    hand) nobody listens, and only the arguments are checked. Raises `ModelError` for a name that is not lower-case
    letters, digits and underscores, and for a value that is not a finite number.
    """
    if not _NAME.fullmatch(name):
        raise ModelError(f"metric {name!r}: a name is lower-case letters, digits and underscores")
    number = float(value)
    if not math.isfinite(number):
        raise ModelError(f"metric {name!r}: {value!r} is not a finite number")
    reported = _reported.get()
    if reported is not None:
        reported[name] = number


@contextmanager
def collect_metrics() -> Iterator[dict[str, float]]:
    """Listen to `report_metric` in this thread (or task) until the block ends; a runtime wraps its call in it."""
    reported: dict[str, float] = {}
    token = _reported.set(reported)
    try:
        yield reported
    finally:
        _reported.reset(token)


def with_metrics(outputs: Outputs, reported: dict[str, float]) -> Outputs:
    """The outputs with what was reported added to what they already hold."""
    return replace(outputs, metrics={**outputs.metrics, **reported}) if reported else outputs
