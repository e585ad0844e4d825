"""Bytes <-> columns: what the records of each topic hold. Pure functions: no client, no clock.

========================  ===================================================================================
requests                  `input_codec(name)`: value -> rows (`inputs`, `oip`, `rows`, `text`, `raw`)
answers                   `encode_answers`, `decode_answers`
predictions               `encode_predictions`; read back by `decode_prediction_record`, `decode_decision`,
                          `rows_as_written`
feedback                  `decode_feedback`, `encode_forward`
outcomes, epochs, policy  `encode_outcome`, `decode_outcome`, `encode_epoch`, `decode_epoch`, `encode_snapshot`,
                          `decode_snapshot`, `state_key`
dead letters              `encode_dead_letters`, `decode_dead_letter`; marks of a redrive: `redrives`
========================  ===================================================================================

What people send never raises: it becomes a value with a reason (`Refusal`, `Decoded.errors`). What our own roles
write raises `ContractError` where it is of another version, `MalformedRecord` where it contradicts itself.
"""

from __future__ import annotations

from streamserve.kafka.codecs.answers import decode_answers, encode_answers
from streamserve.kafka.codecs.columns import Refusal
from streamserve.kafka.codecs.dead_letters import decode_dead_letter, encode_dead_letters
from streamserve.kafka.codecs.decisions import decode_decision, decode_prediction_record, rows_as_written
from streamserve.kafka.codecs.encoded import EncodedRecords
from streamserve.kafka.codecs.feedback import decode_feedback, encode_forward
from streamserve.kafka.codecs.inputs import INPUT_CODECS, input_codec
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
from streamserve.kafka.codecs.refs import format_ref, parse_ref

__all__ = [
    "INPUT_CODECS",
    "EncodedRecords",
    "Refusal",
    "decode_answers",
    "decode_dead_letter",
    "decode_decision",
    "decode_epoch",
    "decode_feedback",
    "decode_outcome",
    "decode_prediction_record",
    "decode_snapshot",
    "encode_answers",
    "encode_dead_letters",
    "encode_epoch",
    "encode_forward",
    "encode_outcome",
    "encode_predictions",
    "encode_snapshot",
    "format_ref",
    "input_codec",
    "parse_ref",
    "rows_as_written",
    "state_key",
]
