"""SIGTERM and SIGINT ask for an orderly stop; a second one is the old handler's."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STOPS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Within it, the first SIGTERM or SIGINT calls `stop` on the running loop. Main thread only."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _STOPS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def asked(_number: int, _frame: FrameType | None) -> None:
        restore()
        loop.call_soon_threadsafe(stop)

    for number in _STOPS:
        signal.signal(number, asked)
    try:
        yield
    finally:
        restore()
