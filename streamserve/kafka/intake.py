"""From chunks to events: what the records of each topic become; and from core messages to records."""

from __future__ import annotations

from collections.abc import Callable

from streamserve.core.events import (
    AnswersFetched,
    Event,
    FeedbackFetched,
    OutcomesFetched,
    PredictionsFetched,
    RequestsFetched,
)
from streamserve.core.messages import Answers, DeadLetters, Requests
from streamserve.core.records import (
    Feedback,
    FeedbackForward,
    FeedbackRecord,
    JoinedPredictions,
    OutcomeRecord,
    Outcomes,
    StateRecord,
)
from streamserve.kafka.codecs.answers import decode_answers, encode_answers
from streamserve.kafka.codecs.dead_letters import encode_dead_letters
from streamserve.kafka.codecs.decisions import decode_prediction_record
from streamserve.kafka.codecs.feedback import decode_feedback, encode_forward
from streamserve.kafka.codecs.learning import (
    decode_epoch,
    decode_outcome,
    decode_snapshot,
    encode_epoch,
    encode_outcome,
    encode_snapshot,
    state_key,
)
from streamserve.kafka.codecs.predictions import encode_predictions
from streamserve.kafka.perform import Encoders, Topics
from streamserve.kafka.ports import Chunk, Columns, Record, RecordColumns


def requests_event(chunk: Chunk) -> Event:
    return RequestsFetched(
        requests=Requests(
            partition=chunk.at.partition,
            offsets=chunk.offsets,
            append_ms=chunk.append_ms,
            keys=chunk.keys,
            values=chunk.values,
            headers=chunk.headers,
            lag=chunk.lag,
        )
    )


def answers_event(chunk: Chunk) -> Event:
    """Raises ContractError on a record of another version, or that is no answers block."""
    partition = chunk.at.partition
    blocks = tuple(decode_answers(value, partition) for value in chunk.values if value)
    return AnswersFetched(partition=partition, blocks=blocks, next_offset=chunk.next_offset)


def predictions_event(chunk: Chunk) -> Event:
    partition = chunk.at.partition
    found = (
        decode_prediction_record(value, headers, partition=partition, append_ms=append_ms)
        for value, headers, append_ms in zip(chunk.values, chunk.headers, chunk.append_ms.tolist(), strict=True)
    )
    records = tuple(record for record in found if record is not None)
    return PredictionsFetched(
        partition=partition, predictions=JoinedPredictions(records=records), next_offset=chunk.next_offset
    )


def outcomes_event(chunk: Chunk) -> Event:
    """Raises ContractError on a record of another version, or that is no outcome."""
    partition = chunk.at.partition
    records = tuple(
        decode_outcome(value, partition=partition, offset=offset, append_ms=append_ms)
        for value, offset, append_ms in zip(chunk.values, chunk.offsets.tolist(), chunk.append_ms.tolist(), strict=True)
    )
    return OutcomesFetched(outcomes=Outcomes(partition=partition, records=records, next_offset=chunk.next_offset))


def feedback_event(chunk: Chunk, reject: Callable[[DeadLetters], None]) -> Event:
    """What cannot be read goes to `reject`; the rest to the stage."""
    partition = chunk.at.partition
    records: list[FeedbackRecord] = []
    bad: list[tuple[int, str, str]] = []
    for i, value in enumerate(chunk.values):
        found = decode_feedback(
            value,
            chunk.headers[i],
            partition=partition,
            offset=int(chunk.offsets[i]),
            append_ms=int(chunk.append_ms[i]),
            key=chunk.keys[i],
        )
        if isinstance(found, FeedbackRecord):
            records.append(found)
        else:
            bad.append((i, str(found.reason), found.words))
    if bad:
        reject(_rejected(chunk, bad))
    return FeedbackFetched(
        feedback=Feedback(partition=partition, records=tuple(records), next_offset=chunk.next_offset)
    )


def _rejected(chunk: Chunk, bad: list[tuple[int, str, str]]) -> DeadLetters:
    at = [i for i, _, _ in bad]
    return DeadLetters(
        source="feedback",
        partition=chunk.at.partition,
        offsets=chunk.offsets[at],
        append_ms=chunk.append_ms[at],
        keys=[chunk.keys[i] for i in at],
        values=[chunk.values[i] for i in at],
        headers=[chunk.headers[i] for i in at],
        reasons=[reason for _, reason, _ in bad],
        details=[words for _, _, words in bad],
        stage="join",
    )


def epochs_of(chunk: Chunk) -> tuple[StateRecord, ...]:
    """States of the epochs topic. Raises ContractError on another version."""
    return tuple(
        decode_epoch(value, partition=chunk.at.partition, offset=offset, append_ms=append_ms)
        for value, offset, append_ms in zip(chunk.values, chunk.offsets.tolist(), chunk.append_ms.tolist(), strict=True)
    )


def snapshots_of(chunk: Chunk) -> tuple[StateRecord, ...]:
    """States of the policy topic; a tombstone is none. Raises ContractError on another version."""
    return tuple(
        decode_snapshot(value, partition=chunk.at.partition, offset=offset)
        for value, offset in zip(chunk.values, chunk.offsets.tolist(), strict=True)
        if value is not None
    )


def encoders(topics: Topics) -> Encoders:
    """How what stages emit becomes records."""
    return Encoders(
        answers=_answers,
        predictions=encode_predictions,
        dead_letters=lambda letters: encode_dead_letters(letters, topics.of(letters.source)),
        outcome=_outcome,
        state=lambda state: _state(state, encode_epoch(state)),
        snapshot=lambda state: _state(state, encode_snapshot(state)),
        forward=_forward,
    )


def _answers(answers: Answers) -> RecordColumns:
    values = encode_answers(answers)
    return Columns(keys=[None] * len(values), values=list(values), headers=[[] for _ in values])


def _outcome(outcome: OutcomeRecord) -> Record:
    return Record(value=encode_outcome(outcome), key=state_key(outcome.route, outcome.context))


def _state(state: StateRecord, value: bytes) -> Record:
    return Record(value=value, key=state_key(state.route, state.context))


def _forward(forward: FeedbackForward) -> Record:
    records = encode_forward(forward)
    return Record(value=records.values[0], key=records.keys[0], headers=records.headers[0])
