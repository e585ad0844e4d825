"""Parts of column messages, and several joined into one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamserve.core.fast import distinct, every, indices, some
from streamserve.core.messages import (
    I64,
    Answers,
    Choice,
    DeadLetters,
    MemberOutput,
    NamedRows,
    Predictions,
    Requests,
    ToldProbabilities,
    request_keys,
)
from streamserve.core.rows import ranges, starts_of

_Scalar = TypeVar("_Scalar", bound=np.generic)


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
        partition=block.partition[rows],
        offsets=block.offsets[rows],
        append_ms=block.append_ms[rows],
        keys=[block.keys[i] for i in picked],
        ids=[block.ids[i] for i in picked],
        traces=[block.traces[i] for i in picked],
        contexts=[block.contexts[i] for i in picked] if block.contexts else (),
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
        told=tuple(
            ToldProbabilities(model=member.model, rows=member.rows[gather], told=member.told[rows])
            for member in block.told
        ),
        agreement=None if block.agreement is None else block.agreement[rows],
        state_age_ms=None if block.state_age_ms is None else block.state_age_ms[rows],
        set_size=None if block.set_size is None else block.set_size[rows],
        served_probability=None if block.served_probability is None else block.served_probability[rows],
        extras=tuple(
            NamedRows(name=extra.name, rows=extra.rows[gather], told=extra.told[rows]) for extra in block.extras
        ),
        queue_ms=block.queue_ms[rows],
        inference_ms=block.inference_ms[rows],
        total_ms=block.total_ms[rows],
        late=block.late[rows],
        off_epoch=block.off_epoch[rows],
        details={position[i]: words for i, words in block.details.items() if i in position},
        heads={position[i]: words for i, words in block.heads.items() if i in position},
    )
    return replace(part, **changes) if changes else part


def take_answers(block: Answers, picked: I64) -> Answers:
    """The answers of these indices, in this order."""
    n_rows = np.diff(block.row_starts)[picked]
    gather = ranges(block.row_starts[:-1][picked], n_rows)
    position = {int(i): k for k, i in enumerate(picked)}
    return replace(
        block,
        partition=block.partition[picked],
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
        failures={position[i]: failure for i, failure in block.failures.items() if i in position},
        log_offset=None if block.log_offset is None else block.log_offset[picked],
    )


def unwritten(partition: I64, written: Mapping[int, int]) -> NDArray[np.bool_]:
    """Rows that are not among the first so many of their partition (`ProduceFailed.written`)."""
    rest = np.ones(len(partition), np.bool_)
    for number, n in written.items():
        rest[indices(partition == number)[:n]] = False
    return rest


def unwritten_answers(block: Answers, written: Mapping[int, int]) -> Answers:
    """The same for answers, of which one record holds many: without the partitions that were written whole."""
    whole = [number for number, n in written.items() if n == np.count_nonzero(block.partition == number)]
    return take_answers(block, indices(~np.isin(block.partition, whole))) if whole else block


def answers_by_partition(block: Answers) -> list[tuple[int, Answers]]:
    """(partition, its answers in order of offset): what the records of the answers topic hold."""
    found = distinct(block.partition)
    if len(found) == 1 and every(block.offsets[1:] > block.offsets[:-1]):
        return [(found[0], block)]
    parts = []
    for partition in found:
        rows = indices(block.partition == partition)
        parts.append((partition, take_answers(block, rows[np.argsort(block.offsets[rows], kind="stable")])))
    return parts


def predictions_by_partition(block: Predictions, at: I64) -> list[tuple[Predictions, I64]]:
    """A block and one more column of it, cut by partition."""
    found = distinct(block.partition)
    if len(found) == 1:
        return [(block, at)]
    parts = []
    for partition in found:
        rows = indices(block.partition == partition)
        parts.append((take_predictions(block, rows), at[rows]))
    return parts


def take_requests(requests: Requests, rows: I64) -> Requests:
    """The requests of these indices, in this order."""
    picked = rows.tolist()
    return replace(
        requests,
        partition=requests.partition[rows],
        offsets=requests.offsets[rows],
        append_ms=requests.append_ms[rows],
        keys=[requests.keys[i] for i in picked],
        values=[requests.values[i] for i in picked],
        headers=[requests.headers[i] for i in picked],
    )


def joined_requests(parts: Sequence[Requests]) -> Requests:
    """Fetches, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Requests(
        partition=np.concatenate([part.partition for part in parts]),
        offsets=np.concatenate([part.offsets for part in parts]),
        append_ms=np.concatenate([part.append_ms for part in parts]),
        keys=[key for part in parts for key in part.keys],
        values=[value for part in parts for value in part.values],
        headers=[headers for part in parts for headers in part.headers],
        lag={partition: lag for part in parts for partition, lag in part.lag.items()},
    )


def joined_answers(blocks: Sequence[Answers]) -> list[Answers]:
    """Blocks of the same model and route whose rows can stand in one array, as one: each costs a look-up of its own."""
    if len(blocks) == 1:
        return list(blocks)
    by_model: dict[Hashable, list[Answers]] = {}
    for block in blocks:
        by_model.setdefault((block.route, block.model), []).append(block)
    joined: list[Answers] = []
    for of_model in by_model.values():
        if len(of_model) == 1:
            joined += of_model
            continue
        kinds = _by_kind(of_model)
        if len(kinds) > 1:  # joined, a later answer of one kind would come before an earlier one of another
            kinds = _by_kind(_first_of_each(of_model))
        joined += [parts[0] if len(parts) == 1 else _first_ones(_joined(parts)) for parts in kinds]
    return joined


def _by_kind(blocks: Sequence[Answers]) -> list[list[Answers]]:
    """Those that can be joined, together."""
    kinds: dict[Hashable, list[Answers]] = {}
    for block in blocks:
        kinds.setdefault(_kind_of(block), []).append(block)
    return list(kinds.values())


def _first_of_each(blocks: Sequence[Answers]) -> list[Answers]:
    """Blocks of one model, in the order of the log, without answers to what an earlier one has answered."""
    seen: I64 = np.empty(0, np.int64)
    left = []
    for block in blocks:
        keys = request_keys(block.partition, block.offsets)
        new = ~np.isin(keys, seen)
        if some(new):
            left.append(block if every(new) else take_answers(block, indices(new)))
            seen = np.concatenate((seen, keys))
    return left


def _first_ones(block: Answers) -> Answers:
    """Each request once: a worker that took over may have answered again."""
    _, first = np.unique(request_keys(block.partition, block.offsets), return_index=True)
    return block if len(first) == len(block) else take_answers(block, np.sort(first))


def _kind_of(block: Answers) -> Hashable:
    """Equal for blocks of one model that can be joined."""
    labels, probabilities, classes = block.labels, block.probabilities, block.classes
    return (
        block.models,
        None if labels is None else (labels.dtype.str, labels.shape[1:]),
        None if probabilities is None else (probabilities.dtype.str, probabilities.shape[1:]),
        None if classes is None else tuple(classes.tolist()),
        block.log_offset is None,
        block.head,
    )


def _joined(parts: list[Answers]) -> Answers:
    first = parts[0]
    choices = [part.choice for part in parts]
    starts = starts_of(np.array([len(part) for part in parts], np.int64)).tolist()
    shifted = list(zip(starts, parts, strict=False))
    return Answers(
        partition=np.concatenate([part.partition for part in parts]),
        route=first.route,
        model=first.model,
        models=first.models,
        head=first.head,
        offsets=np.concatenate([part.offsets for part in parts]),
        row_starts=starts_of(np.concatenate([np.diff(part.row_starts) for part in parts])),
        labels=_concatenated([part.labels for part in parts]),
        probabilities=_concatenated([part.probabilities for part in parts]),
        classes=first.classes,
        missing=np.concatenate([part.missing for part in parts]),
        ids=[request_id for part in parts for request_id in part.ids],
        choice=Choice(
            chosen=np.concatenate([choice.chosen for choice in choices]),
            probability=np.concatenate([choice.probability for choice in choices]),
            epoch=np.concatenate([choice.epoch for choice in choices]),
            stale=np.concatenate([choice.stale for choice in choices]),
        ),
        queue_ms=np.concatenate([part.queue_ms for part in parts]),
        inference_ms=np.concatenate([part.inference_ms for part in parts]),
        errors={start + i: error for start, part in shifted for i, error in part.errors.items()},
        details={start + i: words for start, part in shifted for i, words in part.details.items()},
        failures={start + i: failure for start, part in shifted for i, failure in part.failures.items()},
        log_offset=_concatenated([part.log_offset for part in parts]),
    )


def _concatenated(columns: Sequence[NDArray[_Scalar] | None]) -> NDArray[_Scalar] | None:
    """None where the first is: all are alike."""
    return None if columns[0] is None else np.concatenate([column for column in columns if column is not None])


def take_letters(letters: DeadLetters, rows: I64) -> DeadLetters:
    """The dead letters of these indices, in this order."""
    picked = rows.tolist()
    position = {i: k for k, i in enumerate(picked)}
    return replace(
        letters,
        offsets=letters.offsets[rows],
        append_ms=letters.append_ms[rows],
        keys=[letters.keys[i] for i in picked],
        values=[letters.values[i] for i in picked],
        headers=[letters.headers[i] for i in picked],
        reasons=[letters.reasons[i] for i in picked],
        details=[letters.details[i] for i in picked],
        failures={position[i]: failure for i, failure in letters.failures.items() if i in position},
    )
