"""Blocks of answers: what one model call says, cut by route."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamserve.core.desk import Batch
from streamserve.core.fast import distinct, every, indices, some
from streamserve.core.messages import F64, I64, NO_HEAD, U8, Answers, AnyArray, Choice, Failure, Outputs
from streamserve.core.reasons import PRESENT, Missing
from streamserve.core.routes import Route
from streamserve.core.rows import ranges, span_ms, starts_of

Answered = tuple[I64, Answers]
"""Handles (some may be gone) and the block that answers them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """What became of a batch's requests."""

    missing: U8
    outputs: Outputs | None = None
    """Rows of all requests, one after the other, those of missing ones too; None where none is present."""
    details: Mapping[int, str] = field(default_factory=dict)
    failures: Mapping[int, Failure] = field(default_factory=dict)
    duration_ms: int = 0

    @classmethod
    def all(cls, n: int, missing: Missing, words: str = "") -> Verdict:
        """The same for n requests."""
        return cls(missing=np.full(n, missing, np.uint8), details=dict.fromkeys(range(n), words) if words else {})


def build_blocks(
    batch: Batch,
    model: str,
    verdict: Verdict,
    routes: Sequence[Route],
    errors_of: Callable[[I64, U8], Mapping[int, tuple[int, str]]],
) -> list[Answered]:
    """One block per route in the batch, in the batch's order: by deadline, those that followed an equal input last."""
    columns, outputs, missing = batch.columns, verdict.outputs, verdict.missing
    good = missing == PRESENT
    n_rows = batch.n_rows if every(good) else np.where(good, batch.n_rows, 0)
    starts = starts_of(batch.n_rows)[:-1]
    found = distinct(columns["route"])
    whole = len(found) == 1
    blocks: list[Answered] = []
    for route in found:
        # Of one route, everything is taken as it is: a view costs less than a copy of every column.
        rows: Any = slice(None) if whole else indices(columns["route"] == route)
        labels, probabilities = _rows_of(outputs, starts[rows], n_rows[rows], whole)
        details, failures = verdict.details, verdict.failures
        if details and not whole:
            position = {int(i): k for k, i in enumerate(rows)}
            details = {position[i]: words for i, words in details.items() if i in position}
            failures = {position[i]: failure for i, failure in failures.items() if i in position}
        answers = Answers(
            partition=columns["partition"][rows],
            route=routes[route].name,
            model=model,
            models=routes[route].models,
            route_index=route,
            offsets=columns["offset"][rows],
            row_starts=starts_of(n_rows[rows]),
            labels=labels,
            probabilities=probabilities,
            classes=outputs.classes if outputs is not None else None,
            head=outputs.head if outputs is not None else NO_HEAD,
            missing=missing[rows],
            ids=columns["ids"][rows].tolist(),
            choice=Choice(
                chosen=columns["chosen"][rows],
                probability=columns["probability"][rows],
                epoch=columns["epoch"][rows],
                stale=columns["stale"][rows],
            ),
            queue_ms=span_ms(columns["append_ms"][rows], batch.started_ms),
            inference_ms=np.full(len(missing[rows]), verdict.duration_ms, np.int32),
            errors=errors_of(batch.handles[rows], missing[rows]),
            details=details,
            failures=failures,
        )
        blocks.append((batch.handles[rows], answers))
    return blocks


def _rows_of(outputs: Outputs | None, starts: I64, n_rows: I64, whole: bool) -> tuple[AnyArray | None, F64 | None]:
    if outputs is None or not some(n_rows > 0):
        return None, None
    if whole and int(n_rows.sum()) == len(outputs.labels):
        return outputs.labels, outputs.probabilities
    at = starts if every(n_rows == 1) else ranges(starts, n_rows)
    return outputs.labels[at], outputs.probabilities[at] if outputs.probabilities is not None else None
