"""What the operating system offers to hold a process to its limits. Where it does not, nothing is done.

Linux: `/proc`, `prctl`, `setrlimit`. macOS has no `/proc`: memory and threads cannot be watched there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Whether memory and threads of another process can be read.
CAN_WATCH = Path("/proc/self/statm").exists()
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
#: User ids that no distribution gives to anybody (systemd's list of ranges): one for each process, so that limits of
#: one model are not filled by another, and none can signal or read another.
OWN_USERS = range(60_578, 61_184)
_NOBODY = 65_534
_PARENT_LOOK_S = 0.5
_OOM_SCORE = "500"
#: What the kernel counts for the stack of a thread, used or not.
_STACK_BYTES = 8 << 20
#: Fields of /proc/PID/stat after the name, which may itself hold blanks.
_STAT_USER, _STAT_SYSTEM, _STAT_THREADS = 11, 12, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process has of the machine now."""

    memory_bytes: int
    threads: int
    cpu_s: float
    """Processor time since it began, of all its threads."""


def usage_of(pid: int) -> Usage | None:
    """None where the process has ended, or nothing can be known."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = int(file.read().split()[1])
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        threads, ticks = int(fields[_STAT_THREADS]), int(fields[_STAT_USER]) + int(fields[_STAT_SYSTEM])
    except (OSError, ValueError, IndexError):
        return None
    return Usage(
        memory_bytes=pages * os.sysconf("SC_PAGESIZE"), threads=threads, cpu_s=ticks / os.sysconf("SC_CLK_TCK")
    )


def end_with_parent(parent: int) -> None:
    """From now on this process is killed when its parent ends, whatever it is doing.

    Must be called again after a change of user, which makes Linux forget it.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    elif not any(thread.name == _WATCH for thread in threading.enumerate()):
        threading.Thread(target=_watch_parent, args=(parent,), name=_WATCH, daemon=True).start()
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


_WATCH = "watch parent"


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def confine(pid: int, cores: tuple[int, ...]) -> None:
    """From now on a process runs on these cores only, and what it starts, too."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def be_modest(niceness: int) -> None:
    """Have less weight than the worker, and be the first to go where memory runs out."""
    with contextlib.suppress(OSError):  # a container may forbid each; the watchdog's limits hold without them
        os.nice(niceness)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def cap(memory_bytes: int, most_tasks: int, *, own_user: bool) -> None:
    """Limits of the kernel behind those of the watchdog, which looks now and then only.

    Address space (RLIMIT_AS) is not limited: frameworks reserve much more than they use. Private data is: as much as
    is mapped now and the limit on top. Processes are counted per user, so that limit needs a user of its own.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not CAN_WATCH:
        return
    data_bytes = _status_kib("VmData") * 1024 + memory_bytes + most_tasks * _STACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    if own_user:
        resource.setrlimit(resource.RLIMIT_NPROC, (most_tasks, most_tasks))


def _status_kib(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def become_nobody() -> bool:
    """Root gives up what it may; limits on processes do not bind it. True where this process now has a user of its own.

    Raises OSError where root may not even that.
    """
    if not hasattr(os, "setresuid") or os.geteuid() != 0:
        return False
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    user = _free_user()
    try:
        os.setresuid(user, user, user)
    except OSError:  # a user namespace may know few
        user = _NOBODY
        os.setresuid(user, user, user)
    os.umask(0o077)
    # Libraries ask for the user's name, which a user of no password file has not.
    os.environ.update({"USER": "nobody", "LOGNAME": "nobody"})
    if sys.platform == "linux":
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    return user in OWN_USERS


def _free_user() -> int:
    """One that no process has now; processes that look at the same time begin at different ones."""
    taken = {user for _, user in _processes()}
    first = os.getpid() % len(OWN_USERS)
    return next((user for user in (*OWN_USERS[first:], *OWN_USERS[:first]) if user not in taken), _NOBODY)


def own_user_of(pid: int) -> int | None:
    """The user of a process, where it is one of `OWN_USERS`."""
    with contextlib.suppress(OSError):
        user = _user_of(str(pid))
        return user if user in OWN_USERS else None
    return None


def kill_all_of(user: int) -> None:
    """Kill every process of a user of `OWN_USERS`: what a model has started may have left its group."""
    if user not in OWN_USERS:
        raise ValueError(f"{user} is nobody's own user")
    for pid, owner in _processes():
        if owner == user:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, int]]:
    """(process, its user)."""
    try:
        entries = list(os.scandir("/proc"))
    except OSError:
        return
    for entry in entries:
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), _user_of(entry.name)


def _user_of(pid: str) -> int:
    """The folder itself belongs to root once a process has changed its user."""
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return -1
