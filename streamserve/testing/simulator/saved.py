"""A plan as a file, so that a shrunk failure can be played again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from streamserve.errors import ConfigError
from streamserve.testing.simulator.plan import Plan


def save(plan: Plan, file: Path) -> None:
    file.write_bytes(msgspec.json.encode(plan))


def load(file: Path) -> Plan:
    """Raises ConfigError where the file holds no plan."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: no plan of a simulation: {error}") from None
