"""The child's side of its supervisor, over one inherited socket; without a supervisor these calls do nothing.

The kernel closes the supervisor's end when the supervisor ends, however it ends: then the child stops, too. Over the
same socket a child says what it is doing, and that it has done all that needs no broker; then it waits for its turn.
While it serves it is told whether a twin waits, loaded, to take its place under its name. Asked to stop, it has the
twin connect and get ready while it goes on serving; then it gives up everything, and the twin joins.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from streamserve.errors import ConfigError

#: Number of the inherited socket.
PARENT_FD = "STREAMSERVE_PARENT_FD"
#: To the child: it may connect; it may join its group, too; a twin waits; none does; the twin has got ready.
GO = b"g"
JOIN = b"j"
TWIN = b"t"
ALONE = b"a"
READY = b"r"
#: From the child: it is loaded; all but joined; asked to stop; it has given up everything.
WARM = b"w"
PREPARED = b"p"
LEAVES = b"l"
OVER = b"o"
#: Before a line of text: what the child is doing.
DOING = b"d"
#: The `action` of log lines that say what a role is doing while it does not serve yet (`kafka.hosting`).
LOADS = "load"
#: From the supervisor's end to `kill -9`: a little more than an orderly stop takes at most (8 s).
GRACE_S = 9.0
#: How long a process that is to stop goes on serving until its twin is ready. With the orderly stop it has 10 s in all.
TWIN_S = 1.5
_MOST_DOING_BYTES = 500


class _Watch:
    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.may_go = threading.Event()
        self.may_join = False
        self.twin = ALONE
        self._wakes: list[Callable[[], object]] = []

    def run(self) -> None:
        with suppress(OSError):  # a reset is an end, too
            while word := self.line.recv(1):
                self._hear(word)
        self._hear(ALONE)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _hear(self, word: bytes) -> None:
        if word == GO:
            self.may_go.set()
        elif word == JOIN:
            self.may_join = True
        else:
            self.twin = word
        for wake in list(self._wakes):
            with suppress(RuntimeError):  # its loop has ended
                wake()

    def say(self, words: bytes) -> None:
        with suppress(OSError):  # the supervisor has ended: this watch ends this process
            self.line.sendall(words)

    def joins(self) -> bool:
        return self.may_join

    def waits_no_more(self) -> bool:
        """For its twin: that is ready, or gone."""
        return self.twin != TWIN

    async def until(self, holds: Callable[[], bool]) -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(heard.set)

        self._wakes.append(wake)
        try:
            while not holds():
                await heard.wait()
                heard.clear()
        finally:
            self._wakes.remove(wake)


_watches: list[_Watch] = []


def watch_parent() -> None:
    """From now on this process stops when its supervisor has ended: SIGTERM at once, SIGKILL after `GRACE_S`.

    Call it before anything that takes time. Raises `ConfigError` where the variable is not a supervisor's.
    """
    number = os.environ.pop(PARENT_FD, None)  # what this process starts itself is not the supervisor's child
    if number is None:
        return
    try:
        line = socket.socket(fileno=int(number))
    except (OSError, ValueError):
        raise ConfigError(f"{PARENT_FD}={number}: only `streamserve up` sets this variable; unset it") from None
    line.set_inheritable(False)
    watch = _Watch(line)
    _watches.append(watch)
    threading.Thread(target=watch.run, name="watch parent", daemon=True).start()


class TellsSupervisor(logging.Handler):
    """Passes on to the supervisor what this process is doing, from the log lines that say it."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == LOADS:
            tell_doing(record.getMessage())


def tell_doing(words: str) -> None:
    """Say what this process is doing while it does not serve yet."""
    line = " ".join(words.split()).encode("utf-8", "replace")[:_MOST_DOING_BYTES]
    for watch in _watches:
        watch.say(DOING + line + b"\n")


def wait_for_go() -> None:
    """Say that everything is loaded that needs no broker, and wait until this process may connect to it.

    Blocks the calling thread. It waits while the broker starts, or as a spare, until its like ends.
    """
    for watch in _watches:
        watch.say(WARM)
        watch.may_go.wait()


async def wait_to_join() -> None:
    """Say that this process has only to join its group, and wait until it may."""
    for watch in _watches:
        watch.say(PREPARED)
        await watch.until(watch.joins)


def has_twin() -> bool:
    """Whether a loaded process takes the place of this one, under its name, as soon as this one has ended."""
    return any(watch.twin != ALONE for watch in _watches)


async def twin_prepared() -> None:
    """Say that this process is to stop, and wait until its twin has only to join; at most `TWIN_S`, and only for one
    that is there."""
    for watch in _watches:
        if watch.twin == TWIN:
            watch.say(LEAVES)
            with suppress(TimeoutError):
                async with asyncio.timeout(TWIN_S):
                    await watch.until(watch.waits_no_more)


def gave_up() -> None:
    """Say that this process has left its group and writes nothing any more."""
    for watch in _watches:
        watch.say(OVER)
