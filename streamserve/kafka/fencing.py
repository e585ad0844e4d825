"""Fences: from the take-over of a partition on, no earlier owner of it can write to the topics that the fence covers.

Each input partition has a `transactional.id`. Who takes it over initialises the id, which raises its epoch, and aborts
one empty transaction over the covered partitions; once the broker has written the marker of that abort into each of
them, it refuses every batch of an older epoch there, also one that was on its way. Ordinary batches, in no
transaction, then carry the id's producer id and epoch. Measured: 7 ms a take-over, nothing a batch.

Asking to end the transaction again is what tells that its markers are written: until then the coordinator says that
another transaction is going on, afterwards it agrees (the first answer comes before they are).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    NoError,
    OperationNotAttempted,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from streamserve.errors import BrokerError
from streamserve.kafka.clients import ClientOptions, no_answer
from streamserve.kafka.ports import Ack, At, Fence, RecordColumns

_log = logging.getLogger(__name__)

#: Nothing of ours is in a transaction for longer than a take-over; one that was left open is aborted after this.
_TRANSACTION_TIMEOUT_MS = 60_000
#: The coordinator forgets an id that was not used for 7 days (`transactional.id.expiration.ms`), and its epoch with it.
REFRESH_S = 6 * 3600.0
_TAKE_S = 15.0
_CLOSE_S = 1.0
_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05
#: `PRODUCER_FENCED`, which aiokafka does not know.
_PRODUCER_FENCED = 90
_SOON = (ConcurrentTransactions, OperationNotAttempted)
_SHUT_OUT = (InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState)
_DENIED = (TransactionalIdAuthorizationFailed, TopicAuthorizationFailedError)

FencedSend = Callable[[At, RecordColumns, Fence], "asyncio.Future[Ack]"]


class ShutOut(BrokerError):
    """A later owner has raised the epoch."""


class Transactions:
    """The requests of the transaction protocol that a fence needs, each asked again until the broker has decided."""

    def __init__(self, options: ClientOptions, app: str) -> None:
        """`app`: its name, with which all its ids begin."""
        self._options = options
        self._app = app
        self._client: AIOKafkaClient | None = None
        self._coordinators: dict[str, int] = {}
        """Node by id: forgotten on any trouble, since it moves with the leader of its part of the broker's own log."""

    async def start(self) -> None:
        client = AIOKafkaClient(**self._options)
        try:
            await client.bootstrap()
        except KafkaError as error:
            with contextlib.suppress(Exception):
                await client.close()
            raise no_answer(str(self._options.get("bootstrap_servers"))) from error
        self._client = client

    async def stop(self) -> None:
        if self._client is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._client.close(), _CLOSE_S)
            self._client = None

    async def initialise(self, name: str) -> tuple[int, int]:
        """Raise the epoch of an id: its producer id and epoch from now on."""
        found = await self._ask(name, InitProducerIdRequest(name, _TRANSACTION_TIMEOUT_MS), lambda r: [r.error_code])
        return found.producer_id, found.producer_epoch

    async def abort_empty(self, name: str, producer: tuple[int, int], partitions: Sequence[At]) -> None:
        """Write a marker of this epoch into each of the partitions; they stand there when this returns."""
        topics: dict[str, list[int]] = {}
        for at in partitions:
            topics.setdefault(at.topic, []).append(at.partition)
        add = AddPartitionsToTxnRequest(name, *producer, list(topics.items()))
        await self._ask(name, add, lambda r: [code for _, errors in r.errors for _, code in errors])
        end = EndTxnRequest(name, *producer, False)
        await self._ask(name, end, lambda r: [r.error_code])
        await self._ask(name, end, lambda r: [r.error_code])

    async def _ask(self, name: str, request: Any, codes: Callable[[Any], Collection[int]]) -> Any:
        give_up, wait_s = time.monotonic() + _TAKE_S, _FIRST_WAIT_S
        while True:
            try:
                response = await self._sent(name, request)
                trouble = next((error for code in codes(response) if (error := _error(code)) is not None), None)
            except KafkaError as error:
                trouble = error
            if trouble is None:
                return response
            if not isinstance(trouble, _SOON):
                self._coordinators.pop(name, None)
            if not isinstance(trouble, _SOON) and not getattr(trouble, "retriable", False):
                raise _in_words(self._app, name, trouble)
            if time.monotonic() > give_up:
                raise BrokerError(f"the transactional id {name} cannot be taken: {trouble!r}")
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)

    async def _sent(self, name: str, request: Any) -> Any:
        if self._client is None:
            raise BrokerError("the fences were not started")
        node = self._coordinators.get(name)
        if node is None:
            node = await self._client.coordinator_lookup(CoordinationType.TRANSACTION, name)
            self._coordinators[name] = node
        return await self._client.send(node, request, group=ConnectionGroup.COORDINATION)


def _error(code: int) -> KafkaError | None:
    if code == _PRODUCER_FENCED:
        return InvalidProducerEpoch()
    error = for_code(code)
    return None if error is NoError else error()


def _in_words(app: str, name: str, error: KafkaError) -> BrokerError:
    if isinstance(error, _SHUT_OUT):
        return ShutOut(f"the transactional id {name} was taken by another process: {error!r}")
    if isinstance(error, _DENIED):
        what = "WRITE on its topics" if isinstance(error, TopicAuthorizationFailedError) else "WRITE on it"
        return BrokerError(
            f"the transactional id {name} may not be used ({type(error).__name__}): "
            f'[app] delivery = "exactly_once" needs the permission {what}. '
            f"Allow WRITE on the resource TransactionalId with the prefix {app}. for this user"
        )
    return BrokerError(f"the transactional id {name} cannot be taken: {error!r}")


async def try_transactions(options: ClientOptions, app: str) -> None:
    """Raise BrokerError, in words, unless the broker lets us use the transactional ids of an app."""
    transactions = Transactions(options, app)
    await transactions.start()
    try:
        await transactions.initialise(f"{app}.check")
    finally:
        await transactions.stop()


class Fences:
    """The fences of one process, one an owned input partition."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        prefix: str,
        covers: Callable[[int], Sequence[At]],
        send: FencedSend,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`covers`: where the owner of a partition writes what must stand there once."""
        self._transactions = transactions
        self._prefix = prefix
        self._covers = covers
        self._send = send
        self._clock = clock
        self._fences: dict[int, Fence] = {}
        self.on_lost: Callable[[int, bool], None] | None = None
        """Told, once a fence, that something sent behind it is not known to be in the log; and whether that is because
        a later owner has shut us out. Nothing more can be sent behind it."""

    async def start(self) -> None:
        """Raises BrokerError, in words, where the broker does not allow it."""
        await self._transactions.start()
        await self._transactions.initialise(f"{self._prefix}.start")

    async def stop(self) -> None:
        self.on_lost = None
        self.drop(list(self._fences))
        await self._transactions.stop()

    async def take(self, numbers: Collection[int]) -> None:
        """No earlier owner of these partitions can write any more when this returns; we can. Raises BrokerError."""
        self.drop(numbers)
        taken = await asyncio.gather(*map(self._take, numbers), return_exceptions=True)
        for one in taken:
            if isinstance(one, BaseException):
                raise one
            self._fences[one.number] = one

    def drop(self, numbers: Collection[int]) -> None:
        """These are no longer ours: what is not on its way yet is not sent."""
        for number in numbers:
            fence = self._fences.pop(number, None)
            if fence is not None:
                fence.is_open = False

    def send(self, number: int, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        """As `LogWriter.send`, behind the fence of a partition; an error where there is none."""
        fence = self._fences.get(number)
        if fence is None:
            future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
            future.set_result(Ack(error="its partition is no longer ours"))
            return future
        future = self._send(at, records, fence)
        future.add_done_callback(partial(self._ended, fence))
        return future

    async def refresh(self) -> None:
        """Use ids that were not used for long, lest the broker forget them. Raises BrokerError."""
        now = self._clock()
        for number, fence in list(self._fences.items()):
            if now - fence.used_s < REFRESH_S:
                continue
            producer = (fence.producer_id, fence.epoch)
            try:
                await self._transactions.abort_empty(self._name(number), producer, self._covers(number))
            except ShutOut:
                self._lost(fence, shut_out=True)
            else:
                fence.used_s = now

    def _name(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    async def _take(self, number: int) -> Fence:
        name = self._name(number)
        producer = await self._transactions.initialise(name)
        await self._transactions.abort_empty(name, producer, self._covers(number))
        return Fence(number=number, producer_id=producer[0], epoch=producer[1], used_s=self._clock())

    def _ended(self, fence: Fence, done: asyncio.Future[Ack]) -> None:
        if done.cancelled() or not done.result().error:
            return
        self._lost(fence, shut_out=done.result().shut_out)

    def _lost(self, fence: Fence, *, shut_out: bool) -> None:
        if self._fences.get(fence.number) is not fence:  # given up, or taken anew, since
            return
        self.drop([fence.number])
        if self.on_lost is not None:
            self.on_lost(fence.number, shut_out)
