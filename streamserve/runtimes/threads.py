"""Keep numeric libraries from starting a thread per core in every process of a pool."""

from __future__ import annotations

import threading
from typing import Any

from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.frameworks import require

_in_force = threading.local()


class ThreadLimit:
    """Limits BLAS and OpenMP to some threads; `apply` is called in the thread that runs the model.

    OpenMP keeps its limit per calling thread, BLAS one per process: of two models with different limits in one
    process, BLAS follows the one called last. The first `apply` of a thread searches the process for libraries (10 ms:
    warming pays for it), later ones compare two numbers.
    """

    def __init__(self, threads: int, spec: ModelSpec) -> None:
        self.threads = threads
        self._controller_class: Any = require("threadpoolctl", spec).ThreadpoolController
        self._seen = threading.local()

    def apply(self) -> None:
        """Make the limit hold in this thread."""
        controller = getattr(self._seen, "controller", None)
        if controller is not None and getattr(_in_force, "threads", None) == self.threads:
            return
        if controller is None:
            controller = self._seen.controller = self._controller_class()
        controller.limit(limits=self.threads)
        _in_force.threads = self.threads
