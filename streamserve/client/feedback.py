"""What really happened, as a record of the feedback topic."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
import orjson

from streamserve.client.failures import UnusableInput
from streamserve.client.inputs import key_bytes
from streamserve.client.prediction import Prediction
from streamserve.kafka.codecs.refs import REF_HEADER, parse_ref
from streamserve.kafka.ports import Record


class _Unset(Enum):
    UNSET = "unset"


#: No label was given; None is a label.
UNSET: Final = _Unset.UNSET


def feedback_record(
    prediction: Prediction | str,
    *,
    partitions: int,
    label: Any = UNSET,
    reward: float | None = None,
    model: str | None = None,
    key: str | bytes | None = None,
) -> tuple[int, Record]:
    """The request's partition, and the record. Arguments as `Client.feedback`; raises UnusableInput."""
    if isinstance(prediction, Prediction):
        ref, id, request_key = prediction.ref, prediction.id, prediction.key
    else:
        ref, id, request_key = prediction, prediction, None
    place = parse_ref(ref)
    if place is None:
        raise UnusableInput(f"{ref!r} is no ref: expected <partition>-<offset> of a request, such as 2-17")
    if place[0] >= partitions:
        raise UnusableInput(f"ref {ref} names partition {place[0]}; the app has partitions 0 to {partitions - 1}")
    value = _value(id, label, reward, model)
    record_key = key_bytes(key) if key is not None else request_key
    if record_key is None:
        record_key = id.encode("utf-8", "replace")
    return place[0], Record(value=value, key=record_key, headers=((REF_HEADER, ref.encode()),))


def _value(id: str, label: Any, reward: float | None, model: str | None) -> bytes:
    if label is UNSET and reward is None:
        raise UnusableInput("feedback needs a label or a reward")
    body: dict[str, Any] = {"id": id}
    if label is not UNSET:
        body["label"] = _plain(label)
    if reward is not None:
        if isinstance(reward, bool) or not 0 <= reward <= 1:
            raise UnusableInput(f"reward = {reward}: allowed are 0 to 1, where 1 is best")
        body["reward"] = float(reward)
    if model is not None:
        body["model"] = model
    try:
        return orjson.dumps(body)
    except (orjson.JSONEncodeError, TypeError) as error:
        raise UnusableInput(f"the label cannot be written as JSON: {error}") from None


def _plain(label: Any) -> Any:
    """Arrays and numpy's numbers as Python's; NaN, which JSON would make null, is refused."""
    if isinstance(label, np.ndarray | np.generic):
        label = label.tolist()
    elif isinstance(label, list | tuple):
        label = [_plain(each) for each in label]
    values = np.asarray(label)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UnusableInput("the label holds NaN or infinity, which JSON lacks")
    return label
