"""Which models are in trouble in the middle third, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.faulty import Fault, write_faults

#: Names the control file to the worker processes; `examples/demo.toml` refers to it.
CONTROL_VARIABLE = "DEMO_FAULTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One model answers nonsense, another answers too late."""

    broken: str = "kernel"
    """One of the best models, by name."""
    slow: str = "forest"
    delay_ms: int = 1_000
    """Far beyond the route's deadline."""

    def faults(self, third: int) -> Mapping[str, Fault]:
        """The faults in force in a third of the run: none but in the middle one."""
        if third != 1:
            return {}
        return {self.broken: {"shuffle": True}, self.slow: {"delay_ms": float(self.delay_ms)}}

    def words(self, third: int) -> str:
        """What happens now, for the person who watches."""
        if third == 0:
            return "all models are well"
        if third == 1:
            return f"{self.broken} now answers nonsense, {self.slow} takes {self.delay_ms} ms longer than it did"
        return f"{self.broken} and {self.slow} are well again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Puts faults in force by the control file that the workers look at."""

    control: Path
    trouble: Trouble

    def turn(self, third: int) -> None:
        write_faults(self.control, self.trouble.faults(third))
