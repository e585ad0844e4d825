"""What the answers of a model call need of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from streamserve.core.fast import distinct
from streamserve.core.messages import I32, I64, Answers, AnyArray, Choice
from streamserve.core.rows import span_ms
from streamserve.core.slicing import take_choice
from streamserve.core.table import Table


class Asked:
    """Columns of n requests, copied: the requests may be gone by the time of the answer.

    Models that are called for the same requests get the same object, and their answers bear its very columns: whoever
    takes them sees at a glance that one look-up serves all of them.
    """

    __slots__ = ("_queued", "append_ms", "choice", "ids", "offset", "partition", "route", "routes")

    def __init__(
        self, *, partition: I64, offset: I64, append_ms: I64, route: I64, choice: Choice, ids: list[str | None]
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.append_ms = append_ms
        self.route = route
        self.routes = distinct(route)
        self.choice = choice
        self.ids = ids
        self._queued: tuple[int, I32] | None = None

    @classmethod
    def read(cls, table: Table, at: AnyArray) -> Asked:
        """Of these rows of a worker's table, none of which is to be decoded any more."""
        return cls(
            partition=table["partition"][at],
            offset=table["offset"][at],
            append_ms=table["append_ms"][at],
            route=table["route"][at],
            choice=Choice(
                chosen=table["chosen"][at],
                probability=table["probability"][at],
                epoch=table["epoch"][at],
                stale=table["stale"][at],
            ),
            ids=table["ids"][at].tolist(),
        )

    def queued_ms(self, until_ms: int) -> I32:
        """`[n]`: from append until then."""
        if self._queued is None or self._queued[0] != until_ms:
            self._queued = (until_ms, span_ms(self.append_ms, until_ms))
        return self._queued[1]

    def take(self, rows: I64) -> Asked:
        return Asked(
            partition=self.partition[rows],
            offset=self.offset[rows],
            append_ms=self.append_ms[rows],
            route=self.route[rows],
            choice=take_choice(self.choice, rows),
            ids=[self.ids[i] for i in rows.tolist()],
        )

    def plus(self, more: Asked) -> Asked:
        """These requests and then those."""
        one, other = self.choice, more.choice
        return Asked(
            partition=np.concatenate((self.partition, more.partition)),
            offset=np.concatenate((self.offset, more.offset)),
            append_ms=np.concatenate((self.append_ms, more.append_ms)),
            route=np.concatenate((self.route, more.route)),
            choice=Choice(
                chosen=np.concatenate((one.chosen, other.chosen)),
                probability=np.concatenate((one.probability, other.probability)),
                epoch=np.concatenate((one.epoch, other.epoch)),
                stale=np.concatenate((one.stale, other.stale)),
            ),
            ids=self.ids + more.ids,
        )


def by_requests(blocks: Sequence[Answers]) -> Iterator[list[Answers]]:
    """Neighbours that bear the very same columns of requests, together."""
    for _, group in groupby(blocks, key=lambda block: (id(block.offsets), id(block.partition), id(block.choice))):
        yield list(group)
