"""Time of the simulated world, and how each machine's clocks tell it."""

from __future__ import annotations

from dataclasses import dataclass

#: Where the world's time starts, in epoch milliseconds of the broker.
WORLD_EPOCH_MS = 1_700_000_000_000


@dataclass(slots=True)
class WorldClock:
    """True time: milliseconds since the start of the run. Only the scheduler moves it."""

    now: float = 0.0

    def broker_ms(self) -> int:
        """What the broker stamps on an append: its clock is the world's."""
        return WORLD_EPOCH_MS + int(self.now)


class MachineClock:
    """A machine's clocks. `rate`: its seconds per true second. `skew_ms`: how far its wall clock is off at first."""

    def __init__(
        self, world: WorldClock, *, rate: float = 1.0, skew_ms: float = 0.0, booted_s: float = 1_000.0
    ) -> None:
        self._world = world
        self._rate = rate
        self._booted_s = booted_s
        self._epoch_s = (WORLD_EPOCH_MS + skew_ms) / 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self._booted_s + self._world.now * self._rate / 1000.0

    def epoch(self) -> float:
        """Seconds since 1970, as this machine believes."""
        return self._epoch_s + self._world.now * self._rate / 1000.0

    def world_ms(self, monotonic_s: float) -> float:
        """True time at which `monotonic` will say this."""
        return (monotonic_s - self._booted_s) * 1000.0 / self._rate
