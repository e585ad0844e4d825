"""The Faust app: reads predictions and outcomes, keeps what they changed in a changelog, publishes rows, serves a page.

Faust has the group, the reading, the table with its changelog and its recovery, the producer and the web server. Its
windowed tables are not used, and it does not commit what it has merely read (docs/decisions/0050): windows are decided
by the log's times in `slices`, and a record is acknowledged to Faust when the changelog holds what it led to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

import faust
import msgspec
from aiokafka.errors import KafkaError
from yarl import URL

from streamserve.errors import BrokerError, ContractError
from streamserve.insights.board import Board, Turn
from streamserve.insights.cells import Row
from streamserve.insights.gaps import Gaps, Verdict
from streamserve.insights.slices import OUTCOMES, PREDICTIONS, InsightRules, Key, Slice
from streamserve.insights.web import Question, view
from streamserve.kafka.codecs.decisions import decode_decision, decode_prediction_record
from streamserve.kafka.codecs.learning import decode_outcome
from streamserve.kafka.http import HOST
from streamserve.kafka.logs import about
from streamserve.settings import InsightsSettings, Settings
from streamserve.topics import Kind, topic_name

_log = logging.getLogger(__name__)

#: Markers of transactions take offsets and are never read: so near to its end a partition has been read.
_UNREAD_MARKERS = 2
#: Records of one partition that have not been acknowledged, above which its reading waits for the next turn.
_MOST_PENDING = 20_000
_COMMIT_EVERY_S = 1.0
_ACK_TIMEOUT_S = 30.0
_STOP_S = 6.0
#: It is read as a whole at each start, and a cell is written again each time it changes: compacted soon.
_CHANGELOG = {"segment.bytes": str(16 << 20), "max.compaction.lag.ms": "600000"}
_encode = msgspec.json.Encoder().encode
_keys = msgspec.json.Decoder(list[str | int]).decode


class InsightsApp:
    """Insights of one app; one process reads all partitions. Made within the event loop that runs it.

    `failed` is set, and `failure` says why, when it cannot go on.
    """

    def __init__(
        self,
        settings: Settings,
        rules: InsightRules,
        *,
        options: Mapping[str, Any],
        replication: int,
        web_port: int,
        folder: Path,
        instance: str | None,
    ) -> None:
        """`options`: of the Kafka client, as of `connection_options`, with `bootstrap_servers`. `folder`: for Faust's
        files. `instance`: name in the group."""
        self.settings, self.web_port = settings, web_port
        app = settings.app
        self._publish_every_s = (settings.insights or InsightsSettings()).publish_every_ms / 1000
        self._session_s = settings.group.session_timeout_ms / 1000
        self._partitions = app.partitions
        self.board = Board(rules, app.partitions, settings.learn.join_window_ms)
        self._rules = rules
        self._pending: list[Any] = []
        self._gaps = Gaps()
        self._room = asyncio.Event()
        self._last_turn_s = time.monotonic()
        self.consumed = 0
        self.failure: Exception | None = None
        self.failed = asyncio.Event()
        self.recovered = asyncio.Event()
        self.faust = faust.App(
            f"{app.name}.insights",
            broker=[URL(f"kafka://{server.strip()}") for server in options["bootstrap_servers"].split(",")],
            broker_credentials=_credentials(options),
            broker_client_id=options.get("client_id", "streamserve"),
            broker_session_timeout=self._session_s,
            broker_heartbeat_interval=settings.group.heartbeat_interval_ms / 1000,
            broker_commit_interval=_COMMIT_EVERY_S,
            consumer_group_instance_id=instance,
            consumer_auto_offset_reset="earliest",
            producer_acks=-1,
            processing_guarantee="at_least_once",
            store="memory://",
            datadir=str(folder),
            topic_replication_factor=replication,
            topic_partitions=app.partitions,
            topic_disable_leader=True,
            stream_wait_empty=False,
            web_enabled=True,
            web_host=HOST,
            web_bind=HOST,
            web_port=web_port,
            # A static member that is back within its session is given the assignment that it had: Faust refuses one
            # that bears another address, and the port is another one at each start.
            canonical_url=f"http://{app.name}.insights",
            autodiscover=False,
        )
        self.faust.transport.Consumer = _begins_at_the_start(  # type: ignore[misc]  # Faust names a class
            self.faust.transport.Consumer, {self._name(Kind.PREDICTIONS), self._name(Kind.OUTCOMES)}
        )
        self._out = self._topic(Kind.INSIGHTS)
        self.table = self.faust.Table(
            "state",
            key_type=bytes,
            value_type=bytes,
            partitions=app.partitions,
            extra_topic_configs=_CHANGELOG | {"min.insync.replicas": str(max(1, replication - 1))},
            on_recover=self._recovered,
        )
        self._reads(PREDICTIONS, Kind.PREDICTIONS)
        self._reads(OUTCOMES, Kind.OUTCOMES)
        self._serves_page()
        self.faust.on_partitions_revoked.connect(self._revoked)

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until asked to stop. Raises what kept it from that."""
        await self.faust.start()
        turning = asyncio.create_task(self._turn_forever())
        watching = asyncio.create_task(self.faust.wait_until_stopped())
        asked = asyncio.create_task(stop.wait())
        failing = asyncio.create_task(self.failed.wait())
        await asyncio.wait({turning, watching, asked, failing}, return_when=asyncio.FIRST_COMPLETED)
        for task in (turning, watching, asked, failing):
            task.cancel()
        ended = await asyncio.gather(turning, watching, asked, failing, return_exceptions=True)
        if isinstance(ended[0], Exception):
            self._fail(_as_failure(ended[0]))
        if self.faust.crash_reason is not None:
            self._fail(_as_failure(self.faust.crash_reason))
        try:
            async with asyncio.timeout(_STOP_S):
                if self.failure is None and self.recovered.is_set():
                    await self._turn()
                await self.faust.stop()
        except TimeoutError:
            _log.warning("stopped before all was in the log: the rest is read again", extra=about("stop"))
        if self.failure is not None:
            raise self.failure

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self.failed.set()

    async def _recovered(self) -> None:
        """The table holds what the changelogs do: go on from there."""
        owned = {tp.partition for tp in self.faust.consumer.assignment() if tp.topic == self._name(Kind.PREDICTIONS)}
        if owned != set(range(self._partitions)):
            self._fail(
                BrokerError(
                    f"partitions {sorted(owned)} of {self._partitions} are this process's: another process of group "
                    f"{self.faust.conf.id} reads the others. One process makes the insights of an app: stop one"
                )
            )
            return
        written: dict[int, dict[Key, bytes]] = {number: {} for number in owned}
        for raw, value in list(self.table.data.items()):
            number, *key = _keys(raw)
            if number in written and isinstance(number, int):
                written[number][tuple(key)] = value
        self._pending = []
        self.board.slices = {number: Slice(self._rules, held) for number, held in written.items()}
        # What was written and not yet published by whoever was here before.
        await self._publish({row: self.board.row(row) for row in self.board.rows()})
        self._room.set()
        self.recovered.set()
        _log.info("%d rows taken up from the changelog", len(self.board.rows()), extra=about("recover"))

    async def _revoked(self, *_told: Any, signal: Any = None, **_options: Any) -> None:
        """What has not been written is read again."""

        del signal
        self.recovered.clear()
        self._room.clear()
        self._pending, self.board.slices = [], {}
        self._gaps.clear()

    # -- reading -------------------------------------------------------------------------------------------------

    def _name(self, kind: Kind) -> str:
        return topic_name(self.settings.app.name, kind)

    def _topic(self, kind: Kind) -> Any:
        return self.faust.topic(
            self._name(kind), key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )

    def _reads(self, source: int, kind: Kind) -> None:
        take = self._take_prediction if source == PREDICTIONS else self._take_outcome

        async def read(stream: Any) -> None:
            async for event in stream.noack().events():
                await self._room.wait()
                slice_ = self.board.slices.get(event.message.partition)
                if slice_ is None:  # revoked: read again by whoever owns it
                    continue
                if not await self._is_next(event.message, slice_.read[source]):
                    continue
                take(slice_, event.message)
                self.consumed += 1
                self._pending.append(event)
                if len(self._pending) >= _MOST_PENDING:
                    self._room.clear()

        self.faust.agent(self._topic(kind), name=f"{self.faust.conf.id}.{kind}")(read)

    async def _is_next(self, message: Any, expected: int) -> bool:
        """False where it has come too early: Faust has skipped records, or there are none between."""
        place = faust.types.TP(message.topic, message.partition)
        verdict = self._gaps.verdict(place, message.offset, expected)
        if verdict is Verdict.GO_BACK:
            _log.info("%s-%d: %d came, %d was expected: read again", *place, message.offset, expected)
            await self.faust.consumer.seek(place, expected)
        return verdict is Verdict.TAKE

    @staticmethod
    def _take_prediction(slice_: Slice, message: Any) -> None:
        append_ms = round(message.timestamp * 1000)
        headers = _headers(message.headers)
        record = decode_prediction_record(message.value, headers, partition=message.partition, append_ms=append_ms)
        decision = None if record is None else decode_decision(record.raw)
        slice_.prediction(message.offset, append_ms, None if record is None else record.request_offset, decision)

    @staticmethod
    def _take_outcome(slice_: Slice, message: Any) -> None:
        append_ms = round(message.timestamp * 1000)
        try:
            outcome = decode_outcome(
                message.value, partition=message.partition, offset=message.offset, append_ms=append_ms
            )
        except ContractError as error:
            _log.warning("an outcome is left out: %s", error, extra=about("leave out"))
            outcome = None
        slice_.outcome(outcome, message.offset, append_ms)

    def lags(self) -> dict[tuple[str, int], int]:
        """(topic, partition) -> records that were not read yet, as the last fetch told."""
        return {
            (self._name(kind), number): max(0, highwater - slice_.read[source])
            for source, kind in ((PREDICTIONS, Kind.PREDICTIONS), (OUTCOMES, Kind.OUTCOMES))
            for number, slice_ in self.board.slices.items()
            if (highwater := self._highwater(kind, number)) is not None
        }

    def _highwater(self, kind: Kind, number: int) -> int | None:
        found = self.faust.consumer.highwater(faust.types.TP(self._name(kind), number))
        return None if found is None else int(found)

    def _drained(self) -> dict[int, tuple[bool, bool]]:
        lags = self.lags()
        predictions, outcomes = self._name(Kind.PREDICTIONS), self._name(Kind.OUTCOMES)
        return {
            number: (
                lags.get((predictions, number), 1 << 62) <= _UNREAD_MARKERS,
                lags.get((outcomes, number), 1 << 62) <= _UNREAD_MARKERS,
            )
            for number in self.board.slices
        }

    # -- writing -------------------------------------------------------------------------------------------------

    async def _turn_forever(self) -> None:
        while True:
            await self.recovered.wait()
            self._last_turn_s = time.monotonic()
            await asyncio.sleep(self._publish_every_s)
            if self.recovered.is_set():
                await self._turn()

    async def _turn(self) -> None:
        """Write what has changed, acknowledge what led to it, publish."""
        stood_s = time.monotonic() - self._last_turn_s - self._publish_every_s
        if stood_s > self._session_s / 2:
            # Others may own its partitions by now, and what it would write is older than what they have written.
            self._fail(BrokerError(f"insights stood still for {stood_s:.1f} s and writes nothing more: start it again"))
            return
        turn = self.board.turn(self._drained())
        events, self._pending = self._pending, []
        await self._write(turn)
        for event in events:
            event.ack()
        await self._publish(turn.rows)
        self._room.set()

    async def _write(self, turn: Turn) -> None:
        most = max((len(changes.steps) for changes in turn.changes.values()), default=0)
        for step in range(most):
            sent = []
            for number, changes in turn.changes.items():
                for key, value in changes.steps[step].items() if step < len(changes.steps) else ():
                    sent.append(self._keep(number, key, value))
            await _all(sent)

    def _keep(self, number: int, key: Key, value: bytes | None) -> Awaitable[Any]:
        raw = _encode((number, *key))
        if value is None:
            self.table.data.pop(raw, None)
        else:
            self.table.data[raw] = value
        sent: Awaitable[Any] = self.table.send_changelog(number, raw, value)
        return sent

    async def _publish(self, rows: Mapping[Row, Any]) -> None:
        await _all(
            [
                self._out.send_soon(key=_encode(list(row)), value=_encode(value), partition=self.board.home(row))
                for row, value in rows.items()
            ]
        )

    # -- the web view --------------------------------------------------------------------------------------------

    def _serves_page(self) -> None:
        async def page(web: Any, request: Any) -> Any:
            said = view(self.settings.app.name, self.board, Question.of(request.query))
            return web.bytes(_encode(said), content_type="application/json")

        self.faust.page("/insights/")(page)


def _begins_at_the_start(consumer: Any, topics: set[str]) -> Any:
    """Faust's consumer, which goes to the start of a partition of these topics that has no commit.

    Faust throws away what comes while it reads a changelog, and goes back to what was committed. Without a commit it
    goes on behind what it threw away: after a kill before the first commit that was never counted.
    """

    class FromTheStart(consumer):  # type: ignore[misc]  # which one is Faust's to say
        async def seek_to_committed(self) -> Any:
            committed = await super().seek_to_committed()
            for tp, offset in committed.items():
                if not offset and tp.topic in topics:
                    await self._seek(tp, 0)  # where the log begins later, it is that: `earliest`
            return committed

    return FromTheStart


def _as_failure(error: BaseException) -> Exception:
    """A broker that does not take what is sent is a person's to mend; anything else is a fault of ours."""
    if isinstance(error, TimeoutError | KafkaError):
        return BrokerError(f"insights cannot go on: the broker did not take what was sent ({error!r})")
    return error if isinstance(error, Exception) else BrokerError(f"insights cannot go on: {error!r}")


async def _all(sent: list[Awaitable[Any]]) -> None:
    async with asyncio.timeout(_ACK_TIMEOUT_S):
        await asyncio.gather(*sent)


def _headers(found: Any) -> tuple[tuple[str, bytes | None], ...]:
    if not found:
        return ()
    return tuple(found.items() if isinstance(found, Mapping) else found)


def _credentials(options: Mapping[str, Any]) -> Any:
    """Faust's form of a client's security."""
    protocol, context = options.get("security_protocol", "PLAINTEXT"), options.get("ssl_context")
    if protocol == "SSL":
        return faust.SSLCredentials(context)
    if not protocol.startswith("SASL"):
        return None
    mechanism = options["sasl_mechanism"]
    if mechanism == "OAUTHBEARER":
        return faust.OAuthCredentials(oauth_cb=options["sasl_oauth_token_provider"], ssl_context=context)
    if mechanism == "GSSAPI":
        return faust.GSSAPICredentials(
            kerberos_service_name=options["sasl_kerberos_service_name"],
            kerberos_domain_name=options["sasl_kerberos_domain_name"],
            ssl_context=context,
        )
    return faust.SASLCredentials(
        username=options["sasl_plain_username"],
        password=options["sasl_plain_password"],
        mechanism=mechanism,
        ssl_context=context,
    )
