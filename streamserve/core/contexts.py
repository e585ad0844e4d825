"""The context of a request: which learnt state of its route it is decided by, and which states its feedback teaches.

A context is text. `/` divides it into levels, from the general to the special: `eu/alice` is a user of the segment
`eu`, which belongs to the route's state for all, the empty context. Feedback teaches the state of every level; a choice
is made by the most special one, drawn towards those above it as far as it has seen little (`pooling`).

For a policy that reads features a context is a vector instead, numbers divided by `,`: all requests of the route then
share one state, and the choice depends on both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

#: The state that all requests of a route share.
GLOBAL = ""
#: Of a context, in UTF-8: it stands in keys, headers and every prediction.
MAX_CONTEXT_BYTES = 200
#: Of a vector as text.
MAX_FEATURES_BYTES = 2048
MAX_LEVELS = 4
_DIVIDER = "/"

Source = Literal["header", "key", "body"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContextRule:
    """Where the context of a route's requests comes from, and how many states it may have."""

    source: Source = "header"
    """`header`: `ss-context`; `key`: the record key; `body`: a field of the value."""
    until: str = ""
    """Of a key: what stands before this text; empty: the whole key."""
    read_body: Callable[[bytes | None], str] | None = None
    """With `body`: the text of the field; empty where it is not there."""
    most: int = 1000
    """States of the route beside the one for all; what a further context would learn, only the levels above it do."""
    pooling: float = 20.0
    """How many outcomes the mean of the level above counts for in a state."""
    features: int = 0
    """Above 0: a context is a vector of so many numbers, and names no state."""

    def levels(self, context: str) -> tuple[str, ...]:
        """The contexts whose states this one's feedback teaches: from `GLOBAL` to itself."""
        if not context or self.features:
            return (GLOBAL,)
        parts = context.split(_DIVIDER)
        return (GLOBAL, *(_DIVIDER.join(parts[: n + 1]) for n in range(len(parts))))

    def fault_of(self, context: str) -> str:
        """Why this cannot be a context, in words; empty where it can."""
        if not context:
            return ""
        most = MAX_FEATURES_BYTES if self.features else MAX_CONTEXT_BYTES
        if len(context.encode("utf-8", "replace")) > most:
            return f"a context may have {most} bytes"
        if self.features:
            found = features_of(context, self.features)
            return f"its context is to be {self.features} numbers, divided by commas" if found is None else ""
        parts = context.split(_DIVIDER)
        if len(parts) > MAX_LEVELS:
            return f"a context may have {MAX_LEVELS} levels"
        return "a level of a context is empty" if "" in parts else ""

    def of_key(self, key: bytes | None) -> str:
        """What a record key says; the state for all where it says nothing that can be a context.

        The key is the application's own and may be anything: one that is no text is not a mistake of the request.
        """
        if not key:
            return GLOBAL
        try:
            text = key.decode("utf-8")
        except UnicodeDecodeError:
            return GLOBAL
        context, found, _ = text.partition(self.until) if self.until else (text, "-", "")
        return GLOBAL if not found or self.fault_of(context) else context

    def of_body(self, value: bytes | None) -> str:
        """What a field of the body says; the state for all where it says nothing that can be a context."""
        context = self.read_body(value) if self.read_body is not None else GLOBAL
        return GLOBAL if self.fault_of(context) else context


def features_of(context: str, size: int) -> tuple[float, ...] | None:
    """The vector that a context is; None where it is none of this size. The state for all stands for zeros."""
    if not context:
        return (0.0,) * size
    try:
        numbers = tuple(float(text) for text in context.split(","))
    except ValueError:
        return None
    return numbers if len(numbers) == size and all(map(math.isfinite, numbers)) else None
