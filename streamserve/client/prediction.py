"""A terminal record as a program uses it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamserve.client.arguments import shown
from streamserve.client.failures import PredictionFailed, UnusableInput
from streamserve.errors import ContractError, StreamserveError
from streamserve.kafka.codecs.refs import REF_HEADER, format_ref, parse_ref
from streamserve.kafka.codecs.tensors import DATATYPES
from streamserve.kafka.ports import Chunk

#: Outcomes whose prediction has labels.
ANSWERED = frozenset({"ok", "partial", "default"})


class TerminalRecord(NamedTuple):
    """A record of the predictions topic that has a ref, not decoded."""

    partition: int
    request_offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """The one terminal record of a request of n rows."""

    id: str
    ref: str
    """`<partition>-<offset>` of the request: its identity, always unique."""
    route: str
    """Empty where the request's route is unknown."""
    outcome: str
    """`ok`, `partial`, `default`, `error` or `expired`."""
    reason: str
    """Why, from a closed list."""
    detail: str
    """Words for a person; mostly empty."""
    labels: NDArray[Any] | None
    """`[n, ...]`: the answer for each row; texts are `object`. None where there is no answer."""
    probabilities: NDArray[np.float64] | None
    """`[n, classes]`, where the route gives them."""
    classes: tuple[str, ...]
    """What the columns of `probabilities` stand for, as text."""
    members: Mapping[str, NDArray[Any]]
    """Model (`name@version`) -> its labels `[n, ...]`, for those that answered."""
    missing: Mapping[str, str]
    """Chosen model without an answer -> why."""
    chosen: tuple[str, ...]
    confidence: float | None
    """Weighted agreement over all chosen, 0 to 1; None where there is no answer."""
    probability: float
    """Probability with which these models were chosen, exact."""
    epoch: int
    """Offset of the learnt state that chose; -1: the initial one."""
    late: bool
    """Settled after its deadline, with answers from the log."""
    stale: bool
    """Chosen under a state that may not be the one in force."""
    off_epoch: bool
    """Not used for propensity-weighted learning."""
    queue_ms: int
    """From append to the start of the model call."""
    inference_ms: int
    """The longest model call that answered it."""
    total_ms: int
    """From append until the record was made."""
    append_ms: int
    """When the record was appended, epoch milliseconds of the broker."""
    key: bytes | None
    """The record's key: the request's, else the id."""
    raw: bytes
    """The value as it came."""

    @property
    def label(self) -> Any:
        """The label of a request of one row: a Python value, or an array where labels are vectors.

        Raises PredictionFailed where there is no answer, StreamserveError where there are several rows.
        """
        if self.labels is None or not len(self.labels):
            raise PredictionFailed(self._without_answer(), self)
        if len(self.labels) > 1:
            raise StreamserveError(f"prediction {self.ref} has {len(self.labels)} rows: use `labels`, not `label`")
        label = self.labels[0]
        return label.item() if isinstance(label, np.generic) else label

    def raise_for_outcome(self, accept: Container[str] = ANSWERED) -> Self:
        """Itself where the outcome is one of `accept`; raises PredictionFailed in the record's words otherwise."""
        if isinstance(accept, str) or not isinstance(accept, Container):
            raise UnusableInput(f"accept = {shown(accept)}: expected a set of outcomes")
        if self.outcome not in accept:
            raise PredictionFailed(self._without_answer(), self)
        return self

    def _without_answer(self) -> str:
        words = f"request {self.ref} ended as {self.outcome}: {self.reason.replace('_', ' ')}"
        words += f" ({self.detail})" if self.detail else ""
        absent = ", ".join(f"{model} {why}" for model, why in self.missing.items())
        return f"{words}; without {absent}" if absent else words


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class _Parameters(msgspec.Struct):
    """Outcome and reason as text, so that an older client reads what a newer server says."""

    outcome: str
    reason: str
    probability: float
    epoch: int
    chosen: str
    queue_ms: int
    inference_ms: int
    total_ms: int
    detail: str = ""
    confidence: float | None = None
    missing: str = ""
    late: bool = False
    stale: bool = False
    off_epoch: bool = False
    classes: str = ""


class _Value(msgspec.Struct):
    model_name: str
    id: str
    outputs: list[_Tensor]
    parameters: _Parameters


def terminal_records(chunk: Chunk) -> Iterator[TerminalRecord]:
    """The chunk's records that have a ref of their own partition; others are none of ours."""
    partition = chunk.at.partition
    for append_ms, key, value, headers in zip(
        chunk.append_ms.tolist(), chunk.keys, chunk.values, chunk.headers, strict=True
    ):
        for name, text in headers:
            if name == REF_HEADER:
                ref = parse_ref(text)
                if ref is not None and ref[0] == partition:
                    yield TerminalRecord(partition, ref[1], append_ms, key, value)
                break


_decode = msgspec.json.Decoder(_Value).decode
_MEMBER = "member."


def decode_prediction(record: TerminalRecord) -> Prediction:
    """Raises ContractError, naming the ref, for a value that is no terminal record of ours."""
    ref = format_ref(record.partition, record.request_offset)
    try:
        value = _decode(record.value or b"")
        outputs = {tensor.name: _array(tensor) for tensor in value.outputs}
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise ContractError(f"the prediction of request {ref} cannot be read: {error}") from None
    parameters = value.parameters
    chosen = tuple(parameters.chosen.split(",")) if parameters.chosen else ()
    missing = _missing(parameters.missing)
    return Prediction(
        id=value.id,
        ref=ref,
        route=value.model_name,
        outcome=parameters.outcome,
        reason=parameters.reason,
        detail=parameters.detail,
        labels=outputs.get("label"),
        probabilities=outputs.get("probabilities"),
        classes=tuple(parameters.classes.split(",")) if parameters.classes else (),
        members=_members(chosen, missing, outputs),
        missing=missing,
        chosen=chosen,
        confidence=parameters.confidence,
        probability=parameters.probability,
        epoch=parameters.epoch,
        late=parameters.late,
        stale=parameters.stale,
        off_epoch=parameters.off_epoch,
        queue_ms=parameters.queue_ms,
        inference_ms=parameters.inference_ms,
        total_ms=parameters.total_ms,
        append_ms=record.append_ms,
        key=record.key,
        raw=record.value or b"",
    )


def _array(tensor: _Tensor) -> NDArray[Any]:
    dtype = DATATYPES.get(tensor.datatype)
    if dtype is None:
        raise ValueError(f"output {tensor.name} has the unknown datatype {tensor.datatype}")
    if any(size < 0 for size in tensor.shape) or prod(tensor.shape) != len(tensor.data):
        raise ValueError(f"output {tensor.name} has shape {tensor.shape} and {len(tensor.data)} values")
    data: list[Any] = tensor.data
    if dtype.kind == "f":
        data = [np.nan if number is None else number for number in data]
    return np.array(data, dtype).reshape(tensor.shape)


def _members(
    chosen: tuple[str, ...], missing: Mapping[str, str], outputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """A member that answered has an output of its own, unless it said what `label` says."""
    members = {}
    for model in chosen:
        said = outputs.get(f"{_MEMBER}{model}", outputs.get("label"))
        if model not in missing and said is not None:
            members[model] = said
    return members


def _missing(text: str) -> dict[str, str]:
    pairs = (entry.rpartition("=") for entry in text.split(",")) if text else ()
    return {model: why for model, _, why in pairs}
