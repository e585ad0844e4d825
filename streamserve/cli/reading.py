"""Requests as they are typed for `send`: on the command line, in files, on standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from streamserve.client import UnusableInput
from streamserve.client.inputs import Codec, Input

_READ_BYTES = 65_536


async def requests_in(requests: list[str], codec: Codec | None) -> AsyncIterator[Input]:
    """What to send for each of them: rows or a text as typed, `@FILE`, or `-` for the lines of standard input.

    Raises UnusableInput.
    """
    for request in requests:
        if request == "-":
            async for number, text in _standard_input():
                yield _input(text, codec, f"line {number} of standard input")
        elif request.startswith("@"):
            yield _file(Path(request[1:]), codec)
        else:
            yield _input(request, codec, _beginning(request))


async def _standard_input() -> AsyncIterator[tuple[int, str]]:
    """Lines that are not empty, numbered from 1. Read on a thread that nothing waits for."""
    if sys.stdin is None:
        raise UnusableInput("standard input is closed")
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    wanted = threading.Semaphore()

    def read(descriptor: int) -> None:
        for line in _read_lines(descriptor):
            wanted.acquire()
            try:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            except RuntimeError:  # the loop is closed: nobody takes a line any more
                return

    threading.Thread(target=read, args=(sys.stdin.fileno(),), name="standard input", daemon=True).start()
    number = 0
    while (line := await lines.get()) is not None:
        if isinstance(line, OSError):
            raise UnusableInput(f"standard input cannot be read: {line.strerror or line}")
        wanted.release()
        number += 1
        if line.strip():
            yield number, _decoded(line.strip(), f"line {number} of standard input")


def _read_lines(descriptor: int) -> Iterator[bytes | OSError | None]:
    """Lines as they come, then None; an error is the last. Past Python's own buffer: at the end of a process that one
    must not be in use by a thread."""
    rest = b""
    try:
        while content := os.read(descriptor, _READ_BYTES):
            *lines, rest = (rest + content).split(b"\n")
            yield from lines
    except OSError as error:
        yield error
        return
    if rest:
        yield rest
    yield None


def _file(file: Path, codec: Codec | None) -> Input:
    try:
        if file.suffix == ".npy":
            array: np.ndarray[Any, Any] = np.load(file, allow_pickle=False)
            return array
        return _input(_decoded(file.read_bytes(), str(file)), codec, str(file))
    except OSError as error:
        raise UnusableInput(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UnusableInput(f"{file}: no array that can be sent: {error}") from None


def _decoded(text: bytes, place: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise UnusableInput(f"{place}: not UTF-8 text") from None


def _input(text: str, codec: Codec | None, place: str) -> Input:
    """What to send for one request as it was typed."""
    if codec == "text":
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnusableInput(f"{place}: not JSON ({error}); for a route that reads text say --codec text") from None
    if isinstance(value, dict):
        return text.encode()  # a whole request, as it is
    if isinstance(value, list | str):
        return value
    raise UnusableInput(f"{place}: expected rows such as [[1, 2], [3, 4]], a text, or a whole request")


def _beginning(text: str) -> str:
    """The beginning of what was typed, for a message."""
    return text if len(text) <= 40 else f"{text[:39]}…"
