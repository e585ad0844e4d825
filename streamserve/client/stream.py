"""Terminal records as they come, for `async for`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from streamserve.client.prediction import Prediction, TerminalRecord, decode_prediction
from streamserve.errors import StreamserveError


class PredictionStream:
    """An async iterator of `Prediction`, each ref once; made by `Client.predictions`, which it outlives by its rest.

    Raises StreamserveError when more than `max_waiting` records wait to be taken (the oldest are then lost to it),
    ContractError for a record that cannot be read; it may be iterated further after either.
    """

    def __init__(self, *, mine: bool, max_waiting: int, closed: Callable[[PredictionStream], None]) -> None:
        self.mine = mine
        self._max_waiting = max_waiting
        self._records: deque[TerminalRecord] = deque()
        self._lost = 0
        self._more = asyncio.Event()
        self._ended = False
        self._closed = closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Prediction:
        while not self._records and not self._ended:
            self._more.clear()
            await self._more.wait()
        if self._lost:
            lost, self._lost = self._lost, 0
            raise StreamserveError(
                f"{lost} predictions were lost to this iteration: more than {self._max_waiting} waited to be taken. "
                "Take them faster, or give predictions() a larger max_waiting"
            )
        if not self._records:
            raise StopAsyncIteration
        return decode_prediction(self._records.popleft())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take no more; what waits can still be taken."""
        self.end()
        self._closed(self)

    def put(self, record: TerminalRecord) -> None:
        """For the client: one more."""
        if len(self._records) >= self._max_waiting:
            self._records.popleft()
            self._lost += 1
        self._records.append(record)
        self._more.set()

    def end(self) -> None:
        """For the client: no more will come."""
        self._ended = True
        self._more.set()
