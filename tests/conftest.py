from __future__ import annotations

import gc
import os

from hypothesis import settings

# Machines are shared: an example that takes long is no failure, the test's own time-out is. On CI the examples are the
# same each time; everywhere else new ones are tried.
settings.register_profile("streamserve", deadline=None, derandomize="CI" in os.environ)
# `make test-fast`: every property, with fewer examples.
settings.register_profile("fast", parent=settings.get_profile("streamserve"), max_examples=15)
settings.load_profile("streamserve")


def pytest_collection_finish() -> None:
    """What is imported stays: the collector need not walk it again in every test."""
    gc.collect()
    gc.freeze()
