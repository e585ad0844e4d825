"""What a worker says of itself on the models topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from streamserve.kafka.codecs.contract import VERSION, read
from streamserve.kafka.ports import Record
from streamserve.topics.internal_values import HostsValue, SwitchValue

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(HostsValue | SwitchValue).decode
Arrays = Mapping[str, int]
#: Smaller arrays are not worth a line each.
LEAST_ARRAY_BYTES = 4_096


def encode_hosts(pool: str, instance: str, models: Sequence[str], plans: Mapping[str, Arrays] | None = None) -> Record:
    """The record of one process: key `<pool>/<instance>`, value which models (`name@version`) it has warmed.

    `plans`: of white-box plans among them, bytes of each array by content hash; small ones are left out.
    """
    large = {
        model: {array: size for array, size in arrays.items() if size >= LEAST_ARRAY_BYTES}
        for model, arrays in (plans or {}).items()
    }
    value = HostsValue(v=VERSION, pool=pool, instance=instance, models=list(models), plans=large)
    return Record(key=f"{pool}/{instance}".encode(), value=_encode(value))


def decode_plans(value: bytes | None, where: str) -> dict[str, dict[str, int]]:
    """Of a models record, the plans that a worker says it holds; none of another record. Raises ContractError."""
    found = None if value is None else read(value, _decode, where)
    return found.plans if isinstance(found, HostsValue) else {}
