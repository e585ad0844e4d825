"""Ending tasks, and waiting for no longer than so long."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

_CANCEL_AGAIN_S = 0.1


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    # A cancellation that meets the end of a `wait_for` is swallowed (Python 3.11): ask until it is heard.
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)


async def happens_or(event: asyncio.Event, at_most_s: float) -> None:
    """Wait until the event is set, or so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
