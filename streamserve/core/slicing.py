"""Parts of column messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamserve.core.fast import indices
from streamserve.core.messages import I64, Answers, Choice, Flags, MemberOutput, Predictions
from streamserve.core.rows import ranges, starts_of


def take_choice(choice: Choice, rows: I64) -> Choice:
    return Choice(
        chosen=choice.chosen[rows],
        probability=choice.probability[rows],
        epoch=choice.epoch[rows],
        stale=choice.stale[rows],
    )


def take_predictions(block: Predictions, rows: I64, **changes: Any) -> Predictions:
    """The records of these indices, in this order, with some columns changed."""
    picked = rows.tolist()
    n_rows = np.diff(block.row_starts)[rows]
    gather = ranges(block.row_starts[:-1][rows], n_rows)
    position = {i: k for k, i in enumerate(picked)}
    part = replace(
        block,
        offsets=block.offsets[rows],
        append_ms=block.append_ms[rows],
        keys=[block.keys[i] for i in picked],
        ids=[block.ids[i] for i in picked],
        traces=[block.traces[i] for i in picked],
        outcome=block.outcome[rows],
        reason=block.reason[rows],
        row_starts=starts_of(n_rows),
        labels=None if block.labels is None else block.labels[gather],
        probabilities=None if block.probabilities is None else block.probabilities[gather],
        confidence=block.confidence[rows],
        choice=take_choice(block.choice, rows),
        answered=block.answered[rows],
        missing=block.missing[rows],
        members=tuple(
            MemberOutput(model=member.model, labels=member.labels[gather], differs=member.differs[rows])
            for member in block.members
        ),
        queue_ms=block.queue_ms[rows],
        inference_ms=block.inference_ms[rows],
        total_ms=block.total_ms[rows],
        late=block.late[rows],
        off_epoch=block.off_epoch[rows],
        details={position[i]: words for i, words in block.details.items() if i in position},
    )
    return replace(part, **changes) if changes else part


def take_answers(block: Answers, rows: Flags) -> Answers:
    """The answers that `rows` marks."""
    picked = indices(rows)
    n_rows = np.diff(block.row_starts)[picked]
    gather = ranges(block.row_starts[:-1][picked], n_rows)
    position = {int(i): k for k, i in enumerate(picked)}
    return replace(
        block,
        offsets=block.offsets[picked],
        row_starts=starts_of(n_rows),
        labels=None if block.labels is None else block.labels[gather],
        probabilities=None if block.probabilities is None else block.probabilities[gather],
        missing=block.missing[picked],
        ids=[block.ids[i] for i in picked.tolist()],
        choice=take_choice(block.choice, picked),
        queue_ms=block.queue_ms[picked],
        inference_ms=block.inference_ms[picked],
        errors={position[i]: error for i, error in block.errors.items() if i in position},
        details={position[i]: words for i, words in block.details.items() if i in position},
    )
