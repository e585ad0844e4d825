"""Nested lists that make no array: where they differ, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

_MOST_CHARS = 40


def why_no_array(values: object) -> str:
    """Why these nested lists are no array: where the first two of unequal form are. For a message."""
    if not _is_list(values):
        return f"{type(values).__name__} is no list of rows"
    try:
        return _unequal(values, "") or "its rows differ in form"
    except RecursionError:
        return "it is nested too deep"


def _unequal(values: Sequence[object], place: str) -> str:
    """What differs from the first entry, else within an entry; empty where all have one form."""
    if not any(_is_list(value) for value in values):
        return ""
    first = values[0]
    for index, value in enumerate(values):
        if _is_list(value) != _is_list(first) or (_is_list(value) and _is_list(first) and len(value) != len(first)):
            return f"row {place}0 {_form(first)}, row {place}{index} {_form(value)}"
    return next((words for index, value in enumerate(values) if (words := _inner(value, f"{place}{index}."))), "")


def _inner(value: object, place: str) -> str:
    return _unequal(value, place) if _is_list(value) else ""


def _form(value: object) -> str:
    if not _is_list(value):
        text = repr(value)
        return f"is {text if len(text) <= _MOST_CHARS else type(value).__name__}"
    return f"has {len(value)} value{'' if len(value) == 1 else 's'}"


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)
