"""Models switched off and on again, on the models topic."""

from __future__ import annotations

import msgspec

from streamserve.core.switches import SwitchRecord
from streamserve.core.values import unchanging
from streamserve.kafka.codecs.contract import VERSION, read
from streamserve.kafka.ports import Record
from streamserve.topics.internal_values import ModelsValue, SwitchValue

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(ModelsValue).decode


def switch_key(model: str) -> bytes:
    """Of a model's record; a worker's has a slash in it."""
    return model.encode()


def encode_switch(model: str, *, disabled: bool, why: str = "") -> Record:
    """The record that switches a model (`name@version`, or a name) off or on."""
    value = SwitchValue(v=VERSION, model=model, disabled=disabled, why=why)
    return Record(key=switch_key(model), value=_encode(value))


@unchanging()
class Switched(SwitchRecord):
    """A switch with its words."""

    why: str


def decode_switch(value: bytes | None, *, partition: int, offset: int, append_ms: int) -> SwitchRecord | None:
    """None where the record is none of a switch: what a worker hosts, or nothing. Raises ContractError."""
    found = decode_switched(value, partition=partition, offset=offset, append_ms=append_ms)
    return (
        None
        if found is None
        else SwitchRecord(model=found.model, disabled=found.disabled, append_ms=found.append_ms, offset=found.offset)
    )


def decode_switched(value: bytes | None, *, partition: int, offset: int, append_ms: int) -> Switched | None:
    """The same, with its words."""
    if value is None:
        return None
    found = read(value, _decode, f"the models record {partition}-{offset}")
    if not isinstance(found, SwitchValue):
        return None
    return Switched(model=found.model, disabled=found.disabled, append_ms=append_ms, offset=offset, why=found.why)
