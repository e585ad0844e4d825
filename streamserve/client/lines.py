"""Records of every topic in words, one line each, and as plain values for JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from streamserve.client.prediction import Prediction, TerminalRecord, decode_prediction
from streamserve.client.scanning import LogRecord
from streamserve.core.messages import Answers
from streamserve.core.reasons import Missing
from streamserve.core.records import StateRecord
from streamserve.errors import ContractError
from streamserve.kafka.codecs import decode_answers, decode_epoch, decode_outcome, decode_snapshot, parse_ref
from streamserve.kafka.codecs.redrives import decode_mark
from streamserve.kafka.codecs.refs import ORIGIN_HEADER, REF_HEADER
from streamserve.topics import Kind

_MAX_CHARACTERS = 100
_DLQ = "__connect.errors."


def line(kind: Kind, record: LogRecord) -> str:
    """Local time, place and words; of a record that cannot be read, why."""
    time = datetime.fromtimestamp(record.append_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3]
    return f"{time}  {kind:<11} {record.at.partition}-{record.offset:<8} {words(kind, record)}"


def words(kind: Kind, record: LogRecord) -> str:
    """What a record says."""
    try:
        return _WORDS[kind](record)
    except ContractError as error:
        return f"unreadable: {error}"


def plain(kind: Kind, record: LogRecord) -> dict[str, Any]:
    """A record as plain values: `value` parsed where it is JSON or a block of answers, else text or base 64."""
    return {
        "topic": record.at.topic,
        "partition": record.at.partition,
        "offset": record.offset,
        "append_ms": record.append_ms,
        "key": as_text(record.key),
        "headers": {name: as_text(text) for name, text in record.headers},
        "value": _value(kind, record),
    }


def dumps(value: object) -> str:
    """JSON on one line; numpy's arrays and numbers are written as Python's."""
    return orjson.dumps(value, default=_default, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()


def excerpt(value: object, limit: int = _MAX_CHARACTERS) -> str:
    """A value as text, cut to a line."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def prediction_of(record: LogRecord) -> Prediction:
    """Raises ContractError where the record is no terminal record."""
    ref = parse_ref(record.header(REF_HEADER))
    if ref is None or ref[0] != record.at.partition:
        raise ContractError(f"record {record.at.partition}-{record.offset} has no ref of its partition")
    return decode_prediction(TerminalRecord(*ref, record.append_ms, record.key, record.value))


def prediction_words(prediction: Prediction) -> str:
    """Outcome, label and timings of a terminal record."""
    parts = [f"{prediction.outcome} ({prediction.reason.replace('_', ' ')})"]
    if prediction.labels is not None:
        parts.append(f"label {_rows(prediction.labels)}")
    if prediction.confidence is not None:
        parts.append(f"confidence {prediction.confidence:.3g}")
    if prediction.missing:
        parts.append(f"without {', '.join(f'{model} ({why})' for model, why in prediction.missing.items())}")
    flags = [name for name in ("late", "stale", "off_epoch") if getattr(prediction, name)]
    parts += [*flags, *([excerpt(prediction.detail)] if prediction.detail else [])]
    parts.append(f"{prediction.total_ms} ms (queue {prediction.queue_ms}, inference {prediction.inference_ms})")
    return ", ".join(parts)


def answer_words(answers: Answers, index: int) -> str:
    """What one model said of one request of its block."""
    timings = f"queue {answers.queue_ms[index]} ms, inference {answers.inference_ms[index]} ms"
    detail = answers.details.get(index, answers.errors.get(index, (0, ""))[1])
    if answers.missing[index] != Missing.PRESENT or answers.labels is None:
        why = f"no answer ({Missing(int(answers.missing[index]))})"
        return f"{answers.model}: {why}{f': {excerpt(detail)}' if detail else ''}"
    rows = answers.labels[answers.row_starts[index] : answers.row_starts[index + 1]]
    return f"{answers.model}: label {_rows(rows)}, {timings}"


def state_words(state: StateRecord) -> str:
    """A learnt state."""
    context = f" in context {state.context}" if state.context else ""
    return f"{state.route}{context}: {state.policy}, epoch {state.epoch}, {excerpt(dumps(state.data))}"


def _rows(labels: NDArray[Any]) -> str:
    return excerpt(labels[0] if len(labels) == 1 else labels, 60)


def _request(record: LogRecord) -> str:
    if record.value is None:
        return "a tombstone"
    named = [f"{name}={excerpt((text or b'').decode('utf-8', 'replace'), 40)}" for name, text in record.headers]
    if record.key is not None:
        named.insert(0, f"key={excerpt(as_text(record.key), 40)}")
    body = excerpt(record.value[: 4 * _MAX_CHARACTERS].decode("utf-8", "replace"), 60)
    return " ".join([*named, f"{len(record.value)} bytes", body])


def _answers(record: LogRecord) -> str:
    answers = decode_answers(record.value or b"", record.at.partition)
    if len(answers) == 1:
        return f"{record.at.partition}-{answers.offsets[0]} {answer_words(answers, 0)}"
    absent = int(np.count_nonzero(answers.missing))
    first, last = answers.offsets[0], answers.offsets[-1]
    return (
        f"{answers.model}: {len(answers)} requests {record.at.partition}-{first} to {last}, "
        f"{answers.row_starts[-1]} rows, queue {answers.queue_ms.max()} ms, inference {answers.inference_ms.max()} ms"
        f"{f', {absent} without an answer' if absent else ''}"
    )


def _prediction(record: LogRecord) -> str:
    prediction = prediction_of(record)
    named = "" if prediction.id == prediction.ref else f" id={excerpt(prediction.id, 40)}"
    return f"{prediction.ref}{named} {prediction_words(prediction)}"


def feedback_words(record: LogRecord) -> str:
    """Label, reward and where it came from."""
    ref = (record.header(REF_HEADER) or b"").decode("utf-8", "replace") or "no ref"
    origin = record.header(ORIGIN_HEADER)
    came = f", forwarded from {origin.decode('utf-8', 'replace')}" if origin else ""
    return f"{ref} {excerpt((record.value or b'').decode('utf-8', 'replace'))}{came}"


def outcome_words(record: LogRecord) -> str:
    """A prediction joined with its feedback."""
    outcome = decode_outcome(
        record.value, partition=record.at.partition, offset=record.offset, append_ms=record.append_ms
    )
    told = f"label {excerpt(outcome.label, 40)}" if outcome.has_label else f"reward {outcome.reward}"
    losses = ", ".join(f"{model} {loss:.3g}" for model, loss in outcome.losses.items())
    answered = excerpt(outcome.decision.label, 40)
    return f"{outcome.ref[0]}-{outcome.ref[1]} {outcome.route}: {told}, answered {answered}; losses {losses or 'none'}"


def epoch_of(record: LogRecord) -> StateRecord:
    """The learnt state of a record of the epochs topic. Raises ContractError."""
    return decode_epoch(record.value, partition=record.at.partition, offset=record.offset, append_ms=record.append_ms)


def _policy(record: LogRecord) -> str:
    if record.value is None:
        return f"{(record.key or b'').decode('utf-8', 'replace')}: forgotten"
    return state_words(decode_snapshot(record.value, partition=record.at.partition, offset=record.offset))


def dead_letter_words(record: LogRecord) -> str:
    """Why a record could not be used; of a mark between them, what a redrive did."""
    mark = decode_mark(record.value, record.headers)
    if mark is not None:
        refs = excerpt(", ".join(f"{source.topic} {source.ref}" for source in mark.sources))
        return f"a redrive {'put back' if mark.is_done else 'begins to put back'} {len(mark.sources)}: {refs}"
    told = {name: (text or b"").decode("utf-8", "replace") for name, text in record.headers}
    place = f"{told.get(f'{_DLQ}topic', '?')} {told.get(f'{_DLQ}partition', '?')}-{told.get(f'{_DLQ}offset', '?')}"
    reason = told.get("ss-reason", "unknown").replace("_", " ")
    message = told.get(f"{_DLQ}exception.message", "")
    return f"{place} by {told.get(f'{_DLQ}stage', '?')}: {reason}{f': {excerpt(message)}' if message else ''}"


def _text(record: LogRecord) -> str:
    key = f"{excerpt(as_text(record.key), 60)} " if record.key is not None else ""
    return key + ("removed" if record.value is None else excerpt(record.value.decode("utf-8", "replace")))


_WORDS: Mapping[Kind, Callable[[LogRecord], str]] = {
    Kind.REQUESTS: _request,
    Kind.ANSWERS: _answers,
    Kind.PREDICTIONS: _prediction,
    Kind.FEEDBACK: feedback_words,
    Kind.OUTCOMES: outcome_words,
    Kind.EPOCHS: lambda record: state_words(epoch_of(record)),
    Kind.POLICY: _policy,
    Kind.CONTEXTS: _policy,
    Kind.MODELS: _text,
    Kind.INSIGHTS: _text,
    Kind.DLQ: dead_letter_words,
}


def _value(kind: Kind, record: LogRecord) -> Any:
    if record.value is None:
        return None
    if kind is Kind.ANSWERS:
        try:
            return answers_plain(decode_answers(record.value, record.at.partition))
        except ContractError as error:
            return {"unreadable": str(error), "base64": base64.b64encode(record.value).decode()}
    try:
        return orjson.loads(record.value)
    except orjson.JSONDecodeError:
        return as_text(record.value)


def answers_plain(answers: Answers) -> dict[str, Any]:
    """A block of answers, one entry a request."""
    return {
        "route": answers.route,
        "model": answers.model,
        "answers": [answer_plain(answers, index) for index in range(len(answers))],
    }


def answer_plain(answers: Answers, index: int) -> dict[str, Any]:
    """One model's answer to one request."""
    rows = slice(int(answers.row_starts[index]), int(answers.row_starts[index + 1]))
    missing = Missing(int(answers.missing[index]))
    return {
        "ref": f"{answers.partition}-{answers.offsets[index]}",
        "model": answers.model,
        "labels": answers.labels[rows].tolist() if answers.labels is not None and missing == Missing.PRESENT else None,
        "missing": None if missing == Missing.PRESENT else str(missing),
        "detail": answers.details.get(index) or answers.errors.get(index, (0, None))[1],
        "epoch": int(answers.choice.epoch[index]),
        "queue_ms": int(answers.queue_ms[index]),
        "inference_ms": int(answers.inference_ms[index]),
    }


def as_text(value: bytes | None) -> str:
    """As text; what is no text, as base 64."""
    if value is None:
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _default(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
