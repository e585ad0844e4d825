"""What holds a million learnt states of keyed contexts in little memory: packed records, and a calendar of what is due.

A row is a few whole numbers of the record and the numbers of its data; what is left of the data, its form, is kept once
for all records that share it. Rows are bytes, which the garbage collector does not walk.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from streamserve.core.records import StateRecord

#: Form, epoch, append_ms, previous, outcomes included, learnt_ms.
_HEAD = struct.Struct("<H5q")
#: Rows of a form of their own: the data itself. For a policy whose states are all of other forms.
_AS_IT_IS = (1 << 16) - 1
#: Whole numbers up to here are exact as floats.
_MOST_EXACT = 1 << 53

_Form = tuple[Any, ...] | str


class Packing:
    """Packs the states of one route in one partition: `unpack(context, pack(record)) == record`, but for `covers`."""

    def __init__(self, route: str, policy: str, partition: int) -> None:
        self._route = route
        self._policy = policy
        self._partition = partition
        self._numbers: dict[Hashable, int] = {}
        self._forms: list[tuple[_Form, struct.Struct]] = []

    def pack(self, record: StateRecord) -> bytes:
        """`record` is of this route, policy and partition, and includes outcomes of this partition only."""
        leaves: list[float] = []
        form = _take_apart(record.data, leaves)
        number = self._numbers.get(form)
        if number is None and len(self._forms) < _AS_IT_IS:
            number = self._numbers[form] = len(self._forms)
            self._forms.append((form, struct.Struct(f"<{len(leaves)}d")))
        head = _HEAD.pack(
            _AS_IT_IS if number is None else number,
            record.epoch,
            record.append_ms,
            record.previous,
            record.included,
            record.learnt_ms,
        )
        return head + (marshal.dumps(dict(record.data)) if number is None else self._forms[number][1].pack(*leaves))

    def unpack(self, context: str, row: bytes) -> StateRecord:
        number, epoch, append_ms, previous, included, learnt_ms = _HEAD.unpack_from(row)
        if number == _AS_IT_IS:
            data = marshal.loads(row[_HEAD.size :])
        else:
            form, numbers = self._forms[number]
            data = _put_together(form, iter(numbers.unpack_from(row, _HEAD.size)))
        return StateRecord(
            route=self._route,
            context=context,
            policy=self._policy,
            data=data,
            includes={self._partition: included},
            partition=self._partition,
            epoch=epoch,
            append_ms=append_ms,
            previous=previous,
            learnt_ms=learnt_ms,
        )


def age_of(row: bytes) -> tuple[int, int]:
    """(included, epoch): the highest is the newest, however late it came."""
    _, epoch, _, _, included, _ = _HEAD.unpack_from(row)
    return included, epoch


def times_of(row: bytes) -> tuple[int, int]:
    """(append_ms, learnt_ms)."""
    _, _, append_ms, _, _, learnt_ms = _HEAD.unpack_from(row)
    return append_ms, learnt_ms


def _take_apart(value: Any, leaves: list[float]) -> _Form:
    """The form of a JSON value; its numbers go to `leaves`."""
    if isinstance(value, float):
        leaves.append(value)
        return "f"
    if isinstance(value, int) and not isinstance(value, bool) and -_MOST_EXACT <= value <= _MOST_EXACT:
        leaves.append(value)
        return "i"
    if isinstance(value, Mapping):
        return ("m", *((key, _take_apart(item, leaves)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return ("l", *(_take_apart(item, leaves) for item in value))
    return ("c", type(value).__name__, value)


def _put_together(form: _Form, leaves: Iterator[float]) -> Any:
    if isinstance(form, str):
        return next(leaves) if form == "f" else int(next(leaves))
    kind, *parts = form
    if kind == "m":
        return {key: _put_together(part, leaves) for key, part in parts}
    if kind == "l":
        return [_put_together(part, leaves) for part in parts]
    return parts[-1]


class Calendar:
    """Names by when each is to be looked at, to a step: 8 bytes a name, which stands in it once.

    Who is taken from it is noted again for as long as the name is known.
    """

    def __init__(self, step_ms: int) -> None:
        self._step_ms = max(1, step_ms)
        self._pages: dict[int, list[str]] = {}
        self._open: list[str] = []

    def note(self, name: str, due_ms: int) -> None:
        self._pages.setdefault(due_ms // self._step_ms, []).append(name)

    def take(self, now_ms: int, most: int) -> list[str]:
        """At most so many names whose time has come; up to one step late."""
        while len(self._open) < most and self._pages:
            page = min(self._pages)
            if (page + 1) * self._step_ms > now_ms:
                break
            self._open += dict.fromkeys(self._pages.pop(page))
        taken, self._open = self._open[-most:], self._open[:-most]
        return taken
