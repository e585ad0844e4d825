"""SIGTERM and Ctrl-C to a command that stops in order, while it is still imported. Imports next to nothing itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class EarlyStop:
    """What these signals do until the command's own handlers are there."""

    def __init__(self) -> None:
        self._held = False
        self._asked = ""
        self._ask: Callable[[str], None] | None = None

    def install(self) -> None:
        """From now on they end this process with code 0: it has begun nothing that is to be ended in order."""
        for number in STOPS:
            signal.signal(number, self._came)

    def hold(self) -> None:
        """From now on they are remembered."""
        self._held = True

    def hand_over(self, ask: Callable[[str], None]) -> None:
        """`ask` is told of one that came since, now, and of those that come, with their names."""
        self._ask = ask
        if self._asked:
            ask(self._asked)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if not self._held:
            os._exit(0)
        self._asked = signal.Signals(number).name
        if self._ask is not None:
            self._ask(self._asked)


early_stop = EarlyStop()


def stops_in_order(arguments: Sequence[str]) -> bool:
    """Whether this command line is one that runs until it is asked to stop, and then ends with code 0."""
    stays = list(arguments[:2]) == ["broker", "start"] and "--foreground" in arguments
    return stays or list(arguments[:1]) == ["up"]
