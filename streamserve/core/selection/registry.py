"""The built-in policies by the name that a config uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.static import Static

POLICIES: Mapping[str, type] = MappingProxyType({"static": Static, "hedge": Hedge, "exp3": Exp3})
