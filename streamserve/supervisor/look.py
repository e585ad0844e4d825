"""A look at the `/status` page of a role's process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

HOST = "127.0.0.1"
TIMEOUT_S = 1.0
_MOST_BYTES = 4 << 20


async def look(port: int, timeout_s: float = TIMEOUT_S) -> Mapping[str, Any] | None:
    """What the page at this loopback port says; None where it does not answer in time, or nonsense."""
    with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, port, limit=_MOST_BYTES)
            try:
                writer.write(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
            said = json.loads(body) if b" 200 " in head[:20] else None
            return said if isinstance(said, dict) else None
    return None
