"""Blocks of answers: what one model call says, cut by route."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from streamserve.core.desk import Batch
from streamserve.core.fast import constant, every, indices, some
from streamserve.core.messages import F64, I64, NO_HEAD, U8, Answers, AnyArray, Failure, Outputs
from streamserve.core.presence import is_present
from streamserve.core.reasons import PRESENT, Missing
from streamserve.core.routes import Route
from streamserve.core.rows import ranges, starts_of
from streamserve.core.values import unchanging

Answered = tuple[I64, Answers]
"""Handles (some may be gone) and the block that answers them."""


@unchanging(eq=False)
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


ErrorsOf = Callable[[I64, U8], Mapping[int, tuple[int, str]]]


def build_blocks(
    batch: Batch, model: str, verdict: Verdict, routes: Sequence[Route], errors_of: ErrorsOf
) -> list[Answered]:
    """One block per route in the batch, in the batch's order: by deadline, those that followed an equal input last."""
    asked = batch.asked
    if len(asked.routes) == 1:
        return [(batch.handles, _block(batch, model, verdict, routes[asked.routes[0]], errors_of))]
    blocks: list[Answered] = []
    for route in asked.routes:
        rows = indices(asked.route == route)
        part = replace(batch, handles=batch.handles[rows], n_rows=batch.n_rows[rows], asked=asked.take(rows))
        of_route = _verdict_of(verdict, rows, ranges(starts_of(batch.n_rows)[:-1][rows], part.n_rows))
        blocks.append((part.handles, _block(part, model, of_route, routes[route], errors_of)))
    return blocks


def _verdict_of(verdict: Verdict, requests: I64, rows: I64) -> Verdict:
    """That of some requests, whose rows are these."""
    position = {int(i): k for k, i in enumerate(requests)}
    said = verdict.outputs
    if said is not None:
        probabilities = None if said.probabilities is None else said.probabilities[rows]
        said = replace(said, labels=said.labels[rows], probabilities=probabilities)
    return replace(
        verdict,
        missing=verdict.missing[requests],
        outputs=said,
        details={position[i]: words for i, words in verdict.details.items() if i in position},
        failures={position[i]: failure for i, failure in verdict.failures.items() if i in position},
    )


def _block(batch: Batch, model: str, verdict: Verdict, route: Route, errors_of: ErrorsOf) -> Answers:
    """Of a batch of one route. What all models say alike of its requests is in the very columns of `Asked`."""
    asked, outputs, n_rows = batch.asked, verdict.outputs, batch.n_rows
    row_starts = starts_of(n_rows)
    labels: AnyArray | None
    if outputs is not None and len(outputs.labels) and is_present(verdict.missing):
        labels, probabilities = outputs.labels, outputs.probabilities
    else:
        n_rows = np.where(verdict.missing == PRESENT, n_rows, 0)
        labels, probabilities = _rows_of(outputs, row_starts[:-1], n_rows)
        row_starts = starts_of(n_rows)
    return Answers(
        partition=asked.partition,
        route=route.name,
        model=model,
        models=route.models,
        route_index=asked.routes[0],
        offsets=asked.offset,
        row_starts=row_starts,
        labels=labels,
        probabilities=probabilities,
        classes=outputs.classes if outputs is not None else None,
        head=outputs.head if outputs is not None else NO_HEAD,
        missing=verdict.missing,
        ids=asked.ids,
        choice=asked.choice,
        queue_ms=asked.queued_ms(batch.started_ms),
        inference_ms=constant(len(asked.ids), verdict.duration_ms, "int32"),
        errors=errors_of(batch.handles, verdict.missing),
        details=verdict.details,
        failures=verdict.failures,
    )


def _rows_of(outputs: Outputs | None, starts: I64, n_rows: I64) -> tuple[AnyArray | None, F64 | None]:
    if outputs is None or not some(n_rows > 0):
        return None, None
    at = starts if every(n_rows == 1) else ranges(starts, n_rows)
    return outputs.labels[at], outputs.probabilities[at] if outputs.probabilities is not None else None
