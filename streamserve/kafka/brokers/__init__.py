"""A real Apache Kafka of our own, for `streamserve up`, the `broker` commands and the tests.

`OwnBroker` is the whole use. `prepare()` (on the command line `streamserve broker prepare`) makes the machine ready, so
that later starts take a second and need no registry.
"""

from __future__ import annotations

from streamserve.kafka.brokers.options import BrokerOptions
from streamserve.kafka.brokers.own import FolderInUse, OwnBroker
from streamserve.kafka.brokers.preparation import Prepared, prepare
from streamserve.kafka.brokers.state import (
    BrokerStatus,
    NodeStatus,
    await_ready,
    read_status,
    stop_command,
    stop_recorded,
)
from streamserve.places import cache_folder, state_folder

__all__ = [
    "BrokerOptions",
    "BrokerStatus",
    "FolderInUse",
    "NodeStatus",
    "OwnBroker",
    "Prepared",
    "await_ready",
    "cache_folder",
    "prepare",
    "read_status",
    "state_folder",
    "stop_command",
    "stop_recorded",
]
