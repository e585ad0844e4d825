"""What other packages add to this one: their entry points."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points


def added(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, in the order of `sys.path`.

    They are looked up once for a path: each look-up opens a file of every package that is installed.
    """
    return _added(group, tuple(sys.path))


@lru_cache(maxsize=8)
def _added(group: str, _path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))
