"""The machine, the versions and the cores that a result belongs to."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

_VERSIONED = ("aiokafka", "scikit-learn", "numpy", "bytewax", "confluent-kafka")
_GIT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Which core broker and driver share, and which one the peer has alone; None where nothing can be pinned."""

    ours: int | None
    peer: int | None

    @property
    def pinned(self) -> bool:
        return self.ours is not None

    def pin_this_process(self) -> None:
        """From here on this process and what it starts (the broker, drivers) stay on `ours`."""
        if self.ours is not None:
            os.sched_setaffinity(0, {self.ours})

    @contextlib.contextmanager
    def for_peer(self) -> Iterator[None]:
        """Processes started inside run on the peer's core: a child inherits the affinity of the thread that forks."""
        if self.ours is None or self.peer is None:
            yield
            return
        os.sched_setaffinity(0, {self.peer})
        try:
            yield
        finally:
            os.sched_setaffinity(0, {self.ours})


def choose_cores() -> Cores:
    """Two cores of those this process may use; none on one core, or where the system cannot pin (macOS)."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(ours=None, peer=None)
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(ours=allowed[0], peer=allowed[1]) if len(allowed) > 1 else Cores(ours=None, peer=None)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def commit_of(repository: Path) -> str:
    """Short commit, with `+` where the work tree differs from it; empty outside a repository."""
    commit = _git(repository, "rev-parse", "--short=12", "HEAD")
    return commit + "+" if commit and _git(repository, "status", "--porcelain") else commit


def describe(repository: Path, cores: Cores) -> dict[str, str]:
    """The columns that every row of one run shares."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_of(repository),
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "pinned": "yes" if cores.pinned else "no",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in _VERSIONED},
    }
