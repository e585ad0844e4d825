"""`python -m streamserve.runtimes.child FD PARENT`: the process of one model with `isolation = "process"`.

Speaks frames over the socket FD (`streamserve.runtimes.channel`) until the other end is closed. Standard output and
standard error are the model's: what it writes there goes to the worker's log.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.errors import StreamserveError
from streamserve.runtimes import system
from streamserve.runtimes.base import ModelSpec, Runtime
from streamserve.runtimes.channel import BrokenChannel, Channel, Frame, Kind, outputs_to_send
from streamserve.runtimes.isolation import Limits
from streamserve.runtimes.loading import load
from streamserve.runtimes.plain import plain_outputs
from streamserve.runtimes.sampling import sample_of

_WARM_SIZES = (1, 8, 64)
#: Of the kernel's own limit, which a model must not meet before the watchdog sees it.
_TASKS_ABOVE = 256
_MOST_WORDS = 2_000
#: The end of a stack is where the model is.
_MOST_STACK = 4_000


def main() -> None:
    fd, parent = (int(word) for word in sys.argv[1:3])
    system.end_with_parent(parent)
    faulthandler.enable()  # a crash tells in the log where it was
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so does what was printed before it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    channel = Channel(connection)
    try:
        start = channel.receive()
        runtime = _begin(channel, start, parent)
        if runtime is None:
            return
        try:
            _serve(channel, runtime)
        finally:
            runtime.close()
    except BrokenChannel:  # the worker has closed it
        return


def _begin(channel: Channel, start: Frame, parent: int) -> Runtime | None:
    """Load, warm, be held to the limits, say so; None where the model is no good."""
    spec, limits = ModelSpec(**start.values["spec"]), Limits(**start.values["limits"])
    system.be_modest(limits.niceness)
    try:
        runtime = load(spec, base_dir=Path(start.values["base_dir"]))
        sample = sample_of(spec.model_id, runtime)
        # Once as who started us, so that what is imported late can be read; again as who serves.
        _warm(runtime, sample, _WARM_SIZES, spec)
        _confine(limits, parent, spec)
        _warm(runtime, sample, _WARM_SIZES[:1], spec)
    except StreamserveError as error:
        channel.send(Kind.REFUSED, values={"words": str(error)[:_MOST_WORDS]})
        return None
    gc.collect()
    gc.freeze()
    arrays = {} if sample is None else {"sample": sample}
    channel.send(Kind.READY, arrays, {"runtime": type(runtime).__name__})
    return runtime


def _confine(limits: Limits, parent: int, spec: ModelSpec) -> None:
    try:
        own_user = system.become_nobody()
        system.end_with_parent(parent)
        system.cap(limits.memory_bytes, limits.most_threads + _TASKS_ABOVE, own_user=own_user)
    except (OSError, ValueError) as error:
        raise spec.error(f"its process cannot be held to its limits: {error}") from error


def _warm(runtime: Runtime, sample: AnyArray | None, sizes: tuple[int, ...], spec: ModelSpec) -> None:
    if sample is None:
        return
    try:
        for size in sizes:
            runtime.predict(np.repeat(sample, size, axis=0))
    except Exception as error:
        raise spec.error(f"it failed on its sample row: {_told(error)}{_unreadable(error)}") from error


def _unreadable(error: BaseException) -> str:
    """After the change of user, what a model opens or imports late must be readable for everybody."""
    if isinstance(error, PermissionError | ImportError) and os.geteuid() in system.OWN_USERS:
        return " (it runs as an unprivileged user: what it opens or imports after loading must be readable for others)"
    return ""


def _serve(channel: Channel, runtime: Runtime) -> None:
    while True:
        call = channel.receive()
        try:
            outputs = plain_outputs(runtime.predict(call.arrays["batch"]))
            channel.send(Kind.ANSWER, *outputs_to_send(outputs))
        except BrokenChannel:
            raise
        except BaseException as error:  # noqa: BLE001  (a model is foreign code: even `exit` is a failed batch)
            channel.send(Kind.RAISED, values=_raised(error))


def _raised(error: BaseException) -> dict[str, str]:
    """An exception in words; foreign ones may raise when they are asked for them."""
    exception = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        words = f"{_told(error)}{_unreadable(error)}"[:_MOST_WORDS]
        stack = "".join(traceback.format_exception(error))[-_MOST_STACK:]
    except BaseException as worse:  # noqa: BLE001  (foreign code)
        words, stack = f"{type(error).__name__} (and its words cannot be read: {type(worse).__name__})", ""
    return {"words": words, "exception": exception, "stack": stack}


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
