"""No variable of the caller's environment is a setting here."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("STREAMSERVE_")]:
        monkeypatch.delenv(name)
