"""Dataclasses that nothing changes once they are made, and that are made in large numbers.

A `frozen` dataclass sets each of its fields by a call of `object.__setattr__`, which made a twelfth of what a simulated
run costs. Here the type checker holds what `frozen` would at run time; equality and hash are those of a frozen one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def unchanging(*, eq: bool = True) -> Callable[[type[_Class]], type[_Class]]:
    """`dataclass(frozen=True, slots=True, kw_only=True)`, checked before it runs. `eq` False: equal only to itself."""

    def made(cls: type[_Class]) -> type[_Class]:
        return dataclass(slots=True, kw_only=True, eq=eq, unsafe_hash=eq and "__hash__" not in vars(cls))(cls)

    return made
