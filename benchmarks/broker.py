"""The broker of a run: our own with the bench profile, or one that is named."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from streamserve.kafka.brokers.options import BrokerOptions
from streamserve.kafka.brokers.own import OwnBroker

STOP_TIMEOUT_S = 15.0


@contextlib.contextmanager
def bench_broker(state_dir: Path, bootstrap_servers: str | None, say: Callable[[str], None]) -> Iterator[str]:
    """Bootstrap servers of a broker that serves until the end of the block.

    Our own inherits the core of this process; one that is named is used as it is and left running.
    `say` gets a line for people before a long step. Raises `BrokerError` where ours cannot be started.
    """
    if bootstrap_servers:
        yield bootstrap_servers
        return
    broker = OwnBroker(BrokerOptions(state_dir=state_dir, profile="bench"), say)
    try:
        yield broker.start()
    finally:
        broker.stop(STOP_TIMEOUT_S)
