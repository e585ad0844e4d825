"""From chunks to events: what the records of each topic become; and from core messages to records.

A record of ours that is malformed is skipped and goes to `reject`, so that it is counted and kept as a dead letter; one
of another version raises `ContractError`, so that the role stops, but for learnt states: see `states_of`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import numpy as np

from streamserve.core.events import (
    AnswersFetched,
    Event,
    FeedbackFetched,
    OutcomesFetched,
    PredictionsFetched,
    RawAnswersFetched,
    RequestsFetched,
    StatesFetched,
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
    UnreadableState,
)
from streamserve.core.switches import SwitchRecord
from streamserve.errors import ContractError, MalformedRecord
from streamserve.kafka.codecs.answers import decode_answers, encode_answers, peek_answers
from streamserve.kafka.codecs.dead_letters import encode_dead_letters, place_of
from streamserve.kafka.codecs.decisions import decode_prediction_record
from streamserve.kafka.codecs.feedback import decode_feedback, encode_forward
from streamserve.kafka.codecs.learning import (
    decode_epoch,
    decode_outcome,
    decode_snapshot,
    encode_epoch,
    encode_outcome,
    encode_snapshot,
    route_and_context,
    state_key,
)
from streamserve.kafka.codecs.predictions import encode_predictions
from streamserve.kafka.codecs.switches import decode_switch
from streamserve.kafka.loop import Reject
from streamserve.kafka.once import Key, outcome_key
from streamserve.kafka.perform import Encoders, Topics
from streamserve.kafka.ports import At, Chunk, Columns, Record, RecordColumns

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
DecodeState = Callable[[bytes | None, At, int, int], StateRecord]
"""Of a value, its partition, offset and append time. Raises ContractError and MalformedRecord."""


Skips = Callable[[At, bytes | None, bytes | None], bool]
"""By place, key and value: whether a record is not looked at."""


def requests_event(chunk: Chunk) -> Event:
    return RequestsFetched(
        requests=Requests(
            partition=np.full(len(chunk), chunk.at.partition, np.int64),
            offsets=chunk.offsets,
            append_ms=chunk.append_ms,
            keys=chunk.keys,
            values=chunk.values,
            headers=chunk.headers,
            lag={chunk.at.partition: chunk.lag},
        )
    )


def answers_event(chunk: Chunk, reject: Reject) -> Event:
    partition, offsets = chunk.at.partition, chunk.offsets.tolist()
    blocks = _readable(
        chunk, lambda i: decode_answers(chunk.values[i], partition, offsets[i]), "answers", "aggregate", reject
    )
    return AnswersFetched(blocks=blocks, positions={partition: chunk.next_offset})


def raw_answers_event(chunk: Chunk, reject: Reject) -> Event:
    """For a stage that needs few answers: blocks are decoded when it asks (`late_answers`)."""
    partition = chunk.at.partition
    blocks = _readable(chunk, lambda i: peek_answers(chunk.values[i], partition), "answers", "join", reject)
    return RawAnswersFetched(partition=partition, blocks=blocks, next_offset=chunk.next_offset)


def late_answers(value: bytes, partition: int) -> Answers | None:
    """The block; None, with a line in the log, where it contradicts itself."""
    try:
        return decode_answers(value, partition)
    except MalformedRecord as error:
        _log.error("late answers are left out: %s", error)
        return None


def _readable(
    chunk: Chunk, decode: Callable[[int], _Value], source: str, stage: str, reject: Reject
) -> tuple[_Value, ...]:
    """What `decode` makes of each record, by index; malformed ones go to `reject`."""
    found: list[_Value] = []
    bad: list[tuple[int, str, str]] = []
    for i in range(len(chunk)):
        try:
            found.append(decode(i))
        except MalformedRecord as error:
            bad.append((i, "malformed", str(error)))
    if bad:
        reject(_rejected(chunk, bad, source, stage))
    return tuple(found)


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


def outcomes_event(chunk: Chunk, reject: Reject) -> Event:
    partition, offsets, append_ms = chunk.at.partition, chunk.offsets.tolist(), chunk.append_ms.tolist()

    def decode(i: int) -> OutcomeRecord:
        return decode_outcome(chunk.values[i], partition=partition, offset=offsets[i], append_ms=append_ms[i])

    records = _readable(chunk, decode, "outcomes", "update", reject)
    return OutcomesFetched(outcomes=Outcomes(partition=partition, records=records, next_offset=chunk.next_offset))


def feedback_event(chunk: Chunk, reject: Reject) -> Event:
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
        reject(_rejected(chunk, bad, "feedback", "join"))
    return FeedbackFetched(
        feedback=Feedback(partition=partition, records=tuple(records), next_offset=chunk.next_offset)
    )


def _rejected(chunk: Chunk, bad: list[tuple[int, str, str]], source: str, stage: str) -> DeadLetters:
    at = [i for i, _, _ in bad]
    return DeadLetters(
        source=source,
        partition=chunk.at.partition,
        offsets=chunk.offsets[at],
        append_ms=chunk.append_ms[at],
        keys=[chunk.keys[i] for i in at],
        values=[chunk.values[i] for i in at],
        headers=[chunk.headers[i] for i in at],
        reasons=[reason for _, reason, _ in bad],
        details=[words for _, _, words in bad],
        stage=stage,
    )


def states_of(
    chunk: Chunk,
    decode: DecodeState,
    source: str,
    reject: Reject,
    skips: Skips = lambda _at, _key, _value: False,
) -> StatesFetched:
    """States of the epochs, the policy or the contexts topic. What cannot be read is logged, goes to `reject` and is
    told of: roles keep the last good state. Another version stops nobody here: a learner of that release may be at work
    already.
    """
    offsets, append_ms = chunk.offsets.tolist(), chunk.append_ms.tolist()
    states: list[StateRecord] = []
    unreadable: list[UnreadableState] = []
    bad: list[tuple[int, str, str]] = []
    for i, value in enumerate(chunk.values):
        if skips(chunk.at, chunk.keys[i], value):
            continue
        try:
            states.append(decode(value, chunk.at, offsets[i], append_ms[i]))
        except ContractError as error:
            is_whole = not isinstance(error, MalformedRecord)
            bad.append((i, "other_version" if is_whole else "malformed", str(error)))
            route, context = route_and_context(chunk.keys[i])
            unreadable.append(
                UnreadableState(
                    route=route,
                    context=context,
                    partition=chunk.at.partition,
                    epoch=offsets[i],
                    is_whole=is_whole,
                    words=str(error),
                )
            )
            _log.error("a learnt state of route %s is left out, the last good one is kept: %s", route, error)
    if bad:
        reject(_rejected(chunk, bad, source, "update"))
    return StatesFetched(states=tuple(states), unreadable=tuple(unreadable))


def switches_of(chunk: Chunk) -> StatesFetched:
    """Switches of the models topic. A record that cannot be read is logged and switches nothing."""
    found: list[SwitchRecord] = []
    offsets, append_ms = chunk.offsets.tolist(), chunk.append_ms.tolist()
    for i, value in enumerate(chunk.values):
        try:
            record = decode_switch(value, partition=chunk.at.partition, offset=offsets[i], append_ms=append_ms[i])
        except ContractError as error:
            _log.error("a record of the models topic switches nothing: %s", error)
            continue
        if record is not None:
            _log.warning("model %s is switched %s", record.model, "off" if record.disabled else "on")
            found.append(record)
    return StatesFetched(states=(), switches=tuple(found))


def epoch_of(value: bytes | None, at: At, offset: int, append_ms: int) -> StateRecord:
    return decode_epoch(value, partition=at.partition, offset=offset, append_ms=append_ms)


def snapshot_of(value: bytes | None, at: At, offset: int, _append_ms: int) -> StateRecord:
    return decode_snapshot(value, partition=at.partition, offset=offset)


def letter_keys(chunk: Chunk) -> set[Key]:
    """What the dead letters of a fetch are about."""
    return {place for headers in chunk.headers if (place := place_of(headers)) is not None}


def outcome_keys(feedback_topic: str, chunk: Chunk) -> set[Key]:
    """What the outcomes of a fetch are about; what is none of ours is nobody's."""
    keys: set[Key] = set()
    for value, offset in zip(chunk.values, chunk.offsets.tolist(), strict=True):
        with suppress(ContractError):
            outcome = decode_outcome(value, partition=chunk.at.partition, offset=offset, append_ms=0)
            keys.add(outcome_key(feedback_topic, outcome))
    return keys


def encoders(topics: Topics) -> Encoders:
    """How what stages emit becomes records."""
    return Encoders(
        answers=_answers,
        predictions=encode_predictions,
        dead_letters=lambda letters: encode_dead_letters(letters, topics.of(letters.source)),
        outcome=_outcome,
        state=lambda state: _state(state, encode_epoch(state)),
        snapshot=lambda state: _state(state, encode_snapshot(state)),
        forgotten=lambda route, context: Record(value=None, key=state_key(route, context)),
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
