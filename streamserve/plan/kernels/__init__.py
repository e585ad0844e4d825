"""Kernels: numba functions that let go of the interpreter's lock, with explicit signatures, cached on disk.

There are as many as there are `@njit` in this folder, however many plans are loaded. `warm` makes them all ready.
"""

from __future__ import annotations

# First: where numba keeps what it has compiled, and the count of what it compiles.
from streamserve.plan.kernels import cache_folder as _cache_folder

_cache_folder.choose()

from streamserve.plan.kernels.compilations import compilations  # noqa: E402

__all__ = ["compilations", "warm"]


def warm() -> None:
    """Compile every kernel, or read it from numba's cache, and make the tables of characters."""
    from streamserve.plan.kernels import (  # noqa: PLC0415  (takes seconds the first time)  # noqa: PLC0415  (as above)
        characters,
        dense,
        dictionary,
        forest,
        heads,
        histograms,
        neighbours,
        products,
        text,
    )

    characters.classes()
    characters.lowering()
    _ = dense, dictionary, forest, heads, histograms, neighbours, products, text
