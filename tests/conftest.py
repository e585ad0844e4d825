from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

# Started in the background of a shell, this process ignores Ctrl-C, and so would those that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines are shared: an example that takes long is no failure, the test's own time-out is. On CI the examples are the
# same each time; everywhere else new ones are tried.
settings.register_profile("streamserve", deadline=None, derandomize="CI" in os.environ)
# `make test-fast`: every property, with fewer examples.
settings.register_profile("fast", parent=settings.get_profile("streamserve"), max_examples=10)
settings.load_profile("streamserve")


def pytest_collectstart() -> None:
    """What is imported and collected stays: the garbage collector need not walk it meanwhile."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Nor again in every test. What was garbage already stays as well: to find it costs more than it holds."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In several processes (`--dist worksteal`), what may take longest begins first, in each: none is left with it."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items.sort(key=lambda item: -_most_seconds(item))
        items[:] = [item for first in range(processes) for item in items[first::processes]]


def _most_seconds(item: pytest.Item) -> float:
    bound = item.get_closest_marker("timeout")
    return float(bound.args[0]) if bound is not None and bound.args else 0.0
