from __future__ import annotations

from hypothesis import settings

# Machines are shared: an example that takes long is no failure, the test's own time-out is.
settings.register_profile("streamserve", deadline=None)
settings.load_profile("streamserve")
