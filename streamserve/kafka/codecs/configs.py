"""Models, pools and routes of an app as records of the models topic: proposed, and in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import msgspec

from streamserve.core.values import unchanging
from streamserve.kafka.codecs.contract import VERSION, read
from streamserve.kafka.ports import At, Record
from streamserve.topics.internal_values import ConfigValue, ModelsValue

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(ModelsValue).decode
#: No model's name is empty, so no switch has such a key.
_PREFIX = b"@"
PROPOSED_KEY = b"@proposed"


@unchanging()
class ConfigRecord:
    """The sections of one config, as the log has them."""

    number: int
    in_force: bool
    sections: Mapping[str, Mapping[str, Any]]
    """`models`, `pools`, `routes`."""
    offset: int
    append_ms: int


def config_place(models_topic: str, partitions: int) -> At:
    """Where all configs stand: in one order."""
    return At(models_topic, crc32(_PREFIX) % partitions)


def config_key(number: int, *, in_force: bool) -> bytes:
    return _PREFIX + str(number).encode() if in_force else PROPOSED_KEY


def encode_config(sections: Mapping[str, Mapping[str, Any]], number: int, *, in_force: bool) -> Record:
    value = ConfigValue(
        v=VERSION,
        number=number,
        in_force=in_force,
        models=dict(sections["models"]),
        pools=dict(sections["pools"]),
        routes=dict(sections["routes"]),
    )
    return Record(key=config_key(number, in_force=in_force), value=_encode(value))


def decode_config(value: bytes | None, *, partition: int, offset: int, append_ms: int) -> ConfigRecord | None:
    """None where the record is another of the models topic. Raises ContractError."""
    found = None if value is None else read(value, _decode, f"the models record {partition}-{offset}")
    if not isinstance(found, ConfigValue):
        return None
    return ConfigRecord(
        number=found.number,
        in_force=found.in_force,
        sections={"models": found.models, "pools": found.pools, "routes": found.routes},
        offset=offset,
        append_ms=append_ms,
    )
