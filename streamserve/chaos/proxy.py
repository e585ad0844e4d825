"""A TCP proxy between the roles and their broker that misbehaves when told to. Rewrites nothing.

Kafka tells its clients where to connect, so the broker has a second listener that is advertised at the proxy's port.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

_CHUNK_BYTES = 65_536


class _Pipe:
    """One connection: two sockets, a task a direction."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self.client, self.broker = client, broker
        self.is_half_open = False
        """The broker's side is gone and the client has not been told: what it sends leads nowhere."""

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        writing = asyncio.ensure_future(self._write(due, writer))
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if not self.is_half_open:
                    due.put_nowait((loop.time() + self._proxy.delay_ms / 1000, data))
        finally:
            writing.cancel()

    async def _write(self, due: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """In order, each piece not before its time and not while the link is held."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while True:
                at_s, data = await due.get()
                await asyncio.sleep(max(0.0, at_s - loop.time()))
                await self._proxy.passes.wait()
                if not self.is_half_open:
                    writer.write(data)
                    await writer.drain()

    def abort(self) -> None:
        self.client.transport.abort()
        self.broker.transport.abort()

    def lose_broker(self) -> None:
        self.is_half_open = True
        self.broker.transport.abort()


class Proxy:
    """Forwards every connection to `port` on to `broker_port`, both on the loopback address."""

    def __init__(self, host: str, port: int, broker_port: int) -> None:
        self._host, self._port, self._broker_port = host, port, broker_port
        self.delay_ms = 0.0
        """Added to each direction."""
        self.passes = asyncio.Event()
        self.passes.set()
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self._pipes)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        """Nothing gets through any more, and nobody is told: a cable was pulled."""
        self.passes.clear()

    def release(self) -> None:
        """The cable is in again: what was on its way arrives."""
        self.passes.set()

    def drop(self) -> None:
        """Every connection is reset."""
        for pipe in list(self._pipes):
            pipe.abort()

    def half_open(self) -> None:
        """The broker's side of every connection is gone, and the client is not told: a firewall forgot them. New
        connections work."""
        for pipe in list(self._pipes):
            pipe.lose_broker()

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        pipe: _Pipe | None = None
        with suppress(OSError, asyncio.CancelledError):
            try:
                await self.passes.wait()  # a connection that is made through a pulled cable is not made
                broker_reader, broker = await asyncio.open_connection(self._host, self._broker_port)
                pipe = _Pipe(self, client, broker)
                self._pipes.add(pipe)
                await self._until_one_ends(pipe, client_reader, broker_reader)
            finally:
                if pipe is not None:
                    pipe.abort()
                    self._pipes.discard(pipe)
                client.transport.abort()
        self._tasks.discard(task)

    async def _until_one_ends(
        self, pipe: _Pipe, client_reader: asyncio.StreamReader, broker_reader: asyncio.StreamReader
    ) -> None:
        ways = [
            asyncio.ensure_future(pipe.pump(client_reader, pipe.broker)),
            asyncio.ensure_future(pipe.pump(broker_reader, pipe.client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if pipe.is_half_open:  # the broker's end is no news to the client
                await asyncio.wait(ways[:1])
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
