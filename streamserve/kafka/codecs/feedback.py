"""Feedback as people send it: `{"id": ..., "label": ...}` or `{"id": ..., "reward": ...}`, placed by its ref."""

from __future__ import annotations

from typing import Any

import orjson

from streamserve.core.messages import Headers
from streamserve.core.reasons import Reason
from streamserve.core.records import FeedbackForward, FeedbackRecord
from streamserve.kafka.codecs.columns import Refusal, excerpt, id_text, unreadable
from streamserve.kafka.codecs.encoded import EncodedRecords
from streamserve.kafka.codecs.jsonbody import parse
from streamserve.kafka.codecs.refs import ORIGIN_HEADER, ORIGIN_MS_HEADER, REF_HEADER, format_ref, parse_ref

DEFAULT_MAX_FEEDBACK_BYTES = 1 << 20


def decode_feedback(
    value: bytes | None,
    headers: Headers,
    *,
    partition: int,
    offset: int,
    append_ms: int,
    key: bytes | None = None,
    max_bytes: int = DEFAULT_MAX_FEEDBACK_BYTES,
) -> FeedbackRecord | Refusal:
    """One record of the feedback topic, or why it cannot be used.

    The ref is the header `ss-ref`, else an id that is one. A reward is 0..1 (1 is best); a label is any JSON value,
    null too, whose whole numbers fit 64 bits.
    """
    if not value or len(value) > max_bytes:
        return unreadable(value, max_bytes)
    places = _places(headers)
    if isinstance(places, Refusal):
        return places
    body = _body(value, REF_HEADER in places)
    if isinstance(body, Refusal):
        return body
    request_id, reward = id_text(body.get("id")), body.get("reward")
    return FeedbackRecord(
        partition=partition,
        offset=offset,
        append_ms=append_ms,
        ref=places.get(REF_HEADER) or parse_ref(request_id),
        id=request_id,
        label=body.get("label"),
        has_label="label" in body,
        reward=None if reward is None else float(reward),
        model=body.get("model"),
        key=key,
        value=value,
        headers=tuple(headers),
        origin=places.get(ORIGIN_HEADER),
        origin_ms=_origin_ms(headers, append_ms) if ORIGIN_HEADER in places else None,
    )


def encode_forward(forward: FeedbackForward) -> EncodedRecords:
    """The record for another partition: key and value byte for byte, where it first landed as `ss-origin`, and when."""
    record = forward.record
    partition, offset = record.origin or (record.partition, record.offset)
    own = (ORIGIN_HEADER, ORIGIN_MS_HEADER)
    headers: list[tuple[str, bytes | None]] = [header for header in record.headers if header[0] not in own]
    headers.append((ORIGIN_HEADER, format_ref(partition, offset).encode()))
    headers.append((ORIGIN_MS_HEADER, b"%d" % record.landed_ms))
    return EncodedRecords(keys=[record.key], values=[record.value], headers=[headers])


def _origin_ms(headers: Headers, append_ms: int) -> int | None:
    """When a forwarded record first landed; None where that is not said, or was later than its forward."""
    said = dict(headers).get(ORIGIN_MS_HEADER) or b""
    return int(said) if said.isdigit() and len(said) < 20 and int(said) <= append_ms else None


def _places(headers: Headers) -> dict[str, tuple[int, int]] | Refusal:
    """The refs in the headers; of a header given twice the last counts."""
    places: dict[str, tuple[int, int]] = {}
    for name, raw in headers:
        if name in (REF_HEADER, ORIGIN_HEADER):
            ref = parse_ref(raw)
            if ref is None:
                return Refusal(Reason.BAD_HEADER, f"header {name} is {excerpt(raw)}; expected <partition>-<offset>")
            places[name] = ref
    return places


def _body(value: bytes, has_ref: bool) -> dict[str, Any] | Refusal:
    """The parsed value, once nothing is wrong with it."""
    form, datatype = Reason.WRONG_FORM, Reason.WRONG_DATATYPE
    body = parse(value)
    if isinstance(body, Refusal):
        return body
    if not isinstance(body, dict):
        return Refusal(form, f"the value is {excerpt(body)}; expected an object with `id` and `label` or `reward`")
    label, reward, model = body.get("label"), body.get("reward"), body.get("model")
    refusal = None
    if "label" not in body and reward is None:
        refusal = Refusal(form, "neither `label` nor `reward`")
    elif not has_ref and id_text(body.get("id")) is None:
        refusal = Refusal(form, f"no `id` and no header {REF_HEADER}: nothing says which prediction is meant")
    elif reward is not None and (type(reward) not in (int, float) or not 0 <= reward <= 1):
        refusal = Refusal(datatype, f"`reward` is {excerpt(reward)}; expected a number from 0 to 1")
    elif model is not None and not isinstance(model, str):
        refusal = Refusal(datatype, f"`model` is {excerpt(model)}; expected a string such as linear@1")
    elif not _writable(label):
        refusal = Refusal(datatype, "`label` holds a whole number beyond 64 bits, or is nested too deeply")
    return body if refusal is None else refusal


def _writable(label: Any) -> bool:
    """An outcome repeats the label, so it must be something that every JSON library writes and reads."""
    try:
        orjson.dumps([label])
    except orjson.JSONEncodeError:
        return False
    return True
