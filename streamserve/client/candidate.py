"""A model that is tried on rows outside of any role: called as a worker calls it, timed, and held to the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamserve.core.evaluation.durations import Durations
from streamserve.core.events import BatchFinished
from streamserve.core.messages import AnyArray, Outputs
from streamserve.core.outputs import check_outputs
from streamserve.core.reasons import PRESENT
from streamserve.errors import ModelError
from streamserve.kafka.codecs import rows_as_written
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes import ModelSpec, load
from streamserve.runtimes.sampling import sample_of

_AWAY_LOOK_S = 0.05
#: A process that ends at each of so many rows in a row is the model's fault, not the rows'.
_MOST_ENDS = 20


@dataclass(slots=True, kw_only=True)
class RowAnswers:
    """What a model said of n rows."""

    answers: list[Any]
    """`[n]`: as a prediction would hold it; None where the row was refused."""
    refusals: dict[int, str] = field(default_factory=dict)
    """Row -> why."""


@dataclass(slots=True)
class CallTimes:
    """Of the calls that went well."""

    batch: Durations = field(default_factory=Durations)
    row: Durations = field(default_factory=Durations)
    """A call's time divided by its rows, weighted by them."""
    rows: int = 0
    total_ms: float = 0.0

    def add(self, rows: int, ms: float) -> None:
        self.batch.add(ms)
        self.row.add(ms / rows, rows)
        self.rows += rows
        self.total_ms += ms

    @property
    def rows_per_s(self) -> float | None:
        """While it is called; what is between calls is not counted."""
        return self.rows / self.total_ms * 1000 if self.total_ms else None


class Candidate:
    """One loaded model. Made by `loaded_candidate`."""

    def __init__(self, spec: ModelSpec, most_rows: int, base_dir: Path) -> None:
        self.model_id = spec.model_id
        self.most_rows = most_rows
        self.times = CallTimes()
        runtime = load(spec, base_dir=base_dir)
        self._patience_s = 0.0 if spec.isolation is None else spec.isolation.load_timeout_ms / 1000
        self._runner = ModelRunner({spec.model_id: runtime}, self._finished)
        try:
            self._sample = sample_of(spec.model_id, runtime)
        except BaseException:
            self._runner.close()
            raise
        self._waiting: asyncio.Future[BatchFinished] | None = None
        self._ends_in_row = 0

    async def warm(self) -> None:
        """Raises ModelError where it fails on its own sample row."""
        await self._runner.warm({self.model_id: self._sample})

    def close(self) -> None:
        self._runner.close()

    async def answer(self, rows: AnyArray) -> RowAnswers:
        """Answer rows `[n, ...]` in calls of at most `most_rows`. A failed call is bisected, as a worker does.

        Raises ModelError where its process does not come back, or ends again and again.
        """
        found = RowAnswers(answers=[None] * len(rows))
        wrong = self._wrong_shape(rows)
        if wrong:
            found.refusals = dict.fromkeys(range(len(rows)), wrong)
            return found
        for start in range(0, len(rows), self.most_rows):
            await self._answer(rows, start, min(start + self.most_rows, len(rows)), found)
        return found

    def _wrong_shape(self, rows: AnyArray) -> str:
        sample = self._sample
        if sample is None or (
            sample.shape[1:] == rows.shape[1:] and (sample.dtype == object) == (rows.dtype == object)
        ):
            return ""
        wants = "text" if sample.dtype == object else str(list(sample.shape[1:]))
        return f"{self.model_id} takes rows of {wants}, not of {list(rows.shape[1:])} {rows.dtype}"

    async def _answer(self, rows: AnyArray, start: int, end: int, found: RowAnswers) -> None:
        done = await self._call(rows[start:end])
        if done.outputs is None:
            if end - start > 1:
                middle = (start + end) // 2
                await self._answer(rows, start, middle, found)
                await self._answer(rows, middle, end, found)
                return
            found.refusals[start] = done.error
            self._ends_in_row = self._ends_in_row + 1 if done.away else 0
            if self._ends_in_row >= _MOST_ENDS:
                raise ModelError(f"its process ended at each of {_MOST_ENDS} rows in a row: {done.error}")
            return
        self._ends_in_row = 0
        self.times.add(end - start, done.duration_ms)
        self._take(done.outputs, start, end - start, found)

    def _take(self, outputs: Outputs, start: int, n: int, found: RowAnswers) -> None:
        checked = check_outputs(outputs, np.ones(n, np.int64))
        good = checked.missing == PRESENT
        for row in np.flatnonzero(~good).tolist():
            found.refusals[start + row] = checked.details.get(row, "its answer cannot be used")
        if good.any():
            places = (np.flatnonzero(good) + start).tolist()
            for place, answer in zip(places, rows_as_written(outputs.labels[good]), strict=True):
                found.answers[place] = answer

    async def _call(self, rows: AnyArray) -> BatchFinished:
        await self._wait_until_there()
        self._waiting = asyncio.get_running_loop().create_future()
        self._runner.submit(0, self.model_id, rows)
        return await self._waiting

    async def _wait_until_there(self) -> None:
        """A process of its own that has ended is started again: that takes as long as loading may."""
        until = asyncio.get_running_loop().time() + self._patience_s
        while away := self._runner.away():
            if asyncio.get_running_loop().time() > until:
                raise ModelError(away[0])
            await asyncio.sleep(_AWAY_LOOK_S)

    def _finished(self, done: BatchFinished) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(done)


@asynccontextmanager
async def loaded_candidate(spec: ModelSpec, most_rows: int, base_dir: Path) -> AsyncIterator[Candidate]:
    """Loaded and warm, for as long as the context lasts. `most_rows`: of one call. Raises ModelError."""
    candidate = Candidate(spec, most_rows, base_dir)
    try:
        await candidate.warm()
        yield candidate
    finally:
        candidate.close()
