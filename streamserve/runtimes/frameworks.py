"""Frameworks are optional and imported late; a missing one is named with the extra that installs it."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from streamserve.runtimes.base import ModelSpec

#: Top-level package -> extra of streamserve that installs it.
EXTRAS = {
    "joblib": "sklearn",
    "numba": "plan",
    "onnxruntime": "onnx",
    "skops": "sklearn",
    "sklearn": "sklearn",
    "torch": "torch",
}


def require(module: str, spec: ModelSpec) -> Any:
    """Import a framework's module. Raises `ModelError` with the command that installs it where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        package = (missing.name or module).partition(".")[0]
        raise spec.error(f"{package} is not installed{how_to_install(package)}") from missing
    except ImportError as broken:
        raise spec.error(f"{module} is installed but cannot be imported: {broken}") from broken


def how_to_install(package: str) -> str:
    """`; install it with ...`, or nothing for a package that no extra of streamserve brings."""
    extra = EXTRAS.get(package)
    return f'; install it with: pip install "streamserve[{extra}]"' if extra else ""


def is_instance_of(obj: object, module: str, class_name: str) -> bool:
    """`isinstance` without importing: an object of a class whose module nobody has imported cannot exist."""
    loaded = sys.modules.get(module)
    cls = getattr(loaded, class_name, None)
    return isinstance(cls, type) and isinstance(obj, cls)
