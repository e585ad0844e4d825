"""What a good programmer writes by hand: one `predict` per fetch, one batch of answers per partition.

No deadlines, no selection, no confidence, no timings, no dead letters: a bad request ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks import job
from benchmarks.peers.loop import Hop, run_hop
from benchmarks.peers.settings import PeerSettings


def main() -> None:
    settings = PeerSettings.from_environment()
    models = job.load_models(settings.models)

    def answer(records: Sequence[Any]) -> list[bytes]:
        ids, inputs = job.decode_rows([record.value for record in records])
        labels = job.predict_labels(models, inputs)
        return [job.encode_answer(*each) for each in zip(ids, labels.tolist(), strict=True)]

    hop = Hop(source=settings.requests_topic, target=settings.answers_topic, group=settings.group, answer=answer)
    asyncio.run(run_hop(settings, hop))


if __name__ == "__main__":
    main()
