"""Whether the loop could run."""

from __future__ import annotations

import asyncio

from streamserve.kafka.lateness import Lateness


def test_only_a_gap_above_the_limit_is_late() -> None:
    now_ms = 5_000.0
    lateness = Lateness(lambda: now_ms, 100.0)
    assert lateness.seen() == 0  # nothing is known of the time before
    now_ms += 100
    assert lateness.seen() == 0
    now_ms += 101
    assert lateness.seen() == 101
    assert lateness.seen() == 0


async def test_it_looks_often_enough() -> None:
    looks: asyncio.Queue[float] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    lateness = Lateness(lambda: 0.0, 100.0)
    ticking = asyncio.create_task(lateness.tick(lambda: looks.put_nowait(loop.time())))
    times = [await asyncio.wait_for(looks.get(), 5) for _ in range(3)]
    ticking.cancel()
    assert times[2] - times[0] >= 0.019
