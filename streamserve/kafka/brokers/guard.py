"""Starts one program and sees to it that the program never outlives its owner. Run by path, standard library only.

    python -I -S guard.py (--owned | --detached) LOG LOCK_FD -- PROGRAM ARGUMENT...

Why a process in between: an owner that is killed outright cannot tidy up, but the kernel then closes its end of the
pipe that is this process's standard input. `--owned`: the end of that pipe, or a new parent, stops the program (TERM,
then KILL after `GRACE_S`). A byte `t` on it asks the program to end, `k` kills it. On Linux the program is also bound
to this process, should somebody kill the guard. `--detached`: start in a session of its own, say the pid, leave.

The first line on standard output is `pid N` or `error TEXT`. LOCK_FD is an open file that the program inherits: a
lock on it is held exactly as long as the program lives (`-1`: none).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1
_PARENT_LOOK_S = 1.0


def main(arguments: list[str]) -> int:
    """Run as the module's text says; the exit code is the program's (128 + N when signal N ended it)."""
    split = arguments.index("--")
    mode, log, lock_fd = arguments[:split]
    owned = mode == "--owned"
    parent = os.getppid()
    keep = (int(lock_fd),) if int(lock_fd) >= 0 else ()
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    # A signal only writes its number to the pipe: the loop below is the one place that decides.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _noted)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    try:
        with open(log, "ab", buffering=0) as out:
            program = subprocess.Popen(
                arguments[split + 1 :],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=keep,
                start_new_session=not owned,
                preexec_fn=_die_with(os.getpid()) if owned else None,  # noqa: PLW1509  (one thread)
            )
    except (OSError, subprocess.SubprocessError) as failure:
        _report(f"error {failure}")
        return 1
    for descriptor in keep:
        os.close(descriptor)
    _report(f"pid {program.pid}")
    if not owned:
        return 0  # init adopts the program
    return _watch(program, parent, wake_read)


def _watch(program: subprocess.Popen[bytes], parent: int, wake: int) -> int:
    stdin = sys.stdin.fileno()
    listening = [stdin, wake]
    while program.poll() is None:
        ready, _, _ = select.select(listening, [], [], _PARENT_LOOK_S)
        commands = os.read(stdin, 64) if stdin in ready else None
        signals = os.read(wake, 64) if wake in ready else b""
        orphaned = commands == b"" or os.getppid() != parent
        if orphaned:
            return _end(program)
        if commands and b"k" in commands:
            program.kill()
        elif commands or set(signals) & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            program.terminate()
    return _code(program.returncode)


def _end(program: subprocess.Popen[bytes]) -> int:
    program.terminate()
    try:
        return _code(program.wait(GRACE_S))
    except subprocess.TimeoutExpired:
        program.kill()
        return _code(program.wait())


def _code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


def _noted(_number: int, _frame: object) -> None:
    """Does nothing: the wake-up pipe has the number."""


def _die_with(guard: int) -> Callable[[], None] | None:
    """What the child does before it becomes the program (Linux). Safe here: this process has one thread."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # the guard died before the line above
            os._exit(1)

    return bind


def _report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    # Whoever reads the report sees its end; the guard must not hold a terminal or a pipe open for hours.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
