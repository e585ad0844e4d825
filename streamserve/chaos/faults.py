"""Every fault, by name."""

from __future__ import annotations

from collections.abc import Mapping

from streamserve.chaos import broker_faults, process_faults
from streamserve.chaos.scene import Fault
from streamserve.errors import ConfigError

FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in (*process_faults.FAULTS, *broker_faults.FAULTS)}


def fault_named(name: str) -> Fault:
    """Raises ConfigError, naming all, where there is none of this name."""
    if name not in FAULTS:
        raise ConfigError(f"--fault {name}: there is no such fault; there are: {', '.join(FAULTS)}")
    return FAULTS[name]
