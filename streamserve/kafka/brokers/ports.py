"""Free ports on the loopback address."""

from __future__ import annotations

import random
import socket

from streamserve.errors import BrokerError

HOST = "127.0.0.1"
# Below the range from which Linux (32768) and macOS (49152) take ports for outgoing connections: between the look here
# and Kafka's bind no client can be given one of these by chance, nor can a client that tries a closed port meet itself.
_FIRST, _LAST = 20_000, 32_000
_TRIES = 500


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different ports that are free now; another program may still take one first.

    Raises `BrokerError` when hardly any is free.
    """
    chance = random.SystemRandom()
    found: set[int] = set()
    for _ in range(_TRIES):
        if len(found) == count:
            break
        port = chance.randrange(_FIRST, _LAST)
        if is_free(port):
            found.add(port)
    if len(found) < count:
        message = f"no {count} free ports between {_FIRST} and {_LAST} on {HOST}; name one with --port"
        raise BrokerError(message)
    return sorted(found)
