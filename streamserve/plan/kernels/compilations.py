"""Counts what numba compiles in this process, so that a test, a metric and `plan bench` can say that it was nothing.

Every kernel has explicit signatures, so it is compiled (or read from numba's cache on disk) when its module is
imported, before the first request; a call can compile nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from numba.core import event


class _Counter(event.Listener):
    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def on_start(self, event: Any) -> None:
        with self._lock:
            self.count += 1

    def on_end(self, event: Any) -> None:
        pass


_counter = _Counter()
event.register("numba:compile", _counter)  # type: ignore[no-untyped-call]


def compilations() -> int:
    """Functions compiled since this module was imported."""
    return _counter.count
