"""The child's side of its supervisor, over one inherited socket; without a supervisor these calls do nothing.

The kernel closes the supervisor's end when the supervisor ends, however it ends: then the child stops, too. Over the
same socket a child says what it is doing, and that it has done all that needs no broker; then it waits for its turn.
While it serves it is told whether a twin waits to take its place, under its name, as soon as it has ended.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress

from streamserve.errors import ConfigError

#: Number of the inherited socket.
PARENT_FD = "STREAMSERVE_PARENT_FD"
WARM = b"w"
GO = b"g"
TWIN = b"t"
ALONE = b"a"
#: Before a line of text: what the child is doing.
DOING = b"d"
#: The `action` of log lines that say what a role is doing while it does not serve yet (`kafka.hosting`).
LOADS = "load"
#: From the supervisor's end to `kill -9`: a little more than an orderly stop takes at most (8 s).
GRACE_S = 9.0
_MOST_DOING_BYTES = 500


class _Watch:
    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.may_go = threading.Event()
        self.has_twin = False

    def run(self) -> None:
        with suppress(OSError):  # a reset is an end, too
            while said := self.line.recv(1):
                if said == GO:
                    self.may_go.set()
                else:
                    self.has_twin = said == TWIN
        self.has_twin = False
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os.kill(os.getpid(), signal.SIGKILL)


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
        with suppress(OSError):  # the supervisor has ended: the watch ends this process
            watch.line.sendall(DOING + line + b"\n")


def wait_for_go() -> None:
    """Say that everything is loaded that needs no broker, and wait until the supervisor wants this process to serve.

    Blocks the calling thread. It waits while the broker starts, or as a spare, until its like has died.
    """
    for watch in _watches:
        with suppress(OSError):  # the supervisor has ended: the watch ends this process
            watch.line.send(WARM)
        watch.may_go.wait()


def has_twin() -> bool:
    """Whether a loaded process waits to take the place of this one, under its name, as soon as this one has ended."""
    return any(watch.has_twin for watch in _watches)
