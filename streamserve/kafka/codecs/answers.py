"""Answers as blocks: one MessagePack record per (model, partition), arrays as raw little-endian bytes.

The form is `streamserve.topics.internal_values.AnswersBlock`. A reader trusts nothing: every length, code and index is
checked before numpy sees it, since what is wrong here would shift the answers of many requests.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from streamserve.core.events import RawAnswers
from streamserve.core.fast import some
from streamserve.core.messages import I64, PROBABILITY_ONE, Answers, Choice, Failure
from streamserve.core.outputs import MOST_ANSWER_BYTES
from streamserve.core.reasons import Missing, Reason
from streamserve.errors import MalformedRecord
from streamserve.kafka.codecs.arrays import pack_array, pack_column, unpack_array, unpack_column
from streamserve.kafka.codecs.contract import VERSION, VersionOnly, read
from streamserve.topics.internal_values import AnswersBlock, ArrayValue
from streamserve.topics.values import Version

DEFAULT_BLOCK_BYTES = 256 << 10
MAX_RECORD_BYTES = MOST_ANSWER_BYTES

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnswersBlock).decode


_decode_version = msgspec.msgpack.Decoder(VersionOnly).decode
_MISSING_CODES = max(Missing)
_REASON_CODES = frozenset(int(reason) for reason in Reason)


def encode_answers(
    answers: Answers, max_block_bytes: int = DEFAULT_BLOCK_BYTES, max_record_bytes: int = MAX_RECORD_BYTES
) -> list[bytes]:
    """Values of the answers topic for a block of one partition: one, or several where one would be above
    `max_block_bytes`.

    A block is split between requests, never within one. A single request's answer may be larger, up to
    `max_record_bytes`; above that it is replaced by `Missing.OUTPUT_TOO_LARGE` with words.
    """
    if not len(answers):
        return []
    value = _encode_block(answers)
    if len(value) <= max_block_bytes:
        return [value]
    n = len(answers)
    if n > 1:
        halves = (_part(answers, 0, n // 2), _part(answers, n // 2, n))
        return [value for half in halves for value in encode_answers(half, max_block_bytes, max_record_bytes)]
    if len(value) <= max_record_bytes:
        return [value]
    return [_encode_block(_without_output(answers, len(value), max_record_bytes))]


def _encode_block(answers: Answers) -> bytes:
    choice = answers.choice
    block = AnswersBlock(
        v=VERSION,
        route=answers.route,
        model=answers.model,
        offsets=pack_column(answers.offsets, np.int64),
        row_starts=pack_column(answers.row_starts, np.int64),
        labels=None if answers.labels is None else pack_array(answers.labels),
        probabilities=None if answers.probabilities is None else pack_column(answers.probabilities, np.float64),
        classes=None if answers.classes is None else pack_array(answers.classes),
        missing=pack_column(answers.missing, np.uint8),
        ids=answers.ids,
        chosen=pack_column(choice.chosen, np.uint64),
        probability=pack_column(choice.probability, np.int64),
        epoch=pack_column(choice.epoch, np.int64),
        stale=pack_column(choice.stale, np.bool_),
        queue_ms=pack_column(answers.queue_ms, np.int32),
        inference_ms=pack_column(answers.inference_ms, np.int32),
        models=list(answers.models),
        head=answers.head,
        errors=dict(answers.errors),
        details=dict(answers.details),
        failures={
            index: (failure.exception, failure.stack, failure.attempts) for index, failure in answers.failures.items()
        },
    )
    try:
        return _encode(block)
    except UnicodeEncodeError:  # a lone surrogate, in a model's words or in an id
        return _encode(_printable(block))


def _printable(block: AnswersBlock) -> AnswersBlock:
    return msgspec.structs.replace(
        block,
        ids=[None if text is None else _utf8(text) for text in block.ids],
        errors={index: (code, _utf8(words)) for index, (code, words) in block.errors.items()},
        details={index: _utf8(words) for index, words in block.details.items()},
        failures={
            index: (_utf8(name), _utf8(stack), attempts) for index, (name, stack, attempts) in block.failures.items()
        },
    )


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _part(answers: Answers, start: int, end: int) -> Answers:
    """Requests `start:end` as a block of their own."""
    first, last = answers.row_starts[start], answers.row_starts[end]
    rows = slice(int(first), int(last))
    choice = answers.choice
    return replace(
        answers,
        partition=answers.partition[start:end],
        offsets=answers.offsets[start:end],
        row_starts=answers.row_starts[start : end + 1] - first,
        labels=None if answers.labels is None else answers.labels[rows],
        probabilities=None if answers.probabilities is None else answers.probabilities[rows],
        missing=answers.missing[start:end],
        ids=answers.ids[start:end],
        choice=Choice(
            chosen=choice.chosen[start:end],
            probability=choice.probability[start:end],
            epoch=choice.epoch[start:end],
            stale=choice.stale[start:end],
        ),
        queue_ms=answers.queue_ms[start:end],
        inference_ms=answers.inference_ms[start:end],
        errors={index - start: error for index, error in answers.errors.items() if start <= index < end},
        details={index - start: words for index, words in answers.details.items() if start <= index < end},
        failures={index - start: failure for index, failure in answers.failures.items() if start <= index < end},
    )


def _without_output(answers: Answers, size: int, max_record_bytes: int) -> Answers:
    """One request's answer, marked as missing because of its size."""
    return replace(
        answers,
        row_starts=np.zeros(2, np.int64),
        labels=None,
        probabilities=None,
        classes=None,
        missing=np.array([Missing.OUTPUT_TOO_LARGE], np.uint8),
        errors={},
        details={0: f"the answer takes {size} bytes; a record may have {max_record_bytes}"},
        failures={},
    )


class _Peek(msgspec.Struct):
    """What a block is about."""

    v: Version
    model: str
    offsets: ArrayValue


_decode_peek = msgspec.msgpack.Decoder(_Peek).decode


def peek_answers(value: bytes | None, partition: int) -> RawAnswers:
    """What a block is about, without reading the rest. Raises as `decode_answers`."""
    peek = read(value, _decode_peek, f"an answers record of partition {partition}", _decode_version)
    try:
        offsets = unpack_column(peek.offsets, np.int64, len(peek.offsets.data) // 8)
        _check_offsets(offsets)
    except ValueError as error:
        raise MalformedRecord(
            f"an answers record of partition {partition} by {peek.model!r} contradicts itself: {error}"
        ) from None
    return RawAnswers(model=peek.model, offsets=offsets, value=value or b"")


def decode_answers(value: bytes | None, partition: int, log_offset: int = -1) -> Answers:
    """The block that the record at this place of the log holds. Arrays are read-only views of the record.

    Raises `ContractError` for another version, `MalformedRecord` for content that contradicts itself.
    """
    block = read(value, _decode, f"an answers record of partition {partition}", _decode_version)
    try:
        answers = _unpack(block, partition, log_offset)
        _check(answers)
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedRecord(
            f"an answers record of partition {partition} by {block.model!r} contradicts itself: {error}"
        ) from None
    return answers


def _unpack(block: AnswersBlock, partition: int, log_offset: int) -> Answers:
    n = len(block.ids)
    return Answers(
        partition=np.full(n, partition, np.int64),
        route=block.route,
        model=block.model,
        offsets=unpack_column(block.offsets, np.int64, n),
        row_starts=unpack_column(block.row_starts, np.int64, n + 1),
        labels=None if block.labels is None else unpack_array(block.labels),
        probabilities=None if block.probabilities is None else unpack_array(block.probabilities),
        classes=None if block.classes is None else unpack_array(block.classes),
        missing=unpack_column(block.missing, np.uint8, n),
        ids=block.ids,
        choice=Choice(
            chosen=unpack_column(block.chosen, np.uint64, n),
            probability=unpack_column(block.probability, np.int64, n),
            epoch=unpack_column(block.epoch, np.int64, n),
            stale=unpack_column(block.stale, np.bool_, n),
        ),
        queue_ms=unpack_column(block.queue_ms, np.int32, n),
        inference_ms=unpack_column(block.inference_ms, np.int32, n),
        models=tuple(block.models),
        head=block.head,
        errors=block.errors,
        details=block.details,
        failures={
            index: Failure(exception=name, stack=stack, attempts=attempts, model=block.model)
            for index, (name, stack, attempts) in block.failures.items()
        },
        log_offset=None if log_offset < 0 else np.full(n, log_offset, np.int64),
    )


def _check(answers: Answers) -> None:
    """Raises ValueError in words where columns contradict one another."""
    n = len(answers)
    if not n:
        raise ValueError("it answers no request")
    starts, probability = answers.row_starts, answers.choice.probability
    counts = starts[1:] - starts[:-1]
    if starts[0] != 0 or some(counts < 0):
        raise ValueError("row_starts do not begin at 0 or go back")
    _check_offsets(answers.offsets)
    if some(answers.missing > _MISSING_CODES):
        raise ValueError(f"missing code {answers.missing.max()} is unknown")
    if some((answers.missing != Missing.PRESENT) & (counts != 0)):
        raise ValueError("a request without an answer has rows")
    if some((probability < 0) | (probability > PROBABILITY_ONE)):
        raise ValueError("a probability is outside 0..1")
    if answers.models and int(answers.choice.chosen.max()) >> len(answers.models):
        raise ValueError(f"a model is chosen that is none of the {len(answers.models)} of its route")
    _check_rows(answers, int(starts[-1]))
    _check_words(answers, n)


def _check_offsets(offsets: I64) -> None:
    if not len(offsets):
        raise ValueError("it answers no request")
    if offsets[0] < 0 or some(offsets[1:] <= offsets[:-1]):
        raise ValueError("offsets do not increase")


def _check_rows(answers: Answers, rows: int) -> None:
    labels, probabilities, classes = answers.labels, answers.probabilities, answers.classes
    held = 0 if labels is None else len(labels)
    if held != rows:
        raise ValueError(f"row_starts end at {rows} and there are {held} labels")
    if probabilities is not None:
        if probabilities.dtype != np.float64 or probabilities.ndim != 2 or len(probabilities) != rows:
            raise ValueError(f"probabilities are {probabilities.dtype} {list(probabilities.shape)} for {rows} rows")
        if classes is not None and classes.shape != probabilities.shape[1:]:
            raise ValueError(f"{list(classes.shape)} classes for {probabilities.shape[1]} columns of probabilities")


def _check_words(answers: Answers, n: int) -> None:
    errors = answers.errors
    for index in (*errors, *answers.details, *answers.failures):
        if not 0 <= index < n:
            raise ValueError(f"words about request {index} of {n}")
    for code, _ in errors.values():
        if code not in _REASON_CODES:
            raise ValueError(f"reason code {code} is unknown")
