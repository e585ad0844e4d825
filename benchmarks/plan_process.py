"""A process of its own that holds models: `Holder` starts one and asks it; run as a module it is one.

The first line of its input is a `Task`, every further one a question by name with options (see `_QUESTIONS`); each is
answered by one line of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plan_questions import OUTPUT, rows_for

_DROPPED = 10
_MIXED = (1, 100)
_ROWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to load, and how."""

    what: str
    """`plans` of a store; `copies`: the same with arrays of their own; `pickles`."""
    workload: str
    files: tuple[str, ...]
    store: str = ""
    marks: tuple[int, ...] = ()
    """Memory is looked at after so many models, each asked once, all their pages touched; () : pages stay untouched."""
    most_bytes: int = 0
    """No further model is loaded above this; 0: it is not looked at."""
    warms: bool = True
    """Kernels are read before the first model is loaded, as a worker does."""


class Holder:
    """The parent's end. `loaded` is the process's report."""

    def __init__(self, task: Task) -> None:
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.plan_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **limits, "PYTHONWARNINGS": "ignore"},
            text=True,
        )
        self._say(asdict(task))
        self._loaded: dict[str, Any] | None = None

    @property
    def loaded(self) -> dict[str, Any]:
        """`count`, `load_s` of each, `load_cpu_s` of all, `curve` of (models, bytes). Waits for it."""
        if self._loaded is None:
            self._loaded = self._hear()
        return self._loaded

    def _say(self, words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that holds models ended with code {self._process.wait()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self, question: str, **options: Any) -> dict[str, Any]:
        """One answer."""
        self.begin(question, **options)
        return self.end()

    def begin(self, question: str, **options: Any) -> None:
        """Ask, and `end` takes the answer: several processes work at once."""
        _ = self.loaded
        self._say([question, options])

    def end(self) -> dict[str, Any]:
        """The answer to what was begun."""
        return self._hear()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@contextlib.contextmanager
def holding(*tasks: Task) -> Iterator[list[Holder]]:
    """Processes for the tasks, two loading at a time, all there at the same time."""
    holders: list[Holder] = []
    try:
        for task in tasks:
            if len(holders) > 1:
                _ = holders[-2].loaded
            holders.append(Holder(task))
        for holder in holders:
            _ = holder.loaded
        yield holders
    finally:
        for holder in holders:
            holder.close()


# -- the process -------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Proportional set size, or resident set size where the system does not tell it."""
    rollup = Path("/proc/self/smaps_rollup")
    name, file = ("Pss:", rollup) if rollup.exists() else ("VmRSS:", Path("/proc/self/status"))
    return next(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(name))


class _Held:
    """The models of this process."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.rows = rows_for(task.workload, _ROWS)
        load = _loader(task)
        gc.collect()
        self.before = resident_bytes()
        self.models: list[Any] = []
        self.load_s: list[float] = []
        self.load_cpu_s = 0.0
        self.curve: list[tuple[int, int]] = []
        for file in task.files:
            started, cpu = time.perf_counter(), time.process_time()
            self.models.append(load(file))
            self.load_s.append(time.perf_counter() - started)
            self.load_cpu_s += time.process_time() - cpu
            if task.marks:
                self._touch(self.models[-1])
                if len(self.models) in task.marks:
                    self.curve.append((len(self.models), self.grown()))
            if task.most_bytes and self.grown() > task.most_bytes:
                break
        self._freeze()

    def _freeze(self) -> None:
        from streamserve.kafka.interpreter import tune_interpreter  # noqa: PLC0415  (its imports are not the models')

        if self.task.what == "plans":
            tune_interpreter()

    def _touch(self, model: Any) -> None:
        self.calls(model)(self.rows[:1])
        if self.task.what in {"plans", "copies"}:
            for constant in model.graph.constants():
                np.add.reduce(constant.array, axis=None, dtype=np.float64)

    def calls(self, model: Any) -> Callable[[Any], Any]:
        """How a model is asked."""
        return getattr(model, OUTPUT[self.task.workload])  # type: ignore[no-any-return]  # of any model

    def grown(self) -> int:
        """Bytes since before the first model."""
        return resident_bytes() - self.before

    def report(self) -> dict[str, Any]:
        """What `Holder.loaded` is."""
        return {"count": len(self.models), "load_s": self.load_s, "load_cpu_s": self.load_cpu_s, "curve": self.curve}


def _loader(task: Task) -> Callable[[str], Any]:
    """Loads one file. What it needs is imported first: that is not the models' memory, nor the first one's time."""
    if task.what in {"plans", "copies"}:
        from streamserve.plan import kernels, packing, store  # noqa: PLC0415  (only where plans are held)

        if task.warms:
            kernels.warm()

        class Copies(store.Store):
            """A store without sharing: whoever asks gets an array of their own."""

            def get(self, digest: str) -> Any:
                shared = super().get(digest)
                return type(shared)(shared.array.copy(), digest)

        place = (store.Store if task.what == "plans" else Copies)(task.store)
        return lambda file: packing.load(Path(file), place)
    import sklearn.ensemble  # noqa: PLC0415  (its own memory is not the models')
    import sklearn.pipeline  # noqa: F401, PLC0415  (as above)

    return lambda file: pickle.loads(Path(file).read_bytes())


def _memory(held: _Held) -> dict[str, Any]:
    """`bytes` grown by, `all_bytes` of the process."""
    return {"bytes": held.grown(), "all_bytes": resident_bytes()}


def _calls(held: _Held, *, hot: int) -> dict[str, Any]:
    """Microseconds of single rows, which differ from call to call: `cold`, the first call of each model; `warmed`, the
    second (a worker asks each model once before it serves); `hot`, so many of each after ten that do not count. Each
    also in processor time (`hot_cpu`), which other work on the machine does not lengthen."""
    calls = [held.calls(model) for model in held.models]
    found: dict[str, list[float]] = {
        f"{kind}{clock}": [] for kind in ("cold", "warmed", "hot") for clock in ("", "_cpu")
    }
    turn = 0

    def timed(call: Callable[[Any], Any], kind: str) -> None:
        nonlocal turn
        turn = (turn + 1) % len(held.rows)
        one = held.rows[turn : turn + 1]
        cpu, started = time.thread_time_ns(), time.perf_counter_ns()
        call(one)
        ended, cpu_ended = time.perf_counter_ns(), time.thread_time_ns()
        if kind:
            found[kind].append((ended - started) / 1e3)
            found[f"{kind}_cpu"].append((cpu_ended - cpu) / 1e3)

    for kind in ("cold", "warmed"):
        for call in calls:
            timed(call, kind)
    for call in calls:
        for i in range(_DROPPED + hot):
            timed(call, "hot" if i >= _DROPPED else "")
    return found


def _throughput(held: _Held, *, batch: int, seconds: float, at: float = 0.0) -> dict[str, Any]:
    """Rows answered a second, the models in turn, in batches of `batch` rows; begins at `at` of the machine's clock."""
    calls = [held.calls(model) for model in held.models]
    starts = [i % max(1, len(held.rows) - batch + 1) for i in range(0, 64 * batch, batch)]
    batches = [held.rows[start : start + batch] for start in starts]
    for call, rows in zip(calls, batches, strict=False):
        call(rows)
    time.sleep(max(0.0, at - time.time()))
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        calls[done % len(calls)](batches[done % len(batches)])
        done += 1
    return {"rate": done * batch / spent}


def _steady(held: _Held, *, rows: int) -> dict[str, Any]:
    """`rows` rows, half of the calls with one and half with a hundred: memory at a tenth and at the end, pauses of the
    collector in milliseconds, and compilations."""
    from streamserve.plan.kernels import compilations  # noqa: PLC0415  (only where plans are held)

    pauses: list[float] = []
    began = 0.0

    def note(phase: str, _: Any) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            pauses.append(1e3 * (time.perf_counter() - began))

    calls = [held.calls(model) for model in held.models]
    curve: list[tuple[int, int]] = []
    done = turn = 0
    compiled = compilations()
    gc.callbacks.append(note)
    try:
        while done < rows:
            size = _MIXED[turn % 2]
            at = turn % (len(held.rows) - size)
            calls[turn // 2 % len(calls)](held.rows[at : at + size])
            done, turn = done + size, turn + 1
            if done * 20 >= rows * (len(curve) + 1):
                curve.append((done, resident_bytes()))
    finally:
        gc.callbacks.remove(note)
    return {"curve": curve, "pauses_ms": pauses, "calls": turn, "compilations": compilations() - compiled}


_QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "memory": _memory,
    "calls": _calls,
    "throughput": _throughput,
    "steady": _steady,
}


def main(lines: Sequence[str] | Any) -> None:
    """Load, then answer until the input ends."""
    lines = iter(lines)
    task = json.loads(next(lines))
    held = _Held(Task(**{name: tuple(value) if isinstance(value, list) else value for name, value in task.items()}))
    print(json.dumps(held.report()), flush=True)
    for line in lines:
        question, options = json.loads(line)
        print(json.dumps(_QUESTIONS[question](held, **options)), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
