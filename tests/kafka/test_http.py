from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest

from streamserve.errors import ConfigError
from streamserve.kafka.http import HOST, Pages, StatusServer


def get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


async def ask(server: StatusServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    return await asyncio.to_thread(get, server.port, path, method)


async def test_each_path_has_its_page() -> None:
    troubles: list[str] = []
    pages = Pages(metrics=lambda: b"m 1\n", alive=lambda: [], ready=lambda: troubles, status=lambda: {"rate": 1})
    server = StatusServer(pages)
    await server.start()
    try:
        assert await ask(server, "/metrics") == (200, b"m 1\n")
        assert await ask(server, "/healthz") == (200, b"ok\n")
        assert (await ask(server, "/readyz?x=1"))[0] == 200
        troubles.append("the group is not joined yet")
        assert await ask(server, "/readyz") == (503, b"the group is not joined yet\n")
        assert json.loads((await ask(server, "/status"))[1]) == {"rate": 1}
        assert (await ask(server, "/"))[0] == 404
        assert (await ask(server, "/metrics", "POST"))[0] == 405
    finally:
        await server.stop()


async def test_a_client_that_is_not_http_does_not_stop_it() -> None:
    server = StatusServer(Pages(metrics=lambda: b"", alive=lambda: [], ready=lambda: [], status=lambda: {}))
    await server.start()
    try:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b"hello\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b"GET /" + b"x" * 20_000)
        writer.close()
        assert (await ask(server, "/healthz"))[0] == 200
    finally:
        await server.stop()


async def test_a_taken_port_is_said_in_words() -> None:
    pages = Pages(metrics=lambda: b"", alive=lambda: [], ready=lambda: [], status=lambda: {})
    first = StatusServer(pages)
    await first.start()
    try:
        with pytest.raises(ConfigError, match=f"port {first.port} .*--metrics-port"):
            await StatusServer(pages, first.port).start()
    finally:
        await first.stop()
