"""Three bare hops: request, middle, answer. Both copying loops in one process: the least that Kafka itself costs."""

from __future__ import annotations

import asyncio
import itertools

from benchmarks.peers.loop import Hop, copy_values, run_hop
from benchmarks.peers.settings import PeerSettings


async def run_chain(settings: PeerSettings) -> None:
    topics = (settings.requests_topic, settings.middle_topic, settings.answers_topic)
    hops = [
        Hop(source=source, target=target, group=f"{settings.group}.{source}", answer=copy_values)
        for source, target in itertools.pairwise(topics)
    ]
    async with asyncio.TaskGroup() as tasks:
        for hop in hops:
            tasks.create_task(run_hop(settings, hop))


def main() -> None:
    asyncio.run(run_chain(PeerSettings.from_environment()))


if __name__ == "__main__":
    main()
