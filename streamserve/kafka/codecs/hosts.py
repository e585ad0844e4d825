"""What a worker says of itself on the models topic."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamserve.kafka.codecs.contract import VERSION
from streamserve.kafka.ports import Record
from streamserve.topics.internal_values import HostsValue

_encode = msgspec.json.Encoder(order="deterministic").encode


def encode_hosts(pool: str, instance: str, models: Sequence[str]) -> Record:
    """The record of one process: key `<pool>/<instance>`, value which models (`name@version`) it has warmed."""
    value = HostsValue(v=VERSION, pool=pool, instance=instance, models=list(models))
    return Record(key=f"{pool}/{instance}".encode(), value=_encode(value))
