"""streamserve: machine-learning predictions over Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamserve.client import Client as Client
    from streamserve.client import Prediction as Prediction
    from streamserve.client import SyncClient as SyncClient

__all__ = ["Client", "Prediction", "SyncClient"]


def __getattr__(name: str) -> Any:
    """The client's names, imported when they are first asked for: `import streamserve` alone costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  (as late as the rest)

    return getattr(import_module("streamserve.client"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
