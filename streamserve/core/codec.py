"""How a stage reads values without knowing their format: the shell hands it codecs.

Decoding is lazy: a worker decodes a request when it is about to be put into a batch, so what is shed first is never
decoded. It is value by value: joining the values of a fetch into one parse is faster and unsafe, since crafted values
shift the rows of their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streamserve.core.messages import I64, AnyArray, Headers
from streamserve.core.reasons import Reason
from streamserve.core.values import unchanging


@unchanging(eq=False)
class Rows:
    """The rows of n decoded values that share dtype and trailing shape."""

    array: AnyArray
    """`[rows, ...]`"""


@unchanging(eq=False)
class Decoded:
    """What n values hold."""

    groups: tuple[Rows, ...]
    """One per (dtype, trailing shape) that occurs; usually one."""
    group: I64
    """`[n]`: which group a value's rows are in; -1 where it could not be read."""
    first_row: I64
    """`[n]`: its first row in the group's array; its rows are consecutive."""
    n_rows: I64
    """`[n]`: 0 where it could not be read."""
    ids: list[str | None]
    errors: Mapping[int, tuple[Reason, str]]
    """Index -> reason and words, for each value that could not be read."""


class InputCodec(Protocol):
    """Reads request values of one route. Never raises for what is in them."""

    @property
    def name(self) -> str: ...

    def decode(self, values: Sequence[bytes | None], headers: Sequence[Headers]) -> Decoded: ...
