"""Asks a broker which brokers are alive: one Metadata request over a plain socket, no client library."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_METADATA, _VERSION = 3, 4  # the oldest version without flexible fields that names the cluster; kept by Kafka 4
_CORRELATION = 1
_CLIENT = b"streamserve-probe"
# Header (key, version, correlation, client id), then: no topics, no automatic creation of topics.
_REQUEST = struct.pack(f">hhih{len(_CLIENT)}s", _METADATA, _VERSION, _CORRELATION, len(_CLIENT), _CLIENT) + struct.pack(
    ">i?", 0, False
)
_LARGEST_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBrokers:
    """What a broker answered: its cluster's id and the ids of the brokers that are alive."""

    cluster_id: str
    node_ids: frozenset[int]


def live_brokers(host: str, port: int, timeout_s: float) -> LiveBrokers | None:
    """The cluster as the broker at `host:port` (plain text, no login) sees it; none while it does not answer so."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 0 < size <= _LARGEST_ANSWER_BYTES:
                return None
            return _parse(_read(connection, size))
    except (OSError, struct.error, ValueError, IndexError):
        return None


def _read(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(size)
        if not part:
            raise ConnectionResetError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _parse(answer: bytes) -> LiveBrokers:
    correlation, _throttle_ms, count = struct.unpack_from(">iii", answer)
    if correlation != _CORRELATION:
        raise ValueError(correlation)
    at = 12
    nodes: set[int] = set()
    for _ in range(count):
        (node_id,) = struct.unpack_from(">i", answer, at)
        nodes.add(node_id)
        _host, at = _string(answer, at + 4)
        _rack, at = _string(answer, at + 4)  # 4: the port
    cluster_id, _ = _string(answer, at)
    return LiveBrokers(cluster_id=cluster_id, node_ids=frozenset(nodes))


def _string(answer: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", answer, at)
    at += 2
    if length < 0:
        return "", at
    return answer[at : at + length].decode("utf-8"), at + length
