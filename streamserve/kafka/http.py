"""A tiny HTTP server on the loopback address: `/metrics`, `/healthz`, `/readyz`, `/status`. GET only."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from streamserve.errors import ConfigError
from streamserve.kafka.metrics import CONTENT_TYPE

HOST = "127.0.0.1"
_READ_TIMEOUT_S = 5.0
_HEAD_BYTES = 8_192
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 400: "Bad Request", 503: "Service Unavailable"}


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class Pages(NamedTuple):
    """What each path serves. Health: empty means well, else each line is one thing that is not."""

    metrics: Callable[[], bytes]
    alive: Callable[[], list[str]]
    ready: Callable[[], list[str]]
    status: Callable[[], dict[str, Any]]


class StatusServer:
    """Serves a process's pages; `port` 0 takes any free one."""

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self._paths: dict[bytes, Callable[[], Answer]] = {
            b"/metrics": lambda: Answer(200, pages.metrics(), CONTENT_TYPE),
            b"/healthz": lambda: _health(pages.alive()),
            b"/readyz": lambda: _health(pages.ready()),
            b"/status": lambda: Answer(200, json.dumps(pages.status()).encode(), "application/json"),
        }
        self._asked_port = port
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Bind. ConfigError where the port is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, HOST, self._asked_port, limit=_HEAD_BYTES)
        except OSError as error:
            raise ConfigError(
                f"port {self._asked_port} for metrics cannot be used on {HOST} ({error.strerror}). "
                "Choose another by --metrics-port or [metrics] port; 0 takes any free one"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _READ_TIMEOUT_S)
            answer = self._answer(head)
            writer.write(_head(answer) + answer.body)
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> Answer:
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) != 3:
            return Answer(400, b"not HTTP\n")
        if words[0] != b"GET":
            return Answer(405, b"GET only\n")
        page = self._paths.get(words[1].split(b"?")[0])
        return Answer(404, b"/metrics /healthz /readyz /status\n") if page is None else page()


def _health(troubles: list[str]) -> Answer:
    if not troubles:
        return Answer(200, b"ok\n")
    return Answer(503, ("\n".join(troubles) + "\n").encode())


def _head(answer: Answer) -> bytes:
    return (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    ).encode()
