"""Coroutine tests run on an event loop of their own."""

from __future__ import annotations

from tests.kafka.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
