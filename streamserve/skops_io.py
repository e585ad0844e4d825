"""skops' reader and writer, imported without what no model asked for.

skops walks all of scikit-learn for its list of safe types, and that walk imports torch wherever torch is installed:
1.5 s of processor time and 490 MB in each process that reads a `.skops` file (over `python -c "import sklearn"`; skops
0.16, torch 2.15). Where torch is missing the walk passes over it; so it does here.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from types import ModuleType


def skops_io() -> ModuleType:
    """The module `skops.io`. Raises ModuleNotFoundError where skops is not installed."""
    if "skops.io" in sys.modules or "torch" in sys.modules:
        return importlib.import_module("skops.io")
    hidden = _Hidden("torch")
    sys.meta_path.insert(0, hidden)
    try:
        return importlib.import_module("skops.io")
    finally:
        sys.meta_path.remove(hidden)


class _Hidden(importlib.abc.MetaPathFinder):
    """Hides one package from the thread that made this; the others find it as ever."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == self._package and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not looked for here", name=fullname)
        return None
