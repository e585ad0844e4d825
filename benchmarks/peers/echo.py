"""The ceiling: the hand-written loop without JSON and without a model."""

from __future__ import annotations

import asyncio

from benchmarks.peers.loop import Hop, copy_values, run_hop
from benchmarks.peers.settings import PeerSettings


def main() -> None:
    settings = PeerSettings.from_environment()
    hop = Hop(source=settings.requests_topic, target=settings.answers_topic, group=settings.group, answer=copy_values)
    asyncio.run(run_hop(settings, hop))


if __name__ == "__main__":
    main()
