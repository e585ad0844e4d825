"""Terminal records read back: by the join (decoded only on a match), and by whoever wants the decision in them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import orjson

from streamserve.core.messages import AnyArray, Headers
from streamserve.core.records import Decision, Label, PredictionRecord
from streamserve.kafka.codecs.outputs import row_texts
from streamserve.kafka.codecs.refs import ID_HEADER, REF_HEADER, parse_ref
from streamserve.topics.values import OutputTensor, PredictionValue

_decode = msgspec.json.Decoder(PredictionValue).decode
_MEMBER = "member."
_PROBABILITIES = "probabilities."
#: Rows without values cost nothing to claim; a request holds at most one row per two bytes.
_MAX_EMPTY_ROWS = 1 << 20


def decode_prediction_record(
    value: bytes | None, headers: Headers, *, partition: int, append_ms: int
) -> PredictionRecord | None:
    """What the join keeps of one record of the predictions topic; None for one that cannot be a terminal record.

    That is one without a value, or whose header `ss-ref` is missing, malformed or of another partition.
    """
    ref = request_id = None
    for name, raw in headers:
        if name == REF_HEADER:
            ref = parse_ref(raw)
        elif name == ID_HEADER:
            request_id = (raw or b"").decode("utf-8", "replace")
    if not value or ref is None or ref[0] != partition:
        return None
    return PredictionRecord(request_offset=ref[1], append_ms=append_ms, id=request_id, raw=value)


def decode_decision(raw: bytes) -> Decision | None:
    """What was decided, as the terminal record says; None where it does not read as one of ours."""
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    rows_of: dict[str, list[Any]] = {}
    for tensor in value.outputs:
        rows = _rows(tensor)
        if rows is None:
            return None
        rows_of[tensor.name] = rows
    parameters = value.parameters
    chosen = tuple(parameters.chosen.split(",")) if parameters.chosen else ()
    label = rows_of.get("label")
    second = parameters.second_opinion if isinstance(parameters.second_opinion, str) else None
    asked = chosen if second is None else (*chosen, second)
    return Decision(
        id=value.id,
        route=value.model_name,
        outcome=parameters.outcome,
        epoch=parameters.epoch,
        probability=parameters.probability,
        off_epoch=parameters.off_epoch is True,
        chosen=chosen,
        label=label,
        members=_members(asked, _absent(parameters.missing), rows_of),
        rows=0 if label is None else len(label),
        probabilities={
            model: rows for model in chosen if (rows := rows_of.get(f"{_PROBABILITIES}{model}")) is not None
        },
        classes=tuple(parameters.classes.split(",")) if isinstance(parameters.classes, str) else (),
        agreement=parameters.agreement if isinstance(parameters.agreement, float) else None,
        combined=rows_of.get("probabilities") if "in_set" in rows_of else None,
        withheld=rows_of.get("withheld"),
        context=parameters.context if isinstance(parameters.context, str) else "",
        second=second,
        served_probability=(
            parameters.served_probability if isinstance(parameters.served_probability, float) else None
        ),
        state_age_ms=parameters.state_age_ms if isinstance(parameters.state_age_ms, int) else -1,
    )


def _members(chosen: tuple[str, ...], absent: frozenset[str], rows_of: dict[str, list[Any]]) -> dict[str, Label]:
    """A member that answered has an output of its own, unless it said what `label` says."""
    members: dict[str, Label] = {}
    for model in chosen:
        said = rows_of.get(f"{_MEMBER}{model}", rows_of.get("label"))
        if model not in absent and said is not None:
            members[model] = said
    return members


def _absent(missing: str | msgspec.UnsetType) -> frozenset[str]:
    if not isinstance(missing, str):
        return frozenset()
    return frozenset(entry.rpartition("=")[0] for entry in missing.split(","))


def _rows(tensor: OutputTensor) -> list[Any] | None:
    """One entry a row, nested as the shape says; None where shape and data differ."""
    data, (count, *sizes) = tensor.data, tensor.shape
    if len(data) != count * prod(sizes) or (0 in sizes and count > _MAX_EMPTY_ROWS):
        return None
    return _nested(data, count, sizes)


def rows_as_written(labels: AnyArray) -> list[Any]:
    """A model's answers `[n, ...]` as a prediction would hold them, read back: one entry a row.

    So they compare with those of a terminal record: text for what is no number, and a 32-bit float as it is written.
    """
    data = orjson.loads(f"[{','.join(text for text in row_texts(labels) if text)}]")
    return _nested(data, len(labels), labels.shape[1:])


def _nested(data: list[Any], count: int, sizes: Sequence[int]) -> list[Any]:
    if 0 in sizes:
        return [[] for _ in range(count)]
    for size in reversed(sizes):
        data = [data[start : start + size] for start in range(0, len(data), size)]
    return data
