"""Where numba keeps compiled kernels: the cache folder, which outlives a new version of the package's files.

By itself numba wants to write beside the source, and where it may not, and there is no home either, it refuses to
compile anything that is to be cached. A worker of another user, or an isolated model, is such a process: it gets a
folder of its own, and compiles anew.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numba

from streamserve import places

_config: Any = numba.config


def choose() -> None:
    """Say it to numba, unless `NUMBA_CACHE_DIR` does."""
    if _config.CACHE_DIR:
        return
    folder = places.cache_folder() / "numba"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    _config.CACHE_DIR = str(folder) if usable else tempfile.mkdtemp(prefix="streamserve-numba-")
