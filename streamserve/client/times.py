"""Points in time as a person types them, and how long ago something was."""

from __future__ import annotations

import re
from datetime import datetime

from streamserve.client.failures import UnusableInput

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d)")


def parse_time_ms(text: str, now_ms: int) -> int:
    """Epoch milliseconds of an ISO time (without a zone: local), or of a duration such as 10m: so long ago.

    Raises UnusableInput for anything else.
    """
    duration = _DURATION.fullmatch(text.strip())
    if duration is not None:
        return now_ms - int(duration[1]) * _UNITS_MS[duration[2]]
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise UnusableInput(
            f"{text!r} is no time: expected a duration such as 30s, 10m, 2h, 7d (so long ago), "
            "or an ISO time such as 2031-05-17T09:30 or 2031-05-17T07:30:00Z"
        ) from None


def age(ms: int) -> str:
    """A span in its largest unit."""
    for unit in ("d", "h", "m", "s"):
        if ms >= _UNITS_MS[unit]:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return "0s"


def local_time(epoch_ms: int) -> str:
    """To the millisecond, with its zone."""
    return datetime.fromtimestamp(epoch_ms / 1000).astimezone().isoformat(" ", "milliseconds")
