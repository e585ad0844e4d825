"""A record that no client library makes: a header name that is not UTF-8, in a Produce request made by hand.

Kafka's wire format: https://kafka.apache.org/protocol (Produce, version 3) and record batches of magic 2.
"""

from __future__ import annotations

import socket
import struct

_PRODUCE, _VERSION = 0, 3


def produce_by_hand(servers: str, topic: str, partition: int, value: bytes, header: tuple[bytes, bytes]) -> int:
    """Append one record to a partition that the broker at `servers` leads; returns its offset."""
    batch = _batch(value, header)
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 10_000, 1, len(name)) + name  # no transaction, acks of all, 10 s, one topic
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    head = struct.pack(">hhih", _PRODUCE, _VERSION, 1, 4) + b"hand"
    host, port = servers.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20) as line:
        line.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        answer = _exactly(line, *struct.unpack(">i", _exactly(line, 4)))
    at = 4 + 4 + 2 + len(name) + 4  # correlation, topics, the topic's name, partitions
    index, error, offset = struct.unpack_from(">ihq", answer, at)
    assert (index, error) == (partition, 0), f"the broker refused it with error {error}"
    return int(offset)


def _exactly(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = line.recv(count - len(found))
        assert more, "the broker closed the connection"
        found += more
    return found


def _batch(value: bytes, header: tuple[bytes, bytes]) -> bytes:
    name, content = header
    record = b"\x00" + _varint(0) + _varint(0) + _varint(-1) + _varint(len(value)) + value
    record += _varint(1) + _varint(len(name)) + name + _varint(len(content)) + content
    after = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1) + _varint(len(record)) + record
    checked = struct.pack(">iBI", -1, 2, _crc32c(after)) + after
    return struct.pack(">qi", 0, len(checked)) + checked


def _varint(number: int) -> bytes:
    """Zig-zag, seven bits a byte."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _crc32c(data: bytes) -> int:
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF
