"""How a model in a process of its own is held to its place: plain values, from the config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

#: Numeric libraries read these when they are loaded.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class ProcessState(NamedTuple):
    """Figures of one model's process."""

    model: str
    up: bool
    restarts: int
    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the process of one model may use, and how long it may take."""

    memory_bytes: int = 4 << 30
    """Resident memory; above, the process is ended."""
    most_threads: int = 64
    """Above, the process is ended."""
    cpu_cores: int = 1
    """Cores that it may use, and threads of its numeric libraries; above, it is confined to so many cores."""
    niceness: int = 10
    """Its weight against the worker's own on a busy core: each step is a fifth less, ten are a tenth."""
    call_timeout_ms: int = 5_000
    """A call that takes longer is taken to hang: the process is ended."""
    load_timeout_ms: int = 120_000
    """From the start of the process to the first call it could answer."""

    def as_table(self) -> dict[str, int]:
        """For the child's first frame."""
        return asdict(self)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Variables of the process. What the user has set for fewer threads stays."""
        threads = {name: base.get(name, str(self.cpu_cores)) for name in _THREAD_VARIABLES}
        return {**base, **threads}

    def cores(self, number: int) -> tuple[int, ...]:
        """To which the model of this number is confined: those of neighbours differ where there are enough.

        Empty where no fewer cores than there are.
        """
        allowed = sorted(os.sched_getaffinity(0), reverse=True) if hasattr(os, "sched_getaffinity") else []
        if self.cpu_cores >= len(allowed):
            return ()
        first = number * self.cpu_cores
        return tuple(allowed[(first + i) % len(allowed)] for i in range(self.cpu_cores))
