"""The context of a request: which learnt state of its route it is decided by, and which states its feedback teaches.

A context is text. `/` divides it into levels, from the general to the special: `eu/alice` is a user of the segment
`eu`, which belongs to the route's state for all, the empty context. Feedback teaches the state of every level; a choice
is made by the most special one, drawn towards those above it as far as it has seen little (`pooling`).

A context may end in a key, behind `//`: `eu//alice` is the key `alice` of `eu`. Its state is `keyed`: it belongs to the
partition of the requests with that key, and its owners alone read and write it. All other states are shared.

For a policy that reads features a context is a vector instead, numbers divided by `,`: all requests of the route then
share one state, and the choice depends on both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from streamserve.core.values import unchanging

#: The state that all requests of a route share.
GLOBAL = ""
#: Of a context, in UTF-8: it stands in keys, headers and every prediction.
MAX_CONTEXT_BYTES = 200
#: Of a vector as text.
MAX_FEATURES_BYTES = 2048
MAX_LEVELS = 4
_DIVIDER = "/"
_KEY_DIVIDER = "//"
_DAY_MS = 86_400_000

Source = Literal["header", "key", "body"]


def is_keyed(context: str) -> bool:
    """Whether the state of this context belongs to the partition of its requests."""
    return _KEY_DIVIDER in context


@unchanging(eq=False)
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
    keyed: bool = False
    """The last level of a context is the key of its requests, and its state belongs to their partition."""
    most_keyed: int = 1_000_000
    """Keyed states of the route in one partition; as `most`."""
    forget_after_ms: int = 30 * _DAY_MS
    """A keyed state is not used for requests appended later than this after the newest outcome that it holds."""

    def levels(self, context: str) -> tuple[str, ...]:
        """The contexts whose states this one's feedback teaches: from `GLOBAL` to itself."""
        if not context or self.features:
            return (GLOBAL,)
        shared, divider, _ = context.partition(_KEY_DIVIDER)
        parts = shared.split(_DIVIDER) if shared else []
        levels = (GLOBAL, *(_DIVIDER.join(parts[: n + 1]) for n in range(len(parts))))
        return (*levels, context) if divider and self.keyed else levels

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
        text = _text(key)
        if self.keyed:
            return self._of_keyed(text)
        context, found, _ = text.partition(self.until) if self.until else (text, "-", "")
        return GLOBAL if not found or self.fault_of(context) else context

    def _of_keyed(self, text: str) -> str:
        """A key that says both: what it is shared with, and itself."""
        if self.until:
            shared, found, own = text.partition(self.until)
            shared, own = (shared, own) if found else (GLOBAL, text)
        else:
            shared, _, own = text.rpartition(_DIVIDER)
        if self.fault_of(shared):
            shared, own = GLOBAL, text
        return _with_key(shared, own)

    def with_key(self, context: str, key: bytes | None) -> str:
        """A context from elsewhere, with the key of its request where states are keyed."""
        return _with_key(context, _text(key)) if self.keyed else context

    def of_body(self, value: bytes | None) -> str:
        """What a field of the body says; the state for all where it says nothing that can be a context."""
        context = self.read_body(value) if self.read_body is not None else GLOBAL
        return GLOBAL if self.fault_of(context) else context


def _text(key: bytes | None) -> str:
    """Empty where there is none, or it is no text."""
    try:
        return (key or b"").decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _with_key(shared: str, own: str) -> str:
    """`shared` alone where the key is empty, or too long to stand in every prediction."""
    context = f"{shared}{_KEY_DIVIDER}{own}"
    return context if own and len(context.encode()) <= MAX_CONTEXT_BYTES else shared


def features_of(context: str, size: int) -> tuple[float, ...] | None:
    """The vector that a context is; None where it is none of this size. The state for all stands for zeros."""
    if not context:
        return (0.0,) * size
    try:
        numbers = tuple(map(float, context.split(",")))
    except ValueError:
        return None
    return numbers if len(numbers) == size and all(map(math.isfinite, numbers)) else None
