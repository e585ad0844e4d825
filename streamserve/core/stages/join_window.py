"""What the join remembers: predictions of a window, and the answers that came too late for them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from streamserve.core.bounds import Fill
from streamserve.core.events import RawAnswers
from streamserve.core.messages import Answers
from streamserve.core.reasons import Missing
from streamserve.core.records import Label, PredictionRecord

#: Python's own cost of a remembered prediction (record, two index entries), added to the raw bytes.
OVERHEAD_BYTES = 400
_BUCKET_BITS = 8


class PredictionStore(Protocol):
    """Predictions of one partition by request offset and by id. The first one of an offset counts."""

    def put(self, record: PredictionRecord) -> None: ...

    def by_offset(self, request_offset: int) -> PredictionRecord | None: ...

    def by_id(self, id_: str) -> PredictionRecord | None:
        """The newest one with this id: ids need not be unique."""
        ...

    def expire(self, before_ms: int) -> None:
        """Forget predictions appended before this time, and the oldest ones while the store is over its budget."""
        ...

    @property
    def fill(self) -> Fill:
        """Bytes remembered, of the budget."""
        ...

    @property
    def forgotten_below(self) -> int:
        """One more than the highest request offset that was forgotten: tells late feedback from orphans."""
        ...


StoreFactory = Callable[[int], PredictionStore]


class MemoryPredictions:
    """A store in memory, bounded by bytes; oldest out first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._records: OrderedDict[int, PredictionRecord] = OrderedDict()
        self._by_id: dict[str, int] = {}
        self._forgotten_below = 0

    def put(self, record: PredictionRecord) -> None:
        if record.request_offset in self._records:
            return
        self._records[record.request_offset] = record
        if record.id is not None:
            self._by_id[record.id] = record.request_offset
        self._bytes += _bytes_of(record)

    def by_offset(self, request_offset: int) -> PredictionRecord | None:
        return self._records.get(request_offset)

    def by_id(self, id_: str) -> PredictionRecord | None:
        offset = self._by_id.get(id_)
        return None if offset is None else self._records.get(offset)

    def expire(self, before_ms: int) -> None:
        while self._records:
            offset, oldest = next(iter(self._records.items()))
            if oldest.append_ms >= before_ms and self._bytes <= self._max_bytes:
                break
            del self._records[offset]
            self._bytes -= _bytes_of(oldest)
            self._forgotten_below = max(self._forgotten_below, offset + 1)
            if oldest.id is not None and self._by_id.get(oldest.id) == offset:
                del self._by_id[oldest.id]

    @property
    def fill(self) -> Fill:
        return Fill(self._bytes, self._max_bytes)

    @property
    def forgotten_below(self) -> int:
        return self._forgotten_below

    def __len__(self) -> int:
        return len(self._records)


def _bytes_of(record: PredictionRecord) -> int:
    return len(record.raw) + len(record.id or "") + OVERHEAD_BYTES


DecodeAnswers = Callable[[bytes, int], Answers | None]
"""Reads a raw block of answers of a partition; None where it cannot be read."""


class LateAnswers:
    """Blocks of answers of one partition as they came, found by (model, request offset); bounded by bytes, oldest out
    first.

    They are kept raw and decoded on a match. A block is listed under each run of `2**_BUCKET_BITS` offsets that it
    touches, so a look-up meets few blocks however long the window is.
    """

    def __init__(self, partition: int, max_bytes: int, decode: DecodeAnswers) -> None:
        self._partition = partition
        self._max_bytes = max_bytes
        self._decode = decode
        self._bytes = 0
        self._blocks: deque[_Block] = deque()
        self._buckets: dict[tuple[str, int], list[_Block]] = {}
        self._decoded: tuple[_Block, Answers | None] | None = None  # feedback often asks for neighbours

    def add(self, raw: RawAnswers, log_offset: int) -> None:
        """`log_offset`: from where the answers topic is to be read to meet this block again."""
        if not len(raw.offsets):
            return
        block = _Block(raw, log_offset)
        self._blocks.append(block)
        self._bytes += block.n_bytes
        for bucket in block.buckets():
            self._buckets.setdefault((raw.model, bucket), []).append(block)
        while self._bytes > self._max_bytes and self._blocks:
            self._drop_oldest()

    def rows(self, model: str, request_offset: int) -> list[Label] | None:
        """What the model said of this request, one value per row; the first answer counts."""
        for block in self._buckets.get((model, request_offset >> _BUCKET_BITS), ()):
            if not block.first <= request_offset <= block.last:  # most of them, where blocks are small
                continue
            place = int(np.searchsorted(block.raw.offsets, request_offset))
            if place == len(block.raw.offsets) or block.raw.offsets[place] != request_offset:
                continue
            answers = self._answers(block)
            if answers is not None and answers.labels is not None and answers.missing[place] == Missing.PRESENT:
                first, end = answers.row_starts[place : place + 2].tolist()
                rows: list[Label] = answers.labels[first:end].tolist()
                return rows
        return None

    def _answers(self, block: _Block) -> Answers | None:
        if self._decoded is None or self._decoded[0] is not block:
            self._decoded = block, self._decode(block.raw.value, self._partition)
        return self._decoded[1]

    @property
    def fill(self) -> Fill:
        """Bytes remembered, of the budget."""
        return Fill(self._bytes, self._max_bytes)

    @property
    def read_from(self) -> int | None:
        """Log offset of the oldest block; None where there is none."""
        return self._blocks[0].log_offset if self._blocks else None

    def forget_below(self, request_offset: int, is_held: Callable[[int], bool]) -> None:
        """`is_held`: whether the prediction of a request is remembered though it lies below."""
        while self._blocks and self._blocks[0].last < request_offset and not is_held(self._blocks[0].last):
            self._drop_oldest()

    def __len__(self) -> int:
        return len(self._blocks)

    def _drop_oldest(self) -> None:
        block = self._blocks.popleft()
        self._bytes -= block.n_bytes
        if self._decoded is not None and self._decoded[0] is block:
            self._decoded = None
        for bucket in block.buckets():
            # Blocks leave in the order in which they came, so this one is the first of each of its lists.
            listed = self._buckets[block.raw.model, bucket]
            del listed[0]
            if not listed:
                del self._buckets[block.raw.model, bucket]


class _Block:
    __slots__ = ("first", "last", "log_offset", "n_bytes", "raw")

    def __init__(self, raw: RawAnswers, log_offset: int) -> None:
        self.raw = raw
        self.log_offset = log_offset
        self.first, self.last = int(raw.offsets[0]), int(raw.offsets[-1])
        self.n_bytes = len(raw.value) + int(raw.offsets.nbytes) + OVERHEAD_BYTES

    def buckets(self) -> list[int]:
        first, last = self.first >> _BUCKET_BITS, self.last >> _BUCKET_BITS
        if first == last:
            return [first]
        buckets: list[int] = np.unique(self.raw.offsets >> _BUCKET_BITS).tolist()
        return buckets
