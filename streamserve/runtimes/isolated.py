"""A model in a process of its own, behind the same interface as one in a thread.

Whatever that process does, only this model's answers are missing: a call that it cannot answer fails at once with
`ModelAway`, and it is started again, warm before it takes work.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelAway, ModelError
from streamserve.runtimes import system
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.isolation import Limits, ProcessState
from streamserve.runtimes.process import ModelProcess

_log = logging.getLogger(__name__)

#: How often limits are looked at: what a model can take of the machine in that time it takes beyond them.
_LOOK_S = 0.05
#: A process that has served so long ends for a reason of its own: the next one is started at once.
_STEADY_S = 10.0
_FIRST_WAIT_S = 0.1
#: Between two starts of a process that serves until something ends it, and of one that does not get so far.
_MOST_WAIT_S = 0.5
_MOST_WAIT_UNREADY_S = 10.0
_CLOSE_S = 1.0


class IsolatedRuntime:
    """Starts the model's process and waits until it is ready. Raises `ModelError` where it cannot be."""

    _numbers = itertools.count()

    def __init__(self, spec: ModelSpec, limits: Limits, base_dir: Path) -> None:
        self._spec, self._limits, self._base_dir = spec, limits, base_dir
        self._number = os.getpid() + next(self._numbers)
        self._process: ModelProcess | None = None
        self._closed = False
        self.over = threading.Event()
        """It was closed, and its process has ended."""
        self._ends_in_row = 0
        self._due_at = 0.0
        self._why = ""
        self._made = threading.Event()
        self._serves = False
        self._sample: AnyArray | None = None
        self.name = ""
        """Of the runtime class, and where it runs."""
        self.restarts = 0
        """Processes started in the place of one that had ended."""
        _keeper.keep(self)
        self._made.wait()
        process = self._process
        if process is not None:
            process.settled.wait()
        if process is None or not process.ready:
            self.close()
            refused = "" if process is None else process.refused
            raise ModelError(refused or self._words())
        self._sample = process.sample
        self.name = f"{process.runtime} in a process of its own"
        self._serves = True

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch. Raises `ModelAway` where the process is not there or ends, `ModelRaised` where it raises."""
        process = self._process
        if process is None or not process.ready:
            raise ModelAway(self._words())
        return process.call(batch)

    def sample(self) -> AnyArray | None:
        """The model's own sample row."""
        return self._sample

    @property
    def away(self) -> str:
        """Why the model cannot be called now; empty where it can."""
        process = self._process
        there = process is not None and process.ready and not process.ended.is_set()
        return "" if there else self._words()

    @property
    def pid(self) -> int | None:
        """Of its process, while there is one."""
        process = self._process
        return None if process is None or process.ended.is_set() else process.pid

    def state(self) -> ProcessState:
        pid = self.pid
        usage = None if pid is None else system.usage_of(pid)
        return ProcessState(
            model=self._spec.model_id,
            up=not self.away,
            restarts=self.restarts,
            memory_bytes=0 if usage is None else usage.memory_bytes,
            threads=0 if usage is None else usage.threads,
        )

    def close(self) -> None:
        """Let the process end; a call that is under way fails."""
        self._closed = True
        _keeper.poke()
        if not self.over.wait(_CLOSE_S):
            process = self._process
            if process is not None:
                process.kill()
            self.over.wait(_CLOSE_S)

    def _words(self) -> str:
        process = self._process
        if process is not None and (process.ended.is_set() or not self._why):
            return process.words()
        return f"model {self._spec.model_id}: its process {self._why or 'is not started yet'}"

    # -- the keeper's thread -------------------------------------------------------------------------------------

    def look(self) -> None:
        """Watch over the process; start another in the place of one that has ended."""
        process = self._process
        if process is not None:
            if self._closed:
                process.hang_up()
            process.look()
            if process.ended.is_set() and not self._closed:
                self._has_ended(process)
        if self._closed:
            if process is None or process.ended.is_set():
                self.over.set()
        elif self._process is None and time.monotonic() >= self._due_at:
            if not self._made.is_set():
                self._start()
            elif self._serves:
                self.restarts += 1
                self._start()

    def _start(self) -> None:
        try:
            self._process = ModelProcess(self._spec, self._limits, self._base_dir, self._number, poke=_keeper.poke)
        except OSError as error:
            self._why = f"cannot be started: {error.strerror}"
            self._wait_longer(_MOST_WAIT_UNREADY_S)
        self._made.set()

    def _has_ended(self, process: ModelProcess) -> None:
        if process.ready and time.monotonic() - process.ready_at > _STEADY_S:
            self._ends_in_row = 0
        self._why = f"{process.why}{f': {process.refused}' if process.refused else ''}; it is started again"
        self._process = None
        self._wait_longer(_MOST_WAIT_S if process.ready else _MOST_WAIT_UNREADY_S)
        wait_ms = max(0.0, self._due_at - time.monotonic()) * 1000
        _log.warning("%s in %.0f ms", self._words(), wait_ms)

    def _wait_longer(self, most_s: float) -> None:
        in_row = self._ends_in_row
        wait_s = min(most_s, _FIRST_WAIT_S * 2 ** min(in_row - 1, 10)) if in_row else 0.0
        self._ends_in_row += 1
        self._due_at = time.monotonic() + wait_s


class _Keeper:
    """One thread for all isolated models of this process.

    The kernel ends a child with the *thread* that started it, so that thread must last as long as this process.
    """

    def __init__(self) -> None:
        self._pokes: SimpleQueue[None] = SimpleQueue()
        self._kept: tuple[IsolatedRuntime, ...] = ()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def keep(self, runtime: IsolatedRuntime) -> None:
        with self._lock:
            self._kept = (*self._kept, runtime)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="keeper of isolated models", daemon=True)
                self._thread.start()
        self.poke()

    def poke(self) -> None:
        """Look at all of them soon."""
        self._pokes.put(None)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(Empty):
                self._pokes.get(timeout=_LOOK_S if self._kept else None)
            for runtime in self._kept:
                try:
                    runtime.look()
                except Exception:  # noqa: BLE001  (of one model: the others are to be looked after, too)
                    _log.exception("an isolated model could not be looked after")
            if any(runtime.over.is_set() for runtime in self._kept):
                with self._lock:
                    self._kept = tuple(runtime for runtime in self._kept if not runtime.over.is_set())


_keeper = _Keeper()
