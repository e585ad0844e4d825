"""A machine whose clock is wrong: what a process started there sees, without a branch in any code of ours.

Python imports `sitecustomize` before everything else. A folder with one that moves `time.time` goes first on the
process's path. What is measured from a process's start (`time.monotonic`) is right on such a machine, too.
"""

from __future__ import annotations

import os
from pathlib import Path

_SITECUSTOMIZE = """\
import time

_ahead_ns = {ahead_ns}
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _ahead_ns / 1e9
time.time_ns = lambda: _time_ns() + _ahead_ns
"""


def wrong_clock(folder: Path, ahead_s: float) -> dict[str, str]:
    """Variables of the environment for a process whose clock is ahead by so much (negative: behind)."""
    place = folder / f"clock{ahead_s:+.0f}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(ahead_ns=round(ahead_s * 1e9)), "utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])}
