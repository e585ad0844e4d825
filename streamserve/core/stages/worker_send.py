"""Sending, of a worker stage: which answers wait for their acknowledgement, which requests are over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamserve.core.effects import Effect, EmitAnswers, settles
from streamserve.core.events import ProduceFailed
from streamserve.core.fast import every, indices
from streamserve.core.messages import I64, Answers
from streamserve.core.owned import Owned
from streamserve.core.slicing import take_answers, unwritten_answers
from streamserve.core.table import Table


class Sending:
    """Law: a request of the table is settled once, when all its models have answered, or it is given up, and all that
    was sent for it is acknowledged."""

    def __init__(self, table: Table, owned: Owned, *, settles: bool, most_bytes: int) -> None:
        """`settles` False: answers are handed over in this process, which is their acknowledgement, and somebody else
        settles the requests. `most_bytes`: of requests; with more held, those that are over are let go at once."""
        self._table = table
        self._owned = owned
        self._settles = settles
        self._most_bytes = most_bytes
        self._sent: dict[int, tuple[I64, Answers]] = {}
        """Token -> those that wait for its acknowledgement, and all that it carries."""
        self._next_token = 0

    def __len__(self) -> int:
        """Sends that are not acknowledged."""
        return len(self._sent)

    def send(self, at: I64, blocks: Sequence[Answers], effects: list[Effect]) -> None:
        """`at`: places of the requests that wait for each of these blocks."""
        if not self._settles:
            effects += [EmitAnswers(token=-1, answers=answers) for answers in blocks]
            self.settle(at, effects)
            return
        self._table["unacked"][at] += len(blocks)
        for answers in blocks:
            self._emit(at + self._table.base, answers, effects)

    def _emit(self, handles: I64, answers: Answers, effects: list[Effect]) -> None:
        token = self._next_token
        self._next_token += 1
        self._sent[token] = (handles, answers)
        effects.append(EmitAnswers(token=token, answers=answers))

    def acknowledge(self, token: int, effects: list[Effect]) -> None:
        sent = self._sent.pop(token, None)
        if sent is not None:
            self._written(sent[0], effects)

    def _written(self, handles: I64, effects: list[Effect]) -> None:
        table = self._table
        at = table.at(handles[handles >= table.base])
        at = at[~table["done"][at]]
        table["unacked"][at] -= 1
        self.settle(at, effects)

    def send_again(self, event: ProduceFailed, effects: list[Effect]) -> None:
        """What of a failed send is not in the log."""
        sent = self._sent.pop(event.token, None)
        if sent is None:
            return
        handles, rest = sent[0], unwritten_answers(sent[1], event.written)
        if len(rest) < len(sent[1]):
            handles = handles[handles >= self._table.base]
            again = np.isin(self._table["partition"][self._table.at(handles)], rest.partition)
            self._written(handles[~again], effects)
            handles = handles[again]
        self._emit(handles, rest, effects)

    def forget_lost(self) -> None:
        """What becomes of the sends of a lost partition is nobody's business here, should it come back."""
        for token, (handles, answers) in list(self._sent.items()):
            kept = indices(self._owned.has(answers.partition))
            if not len(kept):
                del self._sent[token]
            elif len(kept) < len(answers):
                self._sent[token] = (handles, take_answers(answers, kept))

    def settle(self, at: I64, effects: list[Effect]) -> None:
        """Of these places, those for which nothing is waited for any more."""
        table = self._table
        ready = at[(table["waiting"][at] == 0) & (table["unacked"][at] == 0) & ~table["done"][at]]
        if not len(ready):
            return
        table["done"][ready] = True
        if self._settles:
            effects += settles(table["partition"][ready], table["offset"][ready])

    def drop_done(self) -> None:
        done = self._table["done"]
        if len(done) and done[0]:
            n = len(done) if every(done) else int(done.argmin())
            self._table.drop_front(n)
        self._table.release_done(self._most_bytes)
