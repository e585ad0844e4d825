"""A request that was sent: what is known of it by now, and its answer when that comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from streamserve.client.prediction import Prediction, TerminalRecord, decode_prediction
from streamserve.errors import PredictionTimeout, StreamserveError
from streamserve.kafka.codecs.refs import format_ref


class GaveUp(PredictionTimeout):
    """A mark inside the client: deadline and grace are over. The words for its user are found when somebody asks."""


Explain = Callable[["Submitted"], Awaitable[StreamserveError]]


class Submitted:
    """One request on its way. Made by `Client.submit`."""

    __slots__ = ("_acknowledged", "_answered", "_explain", "_prediction", "append_ms", "id", "offset", "partition",
                 "timer", "wait_ms")  # fmt: skip

    def __init__(self, *, partition: int, id: str | None, wait_ms: int, explain: Explain) -> None:
        loop = asyncio.get_running_loop()
        self.partition = partition
        self.id = id
        """The caller's id; None: the ref will be the prediction's."""
        self.offset = -1
        """In the requests topic; -1 before the broker has acknowledged it."""
        self.append_ms = -1
        """When it was appended, epoch milliseconds of the broker; -1 before the acknowledgement."""
        self.wait_ms = wait_ms
        """Deadline and grace."""
        self.timer: asyncio.TimerHandle | None = None
        self._acknowledged: asyncio.Future[str] = loop.create_future()
        self._answered: asyncio.Future[TerminalRecord] = loop.create_future()
        self._prediction: Prediction | None = None
        self._explain = explain
        for future in (self._acknowledged, self._answered):
            future.add_done_callback(_noted)

    @property
    def ref(self) -> str | None:
        """`<partition>-<offset>`, once the broker has acknowledged it."""
        return None if self.offset < 0 else format_ref(self.partition, self.offset)

    @property
    def done(self) -> bool:
        """Whether `prediction` returns, or raises, without waiting."""
        return self._answered.done()

    @property
    def timed_out(self) -> bool:
        """Whether deadline and grace passed without a terminal record."""
        return self._answered.done() and isinstance(self._answered.exception(), GaveUp)

    async def settled(self) -> None:
        """Wait until `prediction` no longer has to; raises nothing."""
        await asyncio.wait([self._answered])

    async def acknowledged(self) -> str:
        """Wait until the request is in the log; its ref. Raises BrokerError where the broker did not take it."""
        return await asyncio.shield(self._acknowledged)

    async def prediction(self) -> Prediction:
        """Wait for the terminal record. May be asked again.

        Raises PredictionTimeout after deadline and grace, BrokerError where the request did not reach the log,
        ContractError for a record that cannot be read, ShuttingDown when the client was closed.
        """
        if self._prediction is None:
            try:
                record = await asyncio.shield(self._answered)
            except GaveUp:
                raise await self._explain(self) from None
            self._prediction = decode_prediction(record)
        return self._prediction

    def placed(self, offset: int, append_ms: int) -> None:
        """For the client: the broker has it."""
        self.offset, self.append_ms = offset, append_ms
        if not self._acknowledged.done():
            self._acknowledged.set_result(format_ref(self.partition, offset))

    def answered(self, record: TerminalRecord) -> None:
        """For the client: its terminal record has come."""
        self._stop_timer()
        if not self._answered.done():
            self._answered.set_result(record)

    def failed(self, error: Exception) -> None:
        """For the client: nobody waits any longer."""
        self._stop_timer()
        for future in (self._acknowledged, self._answered):
            if not future.done() and (future is self._answered or not isinstance(error, GaveUp)):
                future.set_exception(error)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _noted(future: asyncio.Future[Any]) -> None:
    """An answer that nobody asks for is no error."""
    if not future.cancelled():
        future.exception()
