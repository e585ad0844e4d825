"""The async client: one class, long by the docstrings of its methods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiokafka.partitioner import murmur2

from streamserve.client.arguments import check_count, check_flag, check_mapping, check_text, shown
from streamserve.client.connection import ClientLog, KafkaLog, common_partitions
from streamserve.client.explanations import Surroundings, timed_out
from streamserve.client.failures import TooManyOutstanding, UnusableInput
from streamserve.client.feedback import UNSET, FeedbackSent, feedback_record, feedback_sent
from streamserve.client.forks import OneProcess
from streamserve.client.inputs import Codec, Input, check_codec, request_record, several
from streamserve.client.matching import Matcher
from streamserve.client.outbox import Outbox
from streamserve.client.prediction import Prediction, TerminalRecord, terminal_records
from streamserve.client.stream import PredictionStream
from streamserve.client.submitted import GaveUp, Submitted
from streamserve.client.targets import RouteHint, check_routes, check_set_up, target_of_app, target_of_config
from streamserve.errors import BrokerError, PredictionTimeout, ShuttingDown, StreamserveError
from streamserve.kafka.ports import Ack, At, Chunk, Record
from streamserve.kafka.tasks import ended
from streamserve.topics import Kind, topic_name

_log = logging.getLogger(__name__)

#: Waited for a request that names no deadline, where the client does not know the route's.
UNSTATED_DEADLINE_MS = 10_000
#: A takeover after a crash answers within about 2.3 s.
GRACE_MS = 3_000
#: Requests that wait for their answers, and feedback that waits for its acknowledgement.
MAX_OUTSTANDING = 100_000
_FETCH_RECORDS = 1_000
_FETCH_MS = 500
_RETRY_S = 0.5
_FLUSH_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A request that can be sent."""

    record: Record
    id: str | None
    wait_ms: int


class Client:
    """Asks an app for predictions and tells it what really happened.

        async with Client("host:9092", app="digits") as client:
            prediction = await client.predict(image, deadline_ms=100)
            await client.feedback(prediction, label=7)

    One consumer reads the app's predictions (all partitions, no group), from the moment at which the client was
    started; up to `max_outstanding` requests may wait for their answers. Use it from one event loop; `SyncClient` is
    for threads. After a fork it is the parent's: a child makes a client of its own.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        app: str,
        deadline_ms: int | None = None,
        grace_ms: int = GRACE_MS,
        max_outstanding: int = MAX_OUTSTANDING,
        codec: Codec | None = None,
        routes: Mapping[str, RouteHint] | None = None,
        security: Mapping[str, Any] | None = None,
        log: ClientLog | None = None,
    ) -> None:
        """Connects to nothing yet.

        `bootstrap_servers`: `host:port`, several with commas; None: the running Kafka of `streamserve up` for this app.
        `deadline_ms`: budget of requests that name none; None leaves it to the route.
        `grace_ms`: how long after its deadline a request is waited for.
        `max_outstanding`: requests, and as many feedbacks, that may be on their way; one more is not sent, and raises
        TooManyOutstanding.
        `codec`: what the app's routes read (`routes.X.input`); None goes by the type of each input.
        `routes`: what is known of single routes; it wins over `codec`. `from_config` fills it in.
        `security`: more keyword arguments of aiokafka's clients.
        `log`: another log than Kafka (tests).
        Raises ConfigError for an app's name or an address that cannot be one, BrokerError where no broker is named and
        none runs, UnusableInput for other arguments that cannot be used.
        """
        check_set_up(bootstrap_servers, deadline_ms, grace_ms)
        check_count(max_outstanding, "max_outstanding")
        check_codec(codec, "codec")
        check_routes(routes)
        check_mapping(security, "security", "keyword arguments of aiokafka's clients")
        target = target_of_app(app, bootstrap_servers if log is None else log.address)
        self.app = target.app
        self._log = log or KafkaLog(target.bootstrap_servers, security)
        self._deadline_ms, self._grace_ms, self._codec = deadline_ms, grace_ms, codec
        self._routes = routes or {}
        self._requests, self._predictions, self._feedback = (
            topic_name(app, kind) for kind in (Kind.REQUESTS, Kind.PREDICTIONS, Kind.FEEDBACK)
        )
        self._matcher: Matcher[Submitted] = Matcher()
        self._streams: list[PredictionStream] = []
        self._max_outstanding = max_outstanding
        self._unsettled: set[Submitted] = set()
        self._teaching = 0
        """Feedback on its way."""
        self._partitions = self._next_partition = 0
        self._reading_trouble = ""
        self._running: AsyncExitStack | None = None
        self._process = OneProcess(app)

    @classmethod
    def from_config(
        cls,
        config: Path | str,
        *,
        bootstrap_servers: str | None = None,
        deadline_ms: int | None = None,
        grace_ms: int = GRACE_MS,
        max_outstanding: int = MAX_OUTSTANDING,
    ) -> Self:
        """A client of a config's app: its broker, security, and its routes' codecs and deadlines.

        Raises ConfigError for a config that is wrong, BrokerError where no broker is named and none runs,
        UnusableInput for other arguments that cannot be used.
        """
        if not isinstance(config, str | Path):
            raise UnusableInput(f"config = {shown(config)}: expected the path of a config file")
        check_set_up(bootstrap_servers, deadline_ms, grace_ms)
        target = target_of_config(config, bootstrap_servers)
        return cls(
            target.bootstrap_servers,
            app=target.app,
            deadline_ms=deadline_ms,
            grace_ms=grace_ms,
            max_outstanding=max_outstanding,
            routes=target.routes,
            security=target.security,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, and begin to read predictions at their present end.

        Raises BrokerError where no broker answers, TopicsDiffer where the app's topics are not there.
        """
        if self._running is not None:
            self._process.check()
            raise StreamserveError(f"this client of app {self.app} was started already")
        self._process = OneProcess(self.app)
        async with AsyncExitStack() as stack:
            self._lookups, self._reader, self._writer = self._log.lookups(), self._log.reader(), self._log.writer()
            for part in (self._lookups, self._reader, self._writer):
                await part.start()
                stack.push_async_callback(part.stop)
            self._partitions = await common_partitions(
                self._lookups, self.app, (self._requests, self._predictions), self._log.address
            )
            places = [At(self._predictions, partition) for partition in range(self._partitions)]
            self._reader.read(await self._lookups.ends(places))
            self._outbox: Outbox[Submitted] = Outbox(
                self._writer, self._requests, settled=self._sent, sending=self._matcher.sending
            )
            self._feedback_outbox: Outbox[FeedbackSent] = Outbox(self._writer, self._feedback, settled=feedback_sent)
            reading = asyncio.get_running_loop().create_task(self._read(), name=f"predictions of {self.app}")
            stack.push_async_callback(ended, reading)
            self._running = stack.pop_all()

    async def close(self) -> None:
        """Send what waits to be sent, fail what is not answered with ShuttingDown, end every stream, disconnect.

        In a fork of the process that started it, it leaves everything to that one.
        """
        running, self._running = self._running, None
        if running is None or self._process.forked:
            return
        await self._outbox.flush(_FLUSH_S)
        await self._feedback_outbox.flush(_FLUSH_S)
        for submitted in list(self._unsettled):
            submitted.failed(ShuttingDown(f"the client was closed before request {submitted.ref} was answered"))
        self._unsettled.clear()
        for stream in self._streams:
            stream.end()
        self._streams.clear()
        await running.aclose()

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(
        self,
        x: Input,
        *,
        route: str | None = None,
        deadline_ms: int | None = None,
        priority: int | None = None,
        context: str | None = None,
        key: str | bytes | None = None,
        id: str | None = None,
    ) -> Submitted:
        """Send a request and return at once; `await .acknowledged()` for its ref, `.prediction()` for its answer.

        `x`: an array or nested lists `[n, ...]` of n rows (one dimension of numbers is one row), a `str` for a route
        that reads text, or `bytes`, sent as they are.
        `route`: may be left out where the app has one.
        `deadline_ms`: budget from append; None: the client's, else the route's.
        `priority`: -9 to 9, 0 where none is given; under overload the highest is shed last. `context`: whose learnt
        state chooses, where the route has contexts; or the numbers that its policy reads, commas between them.
        `key`: requests of one key are in one partition, in order; feedback and prediction carry it too.
        `id`: repeated in the prediction; need not be unique.
        Raises UnusableInput for what cannot be sent, TooManyOutstanding, StreamserveError where the client does not
        run.
        """
        prepared = self._prepared(
            x, route=route, deadline_ms=deadline_ms, priority=priority, context=context, key=key, id=id
        )
        self._check_room(1)
        return self._send(prepared)

    def _prepared(
        self,
        x: Input,
        *,
        route: str | None,
        deadline_ms: int | None,
        priority: int | None,
        context: str | None,
        key: str | bytes | None,
        id: str | None,
    ) -> _Prepared:
        """A request that can be sent. Raises as `submit`."""
        self._check_running()
        check_text(route, "route")
        hint = self._hint(route)
        budget_ms = self._deadline_ms if deadline_ms is None else deadline_ms
        codec = self._codec if hint is None else hint.input
        record = request_record(
            x, codec=codec, route=route, deadline_ms=budget_ms, priority=priority, context=context, key=key, id=id
        )
        if budget_ms is None:
            budget_ms = UNSTATED_DEADLINE_MS if hint is None else hint.deadline_ms
        return _Prepared(record=record, id=id, wait_ms=budget_ms + self._grace_ms)

    def _send(self, prepared: _Prepared) -> Submitted:
        partition = self._partition_for(prepared.record.key)
        submitted = Submitted(partition=partition, id=prepared.id, wait_ms=prepared.wait_ms, explain=self._explain)
        self._outbox.put(partition, prepared.record, submitted)
        self._unsettled.add(submitted)
        self._arm(submitted)
        return submitted

    async def predict(
        self,
        x: Input,
        *,
        route: str | None = None,
        deadline_ms: int | None = None,
        priority: int | None = None,
        context: str | None = None,
        key: str | bytes | None = None,
        id: str | None = None,
    ) -> Prediction:
        """Ask and wait for the terminal record, whatever its outcome; arguments as `submit`.

        Raises PredictionTimeout, which says where the request was last seen, when none came within deadline and
        grace; UnusableInput and TooManyOutstanding as `submit`; BrokerError, ContractError and ShuttingDown as
        `Submitted.prediction`.
        """
        sent = self.submit(x, route=route, deadline_ms=deadline_ms, priority=priority, context=context, key=key, id=id)
        return await sent.prediction()

    async def predict_many(
        self,
        xs: Iterable[Input],
        *,
        route: str | None = None,
        deadline_ms: int | None = None,
        priority: int | None = None,
        context: str | None = None,
        key: str | bytes | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[Prediction]:
        """One request for each of `xs` (an array: for each of its rows), sent together; predictions in their order.

        `ids`: one a request. Raises what `predict` raises: UnusableInput and TooManyOutstanding before any is sent,
        else the first error, once every request has ended.
        """
        self._check_running()
        inputs, names = several(xs, ids)
        prepared = [
            self._prepared(x, route=route, deadline_ms=deadline_ms, priority=priority, context=context, key=key, id=id)
            for x, id in zip(inputs, names, strict=True)
        ]
        self._check_room(len(prepared))
        sent = [self._send(each) for each in prepared]
        await asyncio.gather(*(submitted.settled() for submitted in sent))
        late = sum(1 for submitted in sent if submitted.timed_out)
        try:
            return [await submitted.prediction() for submitted in sent]
        except PredictionTimeout as error:
            raise PredictionTimeout(f"{late} of {len(sent)} requests had no answer; the first: {error}") from None

    def predictions(self, *, mine: bool = False, max_waiting: int = 10_000) -> PredictionStream:
        """Terminal records from now on, for `async for`: all of the app, or (`mine`) only this client's requests'.

        Each ref comes once. It ends when it or the client is closed, with what waits to be taken then. `max_waiting`:
        records kept while they are not taken; beyond it the oldest are lost, and the iteration says so.
        """
        self._check_running()
        check_flag(mine, "mine")
        check_count(max_waiting, "max_waiting")
        stream = PredictionStream(mine=mine, max_waiting=max_waiting, closed=self._forget)
        self._streams.append(stream)
        return stream

    async def feedback(
        self,
        prediction: Prediction | str,
        *,
        label: Any = UNSET,
        reward: float | None = None,
        model: str | None = None,
        key: str | bytes | None = None,
    ) -> str:
        """Tell what really happened to a request, given by its prediction or its ref.

        `label`: the true answer, one value or one for each row (arrays too; None is a label). `reward`: 0 to 1, 1 is
        best. `model`: the one model (`name@version`) that this speaks of; None: the prediction. `key`: the request's,
        where only a ref is given.
        Returns `<partition>-<offset>` in the feedback topic. Raises UnusableInput for what cannot be feedback,
        TooManyOutstanding, BrokerError where the broker did not take it.
        """
        self._check_running()
        partition, record = feedback_record(
            prediction, partitions=self._partitions, label=label, reward=reward, model=model, key=key
        )
        if self._teaching >= self._max_outstanding:
            raise TooManyOutstanding(_too_many(f"{self._teaching} feedbacks are on their way", self._max_outstanding))
        owner = FeedbackSent(placed=asyncio.get_running_loop().create_future())
        self._feedback_outbox.put(partition, record, owner)
        self._teaching += 1
        owner.placed.add_done_callback(self._taught)
        return await owner.placed

    # -- inside --------------------------------------------------------------------------------------------------

    def _taught(self, _placed: asyncio.Future[str]) -> None:
        self._teaching -= 1

    def _check_room(self, n: int) -> None:
        waiting = len(self._unsettled)
        if waiting + n > self._max_outstanding:
            raise TooManyOutstanding(_too_many(f"{waiting} requests wait for their answers", self._max_outstanding, n))

    def _check_running(self) -> None:
        self._process.check()
        if self._running is None:
            raise StreamserveError(f"this client of app {self.app} does not run: use it inside `async with`")

    def _hint(self, route: str | None) -> RouteHint | None:
        if route is None and len(self._routes) == 1:
            return next(iter(self._routes.values()))
        return self._routes.get(route or "")

    def _partition_for(self, key: bytes | None) -> int:
        """By key as Java's and aiokafka's clients do; without a key in turn."""
        if key is not None:
            return int(murmur2(key) & 0x7FFF_FFFF) % self._partitions
        self._next_partition = (self._next_partition + 1) % self._partitions
        return self._next_partition

    def _arm(self, submitted: Submitted) -> None:
        if submitted.timer is not None:
            submitted.timer.cancel()
        loop = asyncio.get_running_loop()
        submitted.timer = loop.call_later(submitted.wait_ms / 1000, self._give_up, submitted)

    def _give_up(self, submitted: Submitted) -> None:
        self._unsettled.discard(submitted)
        self._matcher.give_up(submitted.partition, submitted.offset)
        submitted.failed(GaveUp())

    def _sent(self, partition: int, batch: list[Submitted], ack: Ack) -> None:
        if ack.error:
            self._matcher.failed(partition)
            for submitted in batch:
                self._unsettled.discard(submitted)
                submitted.failed(BrokerError(f"{self._requests} at {self._log.address} did not take it: {ack.error}"))
            return
        for offset, submitted in enumerate(batch, ack.offset):
            submitted.placed(offset, ack.append_ms)
            if not submitted.done:
                self._arm(submitted)  # the deadline counts from append
        for submitted, record in self._matcher.placed(partition, ack.offset, batch):
            self._answer(submitted, record)
        for submitted in batch:
            if submitted.timed_out:  # before the broker had acknowledged it
                self._matcher.give_up(partition, submitted.offset)

    def _answer(self, submitted: Submitted, record: TerminalRecord) -> None:
        self._unsettled.discard(submitted)
        submitted.answered(record)
        for stream in self._streams:
            if stream.mine:
                stream.put(record)

    async def _read(self) -> None:
        while True:
            try:
                chunks = await self._reader.fetch(max_records=_FETCH_RECORDS, timeout_ms=_FETCH_MS)
            except Exception as error:  # noqa: BLE001  (whatever it is: those who wait are told of it)
                words = str(error) if isinstance(error, BrokerError) else repr(error)
                if words != self._reading_trouble:
                    _log.warning("predictions of %s cannot be read, trying again: %s", self.app, words)
                self._reading_trouble = words
                await asyncio.sleep(_RETRY_S)
                continue
            self._reading_trouble = ""
            for chunk in chunks:
                try:
                    self._take_chunk(chunk)
                except Exception:  # noqa: BLE001  (whoever waits for other answers must not wait for ever)
                    _log.exception("predictions of %s, partition %d, were not taken", self.app, chunk.at.partition)

    def _take_chunk(self, chunk: Chunk) -> None:
        for record in terminal_records(chunk):
            first, submitted = self._matcher.seen(record)
            if not first:
                continue
            for stream in self._streams:
                if not stream.mine:
                    stream.put(record)
            if submitted is not None:
                self._answer(submitted, record)

    def _forget(self, stream: PredictionStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)

    async def _explain(self, submitted: Submitted) -> PredictionTimeout:
        around = Surroundings(
            address=self._log.address,
            requests=self._requests,
            predictions=self._predictions,
            partitions=self._partitions,
            terminal_group=f"{self.app}.terminal",
            grace_ms=self._grace_ms,
            highest_seen=self._matcher.highest_seen(submitted.partition),
            reading_trouble=self._reading_trouble,
        )
        return await timed_out(submitted, around, None if self._running is None else self._lookups)


def _too_many(words: str, most: int, n: int = 1) -> str:
    return f"{words}, and {n} more would be more than max_outstanding ({most}). Await some of them, or raise it"
