"""Where numba keeps compiled kernels: a folder of the cache folder named by what the kernels are.

Numba looks at one file's time to know whether what it has compiled is still right, and not at the files that this one
imports; so the name of the folder holds a hash of all of them. And by itself it wants to write beside the source, and
refuses to compile what is to be cached where it may not and there is no home either. A worker of another user, or an
isolated model, is such a process: it gets a folder of its own, and compiles anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numba

from streamserve import places

_config: Any = numba.config


def choose() -> None:
    """Say it to numba; inside `NUMBA_CACHE_DIR` where that is set."""
    base = os.environ.get("NUMBA_CACHE_DIR")
    folder = (Path(base) if base else places.cache_folder() / "numba") / f"streamserve-{kernels_digest()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    _config.CACHE_DIR = str(folder) if usable else tempfile.mkdtemp(prefix="streamserve-numba-")


def kernels_digest() -> str:
    """A hash of the sources of all kernels."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
