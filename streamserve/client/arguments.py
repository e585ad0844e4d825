"""What the client's methods are called with, checked before anything is sent: a mistake is an `UnusableInput`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from streamserve.client.failures import UnusableInput

#: Longest budget and grace, 24 days: far above what a config allows.
MOST_MS = (1 << 31) - 1
_SHOWN_CHARS = 60


def check_text(value: object, what: str) -> None:
    """A `str` that is Unicode text, or None."""
    if value is None:
        return
    if not isinstance(value, str):
        raise UnusableInput(f"{what} = {shown(value)}: expected a str")
    text_bytes(value, what)


def check_key(value: object) -> None:
    """A record key: `str`, `bytes` or None."""
    if not isinstance(value, bytes):
        if value is not None and not isinstance(value, str):
            raise UnusableInput(f"key = {shown(value)}: expected a str or bytes")
        check_text(value, "key")


def check_budget(value: object, what: str, least: int = 1) -> None:
    """Whole milliseconds, or None."""
    if value is not None and not (is_whole(value) and least <= value <= MOST_MS):
        raise UnusableInput(f"{what} = {shown(value)}: allowed are whole milliseconds from {least} to {MOST_MS}")


def check_flag(value: object, what: str) -> None:
    if not isinstance(value, bool | np.bool_):
        raise UnusableInput(f"{what} = {shown(value)}: allowed are True and False")


def check_count(value: object, what: str) -> None:
    if not (is_whole(value) and value >= 1):
        raise UnusableInput(f"{what} = {shown(value)}: allowed are whole numbers from 1")


def check_reward(value: Any) -> None:
    """A number from 0 to 1, or None."""
    if value is None:
        return
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= 1):  # NaN is not in between either
        raise UnusableInput(f"reward = {shown(value)}: allowed are 0 to 1, where 1 is best")


def check_mapping(value: object, what: str, holds: str) -> None:
    """A mapping with names as keys, or None."""
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(name, str) for name in value)):
        raise UnusableInput(f"{what} = {shown(value)}: expected {holds}")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, numpy's included."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def text_bytes(text: str, what: str) -> bytes:
    """UTF-8. Raises UnusableInput for text that is not Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnusableInput(f"{what} is not Unicode text: {error.reason}") from None


def shown(value: object) -> str:
    """A wrong value, for a message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  (foreign code; the message is about something else)
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
