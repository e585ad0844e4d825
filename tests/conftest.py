from __future__ import annotations

import os

from hypothesis import settings

# Machines are shared: an example that takes long is no failure, the test's own time-out is. On CI the examples are the
# same each time; everywhere else new ones are tried.
settings.register_profile("streamserve", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("streamserve")
