"""What a worker says of itself on the models topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streamserve.kafka.codecs.contract import VERSION, read
from streamserve.kafka.ports import Record
from streamserve.topics.internal_values import HostsValue, ModelsValue

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(ModelsValue).decode
Arrays = Mapping[str, int]
#: A process says again what it hosts so often, ...
SAY_EVERY_MS = 20_000
#: ... and is taken for gone when nothing was heard of it for so long: three times in a row it could not.
LEASE_MS = 60_000
#: Smaller arrays are not worth a line each.
LEAST_ARRAY_BYTES = 4_096


def encode_hosts(
    pool: str,
    instance: str,
    models: Sequence[str],
    plans: Mapping[str, Arrays] | None = None,
    *,
    failed: Mapping[str, str] | None = None,
    seen: int = 0,
    config: Mapping[str, Any] | None = None,
    lease_ms: int = 0,
) -> Record:
    """The record of one process: key `<pool>/<instance>`, value which models (`name@version`) it has warmed.

    `plans`: of white-box plans among them, bytes of each array by content hash; small ones are left out. `failed`:
    models that it could not load, with words. `seen`: number of the newest config of the log that it has acted on.
    `config`: the sections that it was started with. `lease_ms`: it is gone when it has said nothing for so long; 0: it
    says nothing of that.
    """
    large = {
        model: {array: size for array, size in arrays.items() if size >= LEAST_ARRAY_BYTES}
        for model, arrays in (plans or {}).items()
    }
    value = HostsValue(
        v=VERSION,
        pool=pool,
        instance=instance,
        models=list(models),
        plans=large,
        failed=dict(failed or {}),
        seen=seen,
        config=None if config is None else dict(config),
        lease_ms=lease_ms,
    )
    return Record(key=f"{pool}/{instance}".encode(), value=_encode(value))


def decode_hosts(value: bytes | None, where: str) -> HostsValue | None:
    """None where the record is another of the models topic. Raises ContractError."""
    found = None if value is None else read(value, _decode, where)
    return found if isinstance(found, HostsValue) else None


def is_gone(hosts: HostsValue, said_ms: int, now_ms: int) -> bool:
    """Whether a process that said this then is gone. Both times are the broker's. One of an older release, which does
    not say how often it is to be heard of, is there until it says that it has left."""
    return 0 < hosts.lease_ms < now_ms - said_ms
