"""The proxy, between two plain sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from streamserve.chaos.proxy import Proxy
from streamserve.kafka.brokers.ports import HOST, free_ports

WAIT_S = 10.0


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(100):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, int]]:
    port, behind = free_ports(2)
    server = await asyncio.start_server(_echo, HOST, behind)
    proxy = Proxy(HOST, port, behind)
    await proxy.start()
    try:
        yield proxy, port
    finally:
        await proxy.stop()
        server.close()


async def said(port: int, *words: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which each of these was answered."""
    reader, writer = await asyncio.open_connection(HOST, port)
    for word in words:
        writer.write(word)
        assert await asyncio.wait_for(reader.readexactly(len(word)), WAIT_S) == word
    return reader, writer


async def test_it_forwards_and_delays() -> None:
    async with proxied() as (proxy, port):
        _, writer = await said(port, b"one", b"two")
        writer.close()
        proxy.delay_ms = 30.0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        _, writer = await said(port, b"slow")
        assert loop.time() - began_s >= 0.06
        writer.close()


async def test_a_pulled_cable_holds_everything_and_then_lets_it_through() -> None:
    async with proxied() as (proxy, port):
        reader, writer = await said(port, b"one")
        proxy.hold()
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(3), 0.2)
        proxy.release()
        assert await asyncio.wait_for(reader.readexactly(3), WAIT_S) == b"two"
        writer.close()


async def test_a_reset_ends_a_connection_and_a_new_one_works() -> None:
    async with proxied() as (proxy, port):
        reader, writer = await said(port, b"one")
        proxy.drop()
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), WAIT_S) == b""
        writer.close()
        _, writer = await said(port, b"two")
        writer.close()


async def test_half_open_swallows_what_is_sent_and_a_new_connection_works() -> None:
    async with proxied() as (proxy, port):
        reader, writer = await said(port, b"one")
        proxy.half_open()
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(3), 0.2)
        _, other = await said(port, b"three")
        other.close()
        writer.close()
