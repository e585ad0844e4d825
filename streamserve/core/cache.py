"""Result cache of a worker: what a model version said of exactly these bytes.

Keys are the bytes themselves, so equality is compared and not only hashed. Requests for an input that is being
evaluated wait for that call (coalescing). Nothing is ever shared between model versions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streamserve.core.messages import F64, AnyArray
from streamserve.core.values import unchanging

_Value = TypeVar("_Value", bound=np.generic)
#: Bookkeeping of one entry beside its arrays: key tuple, two array headers, the dictionary's slot.
_ENTRY_BYTES = 400


@unchanging(eq=False)
class CachedRows:
    """One request's rows as a model answered them."""

    labels: AnyArray
    probabilities: F64 | None
    classes: AnyArray | None


def input_key(model: str, rows: AnyArray) -> Hashable:
    """Model version, form and exact bytes of one request's rows."""
    if rows.dtype == object:
        values = rows.ravel().tolist()
        if not all(isinstance(value, str) for value in values):  # 1, 1.0 and True are equal, and not the same input
            return (model, rows.shape, "mixed", tuple(f"{type(value).__name__}:{value!r}" for value in values))
        return (model, rows.shape, tuple(values))
    return (model, rows.dtype.str, rows.shape, rows.tobytes())


class ResultCache:
    """Least recently used out first, within a budget of bytes (keys, arrays and bookkeeping)."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[Hashable, tuple[CachedRows, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> CachedRows | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, rows: CachedRows) -> None:
        size = _size_of(key, rows)
        if size > self.budget_bytes:
            return
        old = self._entries.pop(key, None)
        if old is not None:
            self.used_bytes -= old[1]
        self._entries[key] = (rows, size)
        self.used_bytes += size
        while self.used_bytes > self.budget_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.used_bytes -= freed


def _size_of(key: Hashable, rows: CachedRows) -> int:
    size = _ENTRY_BYTES + rows.labels.nbytes
    if rows.labels.dtype == object:
        size += sum(_text_bytes(str(label)) for label in rows.labels.ravel())
    if rows.classes is not None:
        size += rows.classes.nbytes
    if rows.probabilities is not None:
        size += rows.probabilities.nbytes
    parts = key if isinstance(key, tuple) else (key,)
    for part in parts:
        if isinstance(part, bytes):
            size += len(part)
        elif isinstance(part, tuple):
            size += sum(_text_bytes(str(word)) for word in part)
    return size


def _text_bytes(text: str) -> int:
    """A string as it stands in memory, with its slot: at most four bytes a character."""
    return 60 + len(text) * (1 if text.isascii() else 4)


def frozen_copy(rows: NDArray[_Value]) -> NDArray[_Value]:
    """A copy that no later batch can change."""
    copy = np.array(rows)
    copy.flags.writeable = False
    return copy
