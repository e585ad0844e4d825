"""Heads that learn while they serve, as records of the models topic."""

from __future__ import annotations

from zlib import crc32

import msgspec

from streamserve.core.head_order import Publication, ReadTo
from streamserve.kafka.codecs.contract import VERSION, read
from streamserve.kafka.ports import At, Record
from streamserve.topics.internal_values import HeadValue, ModelsValue

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(ModelsValue).decode


def head_key(model: str) -> bytes:
    """No switch has such a key, since no model's name has a space, and no config."""
    return b"@head " + model.encode()


def head_place(models_topic: str, model: str, partitions: int) -> At:
    """Where all publications of a model stand."""
    return At(models_topic, crc32(head_key(model)) % partitions)


def encode_head(publication: Publication) -> Record:
    value = HeadValue(
        v=VERSION,
        model=publication.model,
        base=publication.base,
        rate=publication.rate,
        rows=publication.rows,
        read={str(number): [place.offset, place.ms] for number, place in publication.read.items()},
        plan=publication.plan,
        store=publication.store,
    )
    return Record(key=head_key(publication.model), value=_encode(value))


def decode_head(value: bytes | None, where: str) -> Publication | None:
    """None where the record is another of the models topic. Raises ContractError."""
    found = None if value is None else read(value, _decode, where)
    if not isinstance(found, HeadValue):
        return None
    return Publication(
        model=found.model,
        base=found.base,
        rate=found.rate,
        rows=found.rows,
        read={int(number): ReadTo(offset=place[0], ms=place[1]) for number, place in found.read.items()},
        plan=found.plan,
        store=found.store,
    )
