"""Three brokers, of which one leads each partition and coordinates each group or transaction; one of them dies.

As measured of Kafka: until a dead broker is fenced what it led has no leader, and nothing else is replicated either,
for it still counts as in sync. Other leaders append what they are sent, and stamp it, but nobody sees it or hears of it
before the fence. Then another leads, with all that was acknowledged: elections are never unclean. An idempotent
producer sends again what it has heard nothing of, and it stands once.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

from streamserve.kafka.ports import At

BROKERS = 3
#: Clients look for the new leader now and again.
REFRESH_MS = (1.0, 120.0)

Led = At | str
"""A partition, or the name of what has a coordinator."""


class Leaders:
    """Who leads what, and since when nobody does."""

    def __init__(self) -> None:
        self._broker_of = list(range(BROKERS))
        """By share of all that is led."""
        self._none_until = [0.0] * BROKERS
        """The same: when a leader is elected."""
        self.fenced_at = 0.0
        """When replication goes on."""

    def die(self, broker: int, now: float, fenced_at: float) -> bool:
        """False where another is dead already: two of three are no cluster."""
        if now < self.fenced_at:
            return False
        self.fenced_at = fenced_at
        for share, leader in enumerate(self._broker_of):
            if leader == broker:
                self._broker_of[share] = (broker + 1) % BROKERS
                self._none_until[share] = fenced_at
        return True

    def of(self, led: Led) -> int:
        return self._broker_of[_share(led)]

    def none_until(self, led: Led) -> float:
        """When a leader will be found; it may be past."""
        return self._none_until[_share(led)]

    def lacks(self, led: Led, now: float) -> bool:
        """Whether nobody leads it now."""
        return now < self.fenced_at and now < self._none_until[_share(led)]


@cache
def _share(led: Led) -> int:
    name = led if isinstance(led, str) else f"{led.topic}-{led.partition}"
    return crc32(name.encode()) % BROKERS
