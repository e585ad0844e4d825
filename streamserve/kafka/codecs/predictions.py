"""Terminal records: a block of predictions as Open Inference Protocol v2 responses, one record a request.

Everything that is equal for many requests of a block is written once; a request costs one look-up and one formatting.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from streamserve.core.messages import PROBABILITY_ONE, AnyArray, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from streamserve.kafka.codecs.encoded import EncodedRecords
from streamserve.kafka.codecs.outputs import datatype_of, joined, json_strings, json_text, row_texts
from streamserve.kafka.codecs.refs import ID_HEADER, OUTCOME_HEADER, REF_HEADER, TRACE_HEADER, format_ref

#: 8 MiB are declared for the topic; 64 KiB are left for the batch around the record.
DEFAULT_MAX_BYTES = (8 << 20) - (64 << 10)
_MAX_DETAIL_CHARACTERS = 2_000
_CONFIDENCE_DIGITS = 6
#: Of a member's probabilities; what learns from them takes none below 0.001.
_TOLD_DIGITS = 5
#: Lengths, header names and header values of fixed size beside key, value, ids and trace: about 90 at most.
_RECORD_OVERHEAD_BYTES = 128

_OUTCOME_HEADERS = tuple((OUTCOME_HEADER, str(outcome).encode()) for outcome in Outcome)
#: Outcomes whose members count: a chosen one that neither answered nor has a reason was not waited for.
_WITH_MEMBERS = frozenset({Outcome.OK, Outcome.PARTIAL, Outcome.DEFAULT})

#: What requests of a block share: outcome, reason, chosen, answered, probability, epoch, flags, `missing` codes.
_Story = tuple[int, int, int, int, int, int, int, bytes]
#: From this size on it pays to find out whether a whole block shares one story.
_WORTH_COMPARING = 16
_FLAGS = ((1, "late"), (2, "stale"), (4, "off_epoch"))


def encode_predictions(predictions: Predictions, max_bytes: int = DEFAULT_MAX_BYTES) -> EncodedRecords:
    """Records of the predictions topic, in the block's order.

    The key is the request's key, else the id; headers are `ss-ref`, `ss-id`, `ss-outcome` and, where the request had
    one, `traceparent`. A record of more than `max_bytes` (key and headers counted) becomes outcome `error` with reason
    `output_too_large` and no outputs, under the same ref. Numbers that JSON lacks (NaN, infinity) become null.
    """
    places = zip(predictions.partition.tolist(), predictions.offsets.tolist(), strict=True)
    refs = [f"{partition}-{offset}" for partition, offset in places]
    ids = [ref if text is None else text for text, ref in zip(predictions.ids, refs, strict=True)]
    head = _head(predictions.route)
    values: list[bytes | None] = [
        f'{head}{name},"outputs":[{outputs}],"parameters":{{{story}{stated}'
        f'"queue_ms":{queue},"inference_ms":{inference},"total_ms":{total}{closing}'.encode()
        for name, outputs, story, stated, queue, inference, total, closing in zip(
            json_strings(ids),
            _outputs(predictions),
            _story_texts(predictions),
            _statements(predictions),
            predictions.queue_ms.tolist(),
            predictions.inference_ms.tolist(),
            predictions.total_ms.tolist(),
            _closings(predictions),
            strict=True,
        )
    ]
    id_bytes = [text.encode("utf-8", "replace") for text in ids]
    records = EncodedRecords(
        keys=[id_ if key is None else key for key, id_ in zip(predictions.keys, id_bytes, strict=True)],
        values=values,
        headers=_headers(refs, id_bytes, predictions),
    )
    # The sum of a block is a bound on each of its records that costs less than looking at each.
    bound = sum(map(len, filter(None, values))) + 2 * sum(map(len, id_bytes))
    bound += sum(map(len, filter(None, records.keys))) + sum(map(len, filter(None, predictions.traces)))
    if bound + _RECORD_OVERHEAD_BYTES > max_bytes:
        _replace_too_large(records, predictions, max_bytes)
    return records


def _head(route: str) -> str:
    return f'{{"model_name":{json_text(route)},"id":'


def _headers(refs: list[str], ids: list[bytes], predictions: Predictions) -> list[list[tuple[str, bytes | None]]]:
    headers: list[list[tuple[str, bytes | None]]] = [
        [(REF_HEADER, ref.encode()), (ID_HEADER, id_), _OUTCOME_HEADERS[outcome]]
        for ref, id_, outcome in zip(refs, ids, predictions.outcome.tolist(), strict=True)
    ]
    for own, trace in zip(headers, predictions.traces, strict=True):
        if trace is not None:
            own.append((TRACE_HEADER, trace))
    return headers


def _outputs(predictions: Predictions) -> list[str]:
    """The entries of `outputs` of each request; empty where it has no rows."""
    starts = predictions.row_starts.tolist()
    if predictions.labels is None:
        return _with_extras([""] * len(predictions), predictions, starts)
    outputs = _tensors("label", predictions.labels, starts)
    if predictions.probabilities is not None:
        for index, tensor in enumerate(_tensors("probabilities", predictions.probabilities, starts)):
            if tensor:
                outputs[index] += f",{tensor}"
    for member in predictions.members:
        differing = np.flatnonzero(member.differs).tolist()
        if differing:
            tensors = _tensors(f"member.{member.model}", member.labels, starts)
            for index in differing:
                if tensors[index]:
                    outputs[index] += f",{tensors[index]}"
    for told in predictions.told:
        tensors = _tensors(f"probabilities.{told.model}", told.rows.round(_TOLD_DIGITS), starts)
        for index in np.flatnonzero(told.told).tolist():
            if tensors[index]:
                outputs[index] += f",{tensors[index]}"
    return _with_extras(outputs, predictions, starts)


def _with_extras(outputs: list[str], predictions: Predictions, starts: list[int]) -> list[str]:
    for extra in predictions.extras:
        tensors = _tensors(extra.name, extra.rows, starts)
        for index in np.flatnonzero(extra.told).tolist():
            if tensors[index]:
                outputs[index] += f",{tensors[index]}" if outputs[index] else tensors[index]
    return outputs


def _tensors(name: str, rows: AnyArray, starts: list[int]) -> list[str]:
    """One output tensor for each request; empty where it has no rows."""
    texts = row_texts(rows)
    trailing = "".join(f",{size}" for size in rows.shape[1:])
    before = f'{{"name":{json_text(name)},"shape":['
    after = f'{trailing}],"datatype":"{datatype_of(rows.dtype)}","data":['
    if starts == list(range(len(texts) + 1)):
        before = f"{before}1{after}"
        return [f"{before}{text}]}}" for text in texts]
    counts = [end - start for start, end in pairwise(starts)]
    pieces = joined(texts, starts) if rows.size else [""] * len(counts)  # rows without values need no commas
    return [f"{before}{count}{after}{text}]}}" if count else "" for count, text in zip(counts, pieces, strict=True)]


def _story_texts(predictions: Predictions) -> list[str]:
    """Parameters that many requests share, each followed by a comma."""
    choice, n, second = predictions.choice, len(predictions), predictions.second
    flags = predictions.late + 2 * choice.stale + 4 * predictions.off_epoch.astype(np.int64)
    missing = [row.tobytes() for row in predictions.missing] if predictions.missing.any() else [b""] * n
    columns = (
        predictions.outcome,
        predictions.reason,
        choice.chosen,
        predictions.answered,
        choice.probability,
        choice.epoch,
        flags,
    )
    texts: dict[_Story, str] = {}
    if n >= _WORTH_COMPARING and missing[0] == b"" and all((column == column[0]).all() for column in columns):
        first: list[int] = [column[0].item() for column in columns]
        return [_story_text(predictions.models, (*first, b""), second)] * n
    found = []
    for story in zip(*(column.tolist() for column in columns), missing, strict=True):
        text = texts.get(story)
        if text is None:
            text = texts[story] = _story_text(predictions.models, story, second)
        found.append(text)
    return found


@lru_cache(maxsize=1024)
def _story_text(models: tuple[str, ...], story: _Story, second: str | None = None) -> str:
    outcome, reason, chosen, answered, probability, epoch, flags, missing = story
    asked = [model for bit, model in enumerate(models) if chosen >> bit & 1]
    is_second = second in asked and len(asked) > 1  # else the request was given to that one alone
    names = [model for model in asked if not is_second or model != second]
    text = (
        f'"outcome":"{Outcome(outcome)}","reason":"{Reason(reason)}","probability":{probability / PROBABILITY_ONE!r},'
        f'"epoch":{epoch},"chosen":{json_text(",".join(names))},'
    )
    if is_second:
        text += f'"second_opinion":{json_text(second or "")},'
    absent = []
    for bit, model in enumerate(models):
        code = missing[bit] if missing else Missing.PRESENT
        if code == Missing.PRESENT and outcome in _WITH_MEMBERS and (chosen & ~answered) >> bit & 1:
            code = Missing.LATE
        if code != Missing.PRESENT:
            absent.append(f"{model}={Missing(code)}")
    if absent:
        text += f'"missing":{json_text(",".join(absent))},'
    return text + "".join(f'"{name}":true,' for flag, name in _FLAGS if flags & flag)


def _statements(predictions: Predictions) -> list[str]:
    """What is said of one request alone: detail and confidence, each followed by a comma, where there are any."""
    confidence = predictions.confidence
    if np.count_nonzero(confidence == 1.0) == len(confidence):  # one model, or all agree
        statements = ['"confidence":1.0,'] * len(confidence)
    else:
        texts = row_texts(confidence.round(_CONFIDENCE_DIGITS))
        statements = ["" if text == "null" else f'"confidence":{text},' for text in texts]
    for name, column in (("agreement", predictions.agreement), ("set_size", predictions.set_size)):
        if column is not None:
            texts = row_texts(column.round(_CONFIDENCE_DIGITS))
            statements = [
                said if text == "null" else f'{said}"{name}":{text},'
                for said, text in zip(statements, texts, strict=True)
            ]
    if predictions.served_probability is not None:
        statements = [
            f'{said}"served_probability":{probability!r},'
            for said, probability in zip(statements, predictions.served_probability.tolist(), strict=True)
        ]
    if predictions.state_age_ms is not None:
        statements = [
            said if age < 0 else f'{said}"state_age_ms":{age},'
            for said, age in zip(statements, predictions.state_age_ms.tolist(), strict=True)
        ]
    if predictions.contexts:
        statements = [
            f'{said}"context":{json_text(context)},' if context else said
            for said, context in zip(statements, predictions.contexts, strict=True)
        ]
    for index, heads in predictions.heads.items():
        statements[index] += f'"heads":{json_text(heads)},'
    for index, detail in predictions.details.items():
        statements[index] += f'"detail":{json_text(detail[:_MAX_DETAIL_CHARACTERS])},'
    return statements


def _closings(predictions: Predictions) -> list[str]:
    """The end of each record, with the names of the classes where it has probabilities."""
    closings = ["}}"] * len(predictions)
    if predictions.labels is not None and (predictions.probabilities is not None or predictions.told):
        named = f',"classes":{json_text(_class_names(predictions))}}}}}'
        for index in np.flatnonzero(np.diff(predictions.row_starts)).tolist():
            closings[index] = named
    return closings


def _class_names(predictions: Predictions) -> str:
    if predictions.classes is not None:
        return ",".join(map(str, predictions.classes.tolist()))
    count = 0 if predictions.probabilities is None else predictions.probabilities.shape[1]
    return ",".join(map(str, range(count)))


def _size(records: EncodedRecords, index: int) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in records.headers[index])
    return len(records.keys[index] or b"") + len(records.values[index] or b"") + headers + _RECORD_OVERHEAD_BYTES


def _replace_too_large(records: EncodedRecords, predictions: Predictions, max_bytes: int) -> None:
    for index in range(len(records)):
        size = _size(records, index)
        if size <= max_bytes:
            continue
        records.too_large.append(index)
        ref = format_ref(int(predictions.partition[index]), int(predictions.offsets[index]))
        text = predictions.ids[index]
        words = f"the prediction takes {size} bytes; a record may have {max_bytes}"
        records.values[index] = _error_value(predictions, index, ref if text is None else text, words)
        records.headers[index][2] = _OUTCOME_HEADERS[Outcome.ERROR]
        if _size(records, index) > max_bytes:  # the request's own id, key or trace is what is so large
            records.values[index] = _error_value(predictions, index, ref, words)
            records.keys[index] = ref.encode()
            headers = [(REF_HEADER, ref.encode()), (ID_HEADER, ref.encode()), _OUTCOME_HEADERS[Outcome.ERROR]]
            records.headers[index][:] = headers


def _error_value(predictions: Predictions, index: int, request_id: str, words: str) -> bytes:
    choice = predictions.choice
    story = _story_text(
        predictions.models,
        (
            Outcome.ERROR,
            Reason.OUTPUT_TOO_LARGE,
            int(choice.chosen[index]),
            int(predictions.answered[index]),
            int(choice.probability[index]),
            int(choice.epoch[index]),
            int(predictions.late[index]) + 2 * int(choice.stale[index]) + 4 * int(predictions.off_epoch[index]),
            predictions.missing[index].tobytes(),
        ),
    )
    timings = (
        f'"queue_ms":{predictions.queue_ms[index]},"inference_ms":{predictions.inference_ms[index]},'
        f'"total_ms":{predictions.total_ms[index]}'
    )
    return (
        f'{_head(predictions.route)}{json_text(request_id)},"outputs":[],'
        f'"parameters":{{{story}"detail":{json_text(words)},{timings}}}}}'
    ).encode()
