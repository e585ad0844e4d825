"""Number options: what `min` and `max` let pass."""

from __future__ import annotations

import math

import typer

#: Seconds: 11 days. `poll` takes no more than 24.
MOST = 1_000_000


def finite(value: float | None) -> float | None:
    """Callback of an option: NaN, which passes every `min` and `max`, and infinity are refused; and what no wait of
    the system's takes."""
    if value is not None and not (math.isfinite(value) and abs(value) <= MOST):
        raise typer.BadParameter(f"{value:g} is no number of use here; give one up to {MOST:,}.")
    return value


def seconds(value: float | None) -> float | None:
    """Callback of an option: seconds above 0."""
    if finite(value) is not None and value is not None and value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0 seconds.")
    return value
