"""A look at a role's page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamserve.supervisor.look import look

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def looked(answer: Answer, timeout_s: float = 5.0) -> object:
    async def case() -> object:
        done = asyncio.Event()

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answer(reader, writer)
            done.set()

        server = await asyncio.start_server(once, "127.0.0.1", 0)
        async with server:
            said = await look(server.sockets[0].getsockname()[1], timeout_s)
            await done.wait()
            return said

    return asyncio.run(case())


def says(content: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /status ")
        writer.write(content)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return answer


def test_it_gives_what_the_page_says() -> None:
    assert looked(says(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}')) == {"a": 1}


@pytest.mark.parametrize(
    "content",
    [b"HTTP/1.1 404 Not Found\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n[1]", b"HTTP/1.1 200 OK\r\n\r\n{", b"", b"\xff"],
)
def test_anything_else_is_no_answer(content: bytes) -> None:
    assert looked(says(content)) is None


def test_a_page_that_hangs_is_no_answer() -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        await writer.wait_closed()

    assert looked(hangs, timeout_s=0.05) is None


def test_nobody_there_is_no_answer() -> None:
    assert asyncio.run(look(1)) is None
