"""A broker's process, and how to know that a pid is still the process that was meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import guard

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOK_AGAIN_S = 0.01
_PROC_STATE, _PROC_START_TIME = 0, 19  # fields of /proc/PID/stat, counted after the command's name


def start_mark(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; none when it does not run (a corpse does not)."""
    if sys.platform.startswith("linux"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            return None
        fields = stat[stat.rindex(")") + 2 :].split()
        return None if fields[_PROC_STATE] in {"Z", "X"} else f"{_boot_id()}:{fields[_PROC_START_TIME]}"
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "PATH": "/bin:/usr/bin"},
    ).stdout.split(maxsplit=1)
    return None if not answer or answer[0].startswith("Z") else answer[1].strip()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


@dataclass(slots=True, kw_only=True)
class Process:
    """One running program: ours through a guard, or anyone's by pid and start mark.

    `guardian` is none for a detached program: it is then only watched and signalled.
    """

    pid: int
    mark: str
    guardian: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return start_mark(self.pid) == self.mark

    def terminate(self) -> None:
        """Ask it to end."""
        self._tell(b"t", signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        self._tell(b"k", signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Whether it (and its guard) has ended within the time."""
        until = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_AGAIN_S)
        self._bury()
        return True

    def exit_code(self) -> int | None:
        """The program's exit code once it has ended, where a guard knows it."""
        return None if self.guardian is None else self.guardian.returncode

    def _tell(self, command: bytes, number: signal.Signals) -> None:
        # Through the guard where there is one: it holds the child's corpse, so that no other process can have the pid.
        if self.guardian is not None and self.guardian.stdin is not None and self.guardian.poll() is None:
            with suppress(OSError, ValueError):
                self.guardian.stdin.write(command)
                self.guardian.stdin.flush()
            return
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _bury(self) -> None:
        if self.guardian is not None:
            _dismiss(self.guardian)


def spawn(command: Sequence[str], *, log: Path, lock_fd: int, detached: bool) -> Process:
    """Start `command` behind a guard, its output appended to `log`, holding the open lock file `lock_fd`.

    `detached`: it outlives this process. Otherwise it ends when this process ends, however that happens.
    Raises `BrokerError` when it cannot be started at all.
    """
    mode = "--detached" if detached else "--owned"
    arguments = [sys.executable, "-I", "-S", guard.__file__, mode, str(log), str(lock_fd), "--", *command]
    with open(log, "ab", buffering=0) as complaints:
        guardian = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            pass_fds=(lock_fd,) if lock_fd >= 0 else (),
            start_new_session=True,  # a Ctrl-C at the terminal is the owner's to handle
        )
    assert guardian.stdout is not None
    word, _, text = guardian.stdout.readline().decode("utf-8", "replace").strip().partition(" ")
    if word != "pid":
        _dismiss(guardian)
        message = f"cannot start {command[0]}: {text or 'its guard gave no answer'}; see {log}"
        raise BrokerError(message)
    mark = start_mark(int(text)) or ""  # empty: it has ended already
    if detached:
        _dismiss(guardian)
        return Process(pid=int(text), mark=mark)
    return Process(pid=int(text), mark=mark, guardian=guardian)


def _dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """Wait for a guard that has nothing left to do, and close its pipes."""
    for pipe in (guardian.stdin, guardian.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    guardian.wait(2 * guard.GRACE_S)
