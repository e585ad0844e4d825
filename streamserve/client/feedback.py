"""What really happened, as a record of the feedback topic."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import orjson

from streamserve.client.arguments import check_key, check_reward, check_text, shown
from streamserve.client.failures import UnusableInput
from streamserve.client.inputs import key_bytes
from streamserve.client.prediction import Prediction
from streamserve.errors import BrokerError
from streamserve.kafka.codecs.refs import REF_HEADER, format_ref, parse_ref
from streamserve.kafka.ports import Ack, Record


class _Unset(Enum):
    UNSET = "unset"


#: No label was given; None is a label.
UNSET: Final = _Unset.UNSET


@dataclass(slots=True, kw_only=True, eq=False)
class FeedbackSent:
    """Owner of a feedback record in an outbox."""

    placed: asyncio.Future[str]
    """Where it stands: `<partition>-<offset>` in the feedback topic."""

    def failed(self, error: Exception) -> None:
        """It did not get there."""
        if not self.placed.done():  # else whoever waited was cancelled
            self.placed.set_exception(error)


def feedback_sent(partition: int, batch: list[FeedbackSent], ack: Ack) -> None:
    """What became of a batch of feedback."""
    for offset, owner in enumerate(batch, ack.offset):
        if ack.error:
            owner.failed(BrokerError(f"the broker did not take the feedback: {ack.error}"))
        elif not owner.placed.done():  # else whoever waited was cancelled
            owner.placed.set_result(format_ref(partition, offset))


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
    check_key(key)
    check_reward(reward)
    check_text(model, "model")
    if isinstance(prediction, Prediction):
        ref, id, request_key = prediction.ref, prediction.id, prediction.key
    else:
        ref, id, request_key = prediction, prediction, None
    place = parse_ref(ref) if isinstance(ref, str) else None
    if place is None:
        raise UnusableInput(
            f"{shown(ref)} is no ref: expected a prediction, or <partition>-<offset> of a request, such as 2-17"
        )
    if place[0] >= partitions:
        raise UnusableInput(f"ref {ref} names partition {place[0]}; the app has partitions 0 to {partitions - 1}")
    value = _value(id, label, reward, model)
    record_key = key_bytes(key if key is not None else request_key)
    if record_key is None:
        record_key = id.encode("utf-8", "replace")
    return place[0], Record(value=value, key=record_key, headers=((REF_HEADER, ref.encode()),))


def _value(id: str, label: Any, reward: float | None, model: str | None) -> bytes:
    if label is UNSET and reward is None:
        raise UnusableInput("feedback needs a label or a reward")
    body: dict[str, Any] = {"id": id}
    if label is not UNSET:
        try:
            body["label"] = _plain(label)
        except RecursionError:
            raise UnusableInput("the label cannot be written as JSON: it is nested too deep") from None
    if reward is not None:
        body["reward"] = float(reward)
    if model is not None:
        body["model"] = model
    try:
        return orjson.dumps(body)
    except (orjson.JSONEncodeError, TypeError) as error:
        raise UnusableInput(f"the label cannot be written as JSON: {error}") from None


def _plain(label: Any) -> Any:
    """Arrays and numpy's numbers as Python's; NaN, which JSON would make null, is refused at any depth."""
    if isinstance(label, np.ndarray | np.generic):
        label = label.tolist()
    if isinstance(label, list | tuple):
        return [_plain(each) for each in label]
    if isinstance(label, dict):
        return {name: _plain(each) for name, each in label.items()}
    if isinstance(label, float) and not math.isfinite(label):
        raise UnusableInput("the label holds NaN or infinity, which JSON lacks")
    return label
