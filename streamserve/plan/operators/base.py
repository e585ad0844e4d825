"""What an operator is: a name, what it does in words, and a function from a node and its inputs to a value.

Values are `Texts`, lists of n-grams, CSR matrices and arrays of n rows. The function says what the operator *means*;
rules are right when the meaning of the whole stays, and kernels when they give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamserve.core.messages import Flags
from streamserve.plan.graph import Node

Evaluate = Callable[[Node, Sequence[Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One kind of node."""

    name: str
    evaluate: Evaluate
    shape: str
    """`text`, `grams`, `sparse`, `dense`, `scores`, `answers`, or `same` as its first input."""
    each_row_alone: bool = True
    """Whether a row's result depends on that row only, to the bit."""


class RowsRefused(Exception):
    """Rows that an operator cannot take, as the original could not."""

    def __init__(self, rows: Flags, words: str) -> None:
        """`rows`: `[n]`, true where refused."""
        super().__init__(words)
        self.rows = rows
        self.words = words


OPERATORS: dict[str, Operator] = {}


def operator(name: str, *, shape: str, each_row_alone: bool = True) -> Callable[[Evaluate], Evaluate]:
    """Declare the operator that the function means."""

    def declare(evaluate: Evaluate) -> Evaluate:
        if name in OPERATORS:
            raise ValueError(f"two operators are called {name!r}")
        OPERATORS[name] = Operator(name=name, evaluate=evaluate, shape=shape, each_row_alone=each_row_alone)
        return evaluate

    return declare


def refuse(rows: Flags, words: str) -> None:
    """Raise `RowsRefused` where any row is marked."""
    if bool(np.any(rows)):
        raise RowsRefused(rows, words)
